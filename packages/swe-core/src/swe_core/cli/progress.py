"""Show the progress of a run: a live table on a terminal, one line per event elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.rollout.equal_errors import Reason, reason_of
from swe_core.system.plural import counted
from swe_core.system.printable import one_line, printable
from swe_core.system.safe_console import SafeConsole


@dataclass(slots=True)
class _Running:
    task: str
    attempt: int
    phase: str = "open"
    turns: int = 0
    tokens: int = 0
    started: float = field(default_factory=time.monotonic)


class _Tally:
    """Counts of running and finished rollouts."""

    def __init__(self, requests: Sequence[RolloutRequest]) -> None:
        self.planned = len(requests)
        self.running: dict[str, _Running] = {}
        self.outcomes: Counter[str] = Counter()
        self.boundaries: Counter[str] = Counter()
        self._reasons: dict[Reason, list[str]] = {}
        self.began = time.monotonic()

    def started(self, request: RolloutRequest) -> None:
        self.running[request.id] = _Running(request.task.instance_id, request.attempt)

    def phase(self, rollout_id: str, phase: Phase) -> None:
        row = self.running[rollout_id]
        row.phase = phase
        if phase == "open":  # a retry starts again from zero
            row.turns = row.tokens = 0

    def turn(self, rollout_id: str, turn: Turn) -> None:
        row = self.running[rollout_id]
        row.turns += 1
        row.tokens += turn.usage.prompt_tokens + turn.usage.completion_tokens

    def finished(self, rollout: Rollout) -> None:
        self.running.pop(rollout.id, None)
        self.outcomes[rollout.outcome] += 1
        if rollout.failure is not None:
            self.boundaries[rollout.failure.boundary] += 1

    def why(self, rollout: Rollout) -> str:
        """Return why a finished rollout failed, in one printable line: it may contain text from a sandbox.

        An error that was shown before is named by the rollout that had it first. Empty without an error.
        """
        failure = rollout.failure
        if failure is None:
            return ""
        same = self._reasons.setdefault(reason_of(failure, rollout.id, rollout.task_id), [])
        same.append(rollout.id)
        if len(same) > 1:
            return f"{failure.boundary}: same as {same[0]}, {len(same)} times"
        return f"{failure.boundary}: {one_line(failure.message, 1000)}"

    def line(self) -> str:
        done = self.outcomes.total()
        seconds = time.monotonic() - self.began
        text = f"{done}/{self.planned} done, {self.outcomes['resolved']} resolved"
        if self.boundaries:
            text += ", errors: " + ", ".join(f"{name} {n}" for name, n in self.boundaries.items())
        text += f", {seconds:.0f} s"
        if 0 < done < self.planned:
            text += f", about {seconds / done * (self.planned - done):.0f} s left"
        return text


class Display(SafeConsole):
    """A console on stderr. When its reader exits (`2>&1 | head`), the run continues without output."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class PlainProgress:
    """One line per rollout start, phase and end, to stderr."""

    def __init__(self, requests: Sequence[RolloutRequest]) -> None:
        self._tally = _Tally(requests)

    def started(self, request: RolloutRequest) -> None:
        """Count the rollout. Its first phase prints the line."""
        self._tally.started(request)

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Print that a rollout enters a phase."""
        self._tally.phase(rollout_id, phase)
        self._say(f"{rollout_id}: {phase}")

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Count the turn, without a line of output."""
        self._tally.turn(rollout_id, turn)

    def finished(self, rollout: Rollout) -> None:
        """Print the outcome of a rollout."""
        self._tally.finished(rollout)
        why = f" ({self._tally.why(rollout)})" if rollout.failure else ""
        self._say(
            f"{rollout.id}: {rollout.outcome}{why}, {counted(rollout.turns, 'turn')}, "
            f"{rollout.seconds:.1f} s; {self._tally.line()}"
        )

    @staticmethod
    def _say(text: str) -> None:
        with suppress(BrokenPipeError):
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {printable(text)}\n")
            sys.stderr.flush()


class LiveProgress:
    """A table on the terminal with a row per running rollout and a summary."""

    def __init__(self, requests: Sequence[RolloutRequest], console: Console) -> None:
        self._tally = _Tally(requests)
        self._console = console
        self.live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def started(self, request: RolloutRequest) -> None:
        """Add a row."""
        self._tally.started(request)

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Update the row's phase."""
        self._tally.phase(rollout_id, phase)

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Update the row's counts."""
        self._tally.turn(rollout_id, turn)

    def finished(self, rollout: Rollout) -> None:
        """Move the row to the scrollback, with its outcome."""
        self._tally.finished(rollout)
        style = {"resolved": "green", "unresolved": "yellow", "error": "red"}.get(rollout.outcome, "dim")
        why = f" {self._tally.why(rollout)}" if rollout.failure else ""
        self._console.print(
            Text.assemble(
                (f"{rollout.outcome:<10} ", style),
                f"{rollout.id}  {counted(rollout.turns, 'turn')}, {rollout.seconds:.1f} s{why}",
            )
        )

    def _render(self) -> RenderableType:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("task", "attempt", "phase", "turns", "tokens", "seconds"):
            table.add_column(name, justify="left" if name in ("task", "phase") else "right")
        for row in list(self._tally.running.values()):
            seconds = f"{time.monotonic() - row.started:.0f}"
            table.add_row(row.task, str(row.attempt), row.phase, str(row.turns), str(row.tokens), seconds)
        return Group(table, Text(self._tally.line(), style="bold"))
