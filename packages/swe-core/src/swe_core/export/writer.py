"""Writer: what writes one format; Reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from swe_core.export.source import ExportedRollout, ExportedRun
from swe_core.system.plural import counted


class Reason(NamedTuple):
    """Why something is left out: what it is, in the singular, and which."""

    noun: str
    which: str

    def of(self, count: int) -> str:
        """Return the reason with a count, such as `2 rollouts without a row`."""
        return f"{counted(count, self.noun)} {self.which}"


HELD_OUT = Reason("rollout", "of an evaluation while training, because its task is held out")


class Writer(ABC):
    """Writes rollouts into files of a folder, one after the other.

    Attributes:
        left_out: What is not written → how often.

    Args:
        folder: An empty folder.
        runs: All runs of the export.
    """

    def __init__(self, folder: Path, runs: Sequence[ExportedRun]) -> None:
        self.folder = folder
        self.runs = runs
        self.left_out = Counter[Reason]()

    @abstractmethod
    def add(self, rollout: ExportedRollout) -> int:
        """Write one rollout; those of a run come together.

        Returns:
            The rows that it became.

        Raises:
            UsageError: A file of the rollout is damaged. Nothing of it was written.
            LedgerError: Its tokens do not fit together. Nothing of it was written.
            OSError: A file cannot be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Complete and close the files.

        Raises:
            OSError: A file cannot be written.
        """

    @abstractmethod
    def abort(self) -> None:
        """Close open files as they are, because the export failed."""
