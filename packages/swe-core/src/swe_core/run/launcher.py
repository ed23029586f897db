"""Launcher: a worker that has a process of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_core.run.settings import Settings


@dataclass(frozen=True, slots=True)
class Launch:
    """A run that is about to start.

    Args:
        settings: All of its settings, the plugins included: a process elsewhere can make the same plan.
        directory: The run directory, which does not exist or is empty; with `resume`, that of the run.
        resume: Whether an earlier run in `directory` is gone on with.
    """

    settings: Settings
    directory: Path
    resume: bool


class Launcher(ABC):
    """A worker that has a process of its own beside the rollouts', such as a trainer. It is asked in the
    main thread, outside any event loop, and runs `swe_core.run.execute.execute` with a `RolloutWorker` of its
    own wherever it likes."""

    @abstractmethod
    def launch(self, launch: Launch) -> bool:
        """Run to the end. Whatever it started is over when it returns or raises.

        Returns:
            Whether it was interrupted.

        Raises:
            SweError: The run could not start, or could not go on.
        """
