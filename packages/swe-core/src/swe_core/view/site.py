"""Site: the runs that are shown, each with what was read of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from swe_core.errors import UsageError
from swe_core.report.finished import RolloutHead, is_path_part
from swe_core.rollout.run_directory import FOLDERS, RUN_FILE, RunDirectory
from swe_core.rollout.run_list import State, run_state
from swe_core.view.heads import Heads
from swe_core.view.run_lines import RunLine
from swe_core.view.training import Training

_FEW = 4


class NotShown(Exception):
    """There is no such page. The message is a sentence for the reader."""


class ShownRun:
    """One run directory.

    Attributes:
        name: Its part of the URL, unique on the site.
        directory: For everything that is not in `heads`.
        heads: Its finished rollouts.
        training: What a trainer recorded.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.directory = RunDirectory.open(path)
        self.heads = Heads(path)
        self.training = Training(path)
        self._line: tuple[object, RunLine] | None = None

    @property
    def path(self) -> Path:
        """Return the run directory."""
        return self.directory.path

    def line(self) -> RunLine:
        """Return what a list says of the run. Rollouts that were read for it alone are forgotten again.

        Raises:
            UsageError: Its records are damaged.
        """
        signature = self.heads.signature()
        if self._line is None or self._line[0] != signature:
            heads = self.heads if len(self.heads) else Heads(self.path)
            heads.refresh()
            self._line = signature, RunLine.of(heads.all())
        return self._line[1]

    def state(self) -> State:
        """Return whether the run is running, interrupted, finished or ended."""
        finished = sum(not head.interrupted for head in self.heads.all())
        return run_state(self.path, finished, self.directory.info.planned)

    def unfinished(self) -> list[str]:
        """Return the ids of the rollouts that have begun and are not finished."""
        try:
            begun = os.listdir(self.path / FOLDERS)
        except OSError:
            return []
        return sorted(name for name in begun if is_path_part(name) and self.heads.get(name) is None)

    def head(self, rollout_id: str) -> RolloutHead | None:
        """Return the head of a rollout; None if it has begun and is not finished.

        Raises:
            NotShown: No rollout has this id.
        """
        head = self.heads.get(rollout_id)
        if head is None and rollout_id not in self.unfinished():
            raise NotShown(f"The run {self.name!r} has no rollout {rollout_id!r}.")
        return head

    def groups(self) -> Mapping[str, Sequence[RolloutHead]]:
        """Return the attempts of each group, by its key, in the order in which groups began to finish."""
        found: dict[str, list[RolloutHead]] = {}
        for head in self.heads.all():
            found.setdefault(head.group, []).append(head)
        return found


class Site:
    """The runs that the pages show.

    Args:
        paths: Run directories, and directories that contain some.
        live: Whether pages load themselves again while a run goes on.

    Raises:
        UsageError: A path neither is a run directory nor contains one.
    """

    def __init__(self, paths: Sequence[Path], *, live: bool = True) -> None:
        self.live = live
        self.lock = threading.Lock()
        """Held while a page is made: what was read of a run is shared."""
        self._paths = list(paths)
        self._runs: dict[Path, ShownRun] = {}
        self.runs: dict[str, ShownRun] = {}
        self.refresh()
        if not self.runs:
            listed = ", ".join(repr(str(path)) for path in paths)
            raise UsageError(f"there is no run in {listed}: give a run directory, or one that contains some")

    def refresh(self) -> None:
        """Find the runs again: new ones, and those that are gone.

        Raises:
            UsageError: A path that was given is no run directory.
        """
        found: dict[Path, ShownRun] = {}
        for given in self._paths:
            for path in self._runs_in(given):
                found[path] = self._runs.get(path) or ShownRun("", path)
        self._runs = found
        self.runs = {}
        for path, run in found.items():
            name, number = os.fsencode(path.resolve().name).decode(errors="replace") or "run", 2
            while (unique := name if number == 2 else f"{name}-{number - 1}") in self.runs:
                number += 1
            run.name = unique
            self.runs[unique] = run

    def read_ahead(self) -> None:
        """Read the rollouts of a few runs before their pages are opened. Of many runs, none is read."""
        for run in list(self.runs.values()) if len(self.runs) <= _FEW else ():
            with self.lock, suppress(UsageError):  # its page says what is damaged
                run.heads.refresh()

    def run(self, name: str) -> ShownRun:
        """Return the run `name`, with what it has by now.

        Raises:
            NotShown: There is none.
            UsageError: Its records are damaged.
        """
        if name not in self.runs:
            raise NotShown(f"There is no run {name!r} here.")
        run = self.runs[name]
        run.heads.refresh()
        run.training.refresh()
        return run

    def _runs_in(self, path: Path) -> list[Path]:
        if (path / RUN_FILE).is_file():
            return [path]
        try:
            inside = sorted(each for each in path.iterdir() if (each / RUN_FILE).is_file())
        except OSError as error:
            raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from None
        return [each for each in inside if each in self._runs or _readable(each)]


def _readable(path: Path) -> bool:
    """Return whether a run that was not named itself can be shown."""
    try:
        RunDirectory.open(path)
    except UsageError:
        return False
    return True
