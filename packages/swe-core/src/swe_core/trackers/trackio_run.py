"""TrackioRun: one run in trackio, and what of it is stored there."""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from swe_core.api.records import Rollout
from swe_core.errors import ConfigError, sentence
from swe_core.trackers.names import PROJECT, free_name, is_local
from swe_core.trackers.options import TrackOptions
from swe_core.trackers.rollout_trace import numbers
from swe_core.trackers.sent_rollouts import Destination, SentRollouts

if TYPE_CHECKING:
    import trackio

TRACE = "trace"
"""Name of a rollout's trace among its values."""

_WAITS = 20
"""Calls of trackio's `finish`, each of which waits half a minute for what is not stored yet."""


class TrackioRun:
    """A run in trackio: the one that has the sent rollouts, or a new one.

    Args:
        options: Its project and its name, and the Space.
        name: Its name where the options have none; a new run gets a number if the project has that name.
        sent: The rollouts that were sent.

    Raises:
        ConfigError: trackio cannot be used with these settings.
    """

    def __init__(self, options: TrackOptions, name: str, sent: SentRollouts) -> None:
        self.sent = sent
        self._local = is_local(options)
        project = options.project or PROJECT
        with _quiet():
            try:
                import trackio

                before = sent.destination
                wanted = Destination(
                    project=project, run=options.name or (before.run if before else name), space=options.space
                )
                if before != wanted:  # another run has them, if any
                    sent.forget(sent.steps())
                    if options.name is None:
                        wanted = wanted.model_copy(update={"run": free_name(options, name)})
                self._to = wanted
                self.run: trackio.Run = trackio.init(
                    project=project,
                    name=wanted.run,
                    space_id=options.space,
                    private=True,
                    resume="allow" if before == wanted else "never",
                    embed=False,
                    auto_log_cpu=False,
                    auto_log_gpu=False,
                )
            except Exception as error:  # the boundary to trackio, whose errors are of many types
                raise ConfigError(f"trackio cannot be used: {sentence(error)}") from error

    def place(self) -> str:
        """Return in words where the run is, and how to see it."""
        where = f"trackio, project {self.run.project!r}, run {self.run.name!r}"
        if not self._local:
            return f"{where}, at {self.run.url}"
        return f"{where}; to see them: trackio show --project {shlex.quote(self.run.project)}"

    def add(self, rollout: Rollout, trace: Mapping[str, Any]) -> None:
        """Send a rollout as the next step: its numbers, those of the run, and its trace.

        Args:
            trace: Arguments of `trackio.Trace`.

        Raises:
            OSError: The file of the sent rollouts cannot be written.
        """
        import trackio

        step = self.sent.next_step
        self.sent.add(rollout, self._to)
        values = {**numbers(rollout), **self._totals(), TRACE: trackio.Trace(**trace)}
        self.run.log(values, step=step)  # stored by a thread of trackio; `lost` tells what is not

    def _totals(self) -> dict[str, float]:
        outcomes = self.sent.outcomes
        verdicts = outcomes["resolved"] + outcomes["unresolved"]
        totals: dict[str, float] = {
            "rollout/finished_total": outcomes.total(),
            "rollout/errors_total": outcomes["error"],
        }
        return {**totals, "rollout/resolved_rate": outcomes["resolved"] / verdicts} if verdicts else totals

    def lost(self) -> set[int]:
        """Return the sent steps that trackio has not stored. Only its files on this machine tell that."""
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import get_storage_mode

        if not self._local or get_storage_mode() != "sqlite":
            return set()
        stored = SQLiteStorage.get_logs(self.run.project, self.run.name, run_id=self.run.id)
        return self.sent.steps() - {line["step"] for line in stored}

    def finish(self) -> None:
        """Wait until trackio has stored what was sent, as long as it stores something."""
        with _quiet():
            before = None
            for _ in range(_WAITS):
                self.run.finish()
                lost = len(self.lost())
                if lost in (0, before):
                    return
                before = lost


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what trackio prints out of the standard output, which belongs to the command."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
