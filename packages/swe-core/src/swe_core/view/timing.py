"""Where the time of a rollout went: phases, LLM calls, what lies between them, the slowest minute."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from swe_core.api.event_lines import as_mapping
from swe_core.api.records import Rollout, Turn
from swe_core.system.printable import one_line
from swe_core.view.transcript import calls_of, gist

MINUTE = 60.0
_LABEL = 100
_MAX_LANES = 6
_MAX_EDGES = 200
"""Longest pieces at whose ends the slowest minute may begin or end."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a rollout's time.

    Args:
        kind: A phase other than `agent`, `lost` for tries that ran again, `call` for an LLM call, `tools` for
            time between calls.
        start, seconds: From the start of the rollout.
        label: What it is, in words.
        turn: The call, or the call after which it comes; None for neither.
        lane: Row of a call, from 0: calls of sub-agents overlap.
        failed: Whether it is a call without a reply.
    """

    kind: str
    start: float
    seconds: float
    label: str
    turn: int | None = None
    lane: int = 0
    failed: bool = False

    @property
    def end(self) -> float:
        """Return its end, seconds from the start of the rollout."""
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class Minute:
    """The slowest minute: the 60 seconds that the fewest, longest pieces fill.

    Args:
        start, end: Seconds from the start of the rollout.
        filled: Its pieces with their seconds in it, the longest first.
    """

    start: float
    end: float
    filled: tuple[tuple[Piece, float], ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one rollout.

    Args:
        seconds: All of it.
        phases: Phase → start and seconds, of those that it reached.
        pieces: What filled it, by their start.
        lanes: Rows that the calls need.
        minute: None where the rollout took no minute.
    """

    seconds: float
    phases: tuple[tuple[str, float, float], ...]
    pieces: tuple[Piece, ...]
    lanes: int
    minute: Minute | None

    def longest(self, number: int) -> list[Piece]:
        """Return the longest pieces."""
        return sorted(self.pieces, key=lambda piece: -piece.seconds)[:number]


def timing_of(rollout: Rollout | None, turns: Sequence[Turn]) -> Timing:
    """Return the time of a rollout.

    Args:
        rollout: Its record; None while it runs, which then counts from its first call.
        turns: The calls of its last try.
    """
    if rollout is None:
        began = min((turn.started_at for turn in turns), default=None)
        calls = _calls(turns, 0.0 if began is None else began.timestamp())
        total = max((call.end for call in calls), default=0.0)
        pieces = sorted([*calls, *_gaps(calls, turns, 0.0, total)], key=lambda piece: piece.start)
        return _timing(total, [("agent", 0.0, total)] if calls else [], pieces)
    calls = _calls(turns, rollout.started_at.timestamp())
    phases: list[tuple[str, float, float]] = []
    at = sum(one.seconds for one in rollout.retried if one.folder is not None)
    lost_gradings = sum(one.seconds for one in rollout.retried if one.folder is None)
    pieces = [Piece("lost", 0.0, at, "tries that a sandbox failed")] if at else []
    for name, seconds in rollout.phases:
        if name == "grade" and lost_gradings:
            pieces.append(Piece("lost", at, lost_gradings, "gradings that a sandbox failed"))
            at += lost_gradings
        if seconds is None:
            continue
        phases.append((name, at, seconds))
        if name == "agent":
            pieces += [*calls, *_gaps(calls, turns, at, at + seconds)]
        else:
            pieces.append(Piece(name, at, seconds, _PHASES[name]))
        at += seconds
    pieces.sort(key=lambda piece: piece.start)
    return _timing(max(rollout.seconds, at), phases, pieces)


_PHASES = {
    "open": "open the sandbox",
    "prepare": "prepare the repository",
    "export": "export the patch",
    "grade": "grade: a fresh sandbox and the tests",
}


def _timing(seconds: float, phases: Sequence[tuple[str, float, float]], pieces: Sequence[Piece]) -> Timing:
    lanes = 1 + max((piece.lane for piece in pieces), default=0)
    return Timing(seconds, tuple(phases), tuple(pieces), lanes, slowest_minute(pieces, seconds))


def slowest_minute(pieces: Sequence[Piece], seconds: float) -> Minute | None:
    """Return the slowest minute of `pieces`, which are sorted by their start; None in less than a minute.

    It is the minute with the largest sum of squares of the pieces' seconds in it.
    """
    if seconds <= MINUTE or not pieces:
        return None
    starts = [piece.start for piece in pieces]
    ends = list(accumulate((piece.end for piece in pieces), max))
    latest = seconds - MINUTE
    longest = sorted(pieces, key=lambda piece: -piece.seconds)[:_MAX_EDGES]
    edges = {min(max(at, 0.0), latest) for piece in longest for at in (piece.start, piece.end - MINUTE)}

    def inside(start: float) -> list[tuple[Piece, float]]:
        stop = start + MINUTE
        near = pieces[bisect_right(ends, start) : bisect_left(starts, stop)]
        parts = ((piece, min(piece.end, stop) - max(piece.start, start)) for piece in near)
        return [(piece, part) for piece, part in parts if part > 0]

    best = max(sorted(edges), key=lambda start: sum(part * part for _, part in inside(start)))
    filled = sorted(inside(best), key=lambda part: -part[1])
    return Minute(best, best + MINUTE, tuple(filled))


def _calls(turns: Iterable[Turn], began: float) -> list[Piece]:
    """Return a piece for each call, by their start."""
    free: list[float] = []
    found = []
    for turn in sorted(turns, key=lambda turn: turn.started_at):
        start = turn.started_at.timestamp() - began
        lane = next((number for number, end in enumerate(free) if end <= start), len(free))
        if lane < _MAX_LANES:
            free[lane : lane + 1] = [start + turn.seconds]
        label = f"LLM call, turn {turn.index}{f' ({turn.auxiliary})' if turn.auxiliary else ''}"
        found.append(
            Piece(
                "call", start, turn.seconds, label, turn.index, min(lane, _MAX_LANES - 1), turn.reply is None
            )
        )
    return found


def _gaps(calls: Sequence[Piece], turns: Iterable[Turn], start: float, end: float) -> list[Piece]:
    """Return a piece for each time of the agent's phase in which no call runs."""
    by_index = {turn.index: turn for turn in turns}
    found: list[Piece] = []
    at, last = min([start, *(call.start for call in calls)]), None
    for call in calls:
        if call.start > at:
            found.append(_gap(at, call.start, None if last is None else by_index[last]))
        if call.end >= at:
            at, last = call.end, call.turn
    if end > at:
        found.append(_gap(at, end, None if last is None else by_index[last], ends=True))
    return found


def _gap(start: float, end: float, turn: Turn | None, ends: bool = False) -> Piece:
    """Return the time after the call `turn`: its tools run, or the agent does something else."""
    seconds = end - start
    if turn is None:
        return Piece("tools", start, seconds, "the agent, before its first call")
    said = [f"{name} {gist(arguments)}" for name, arguments, _ in calls_of(as_mapping(turn.reply))]
    if said:
        return Piece(
            "tools",
            start,
            seconds,
            one_line(f"tools of turn {turn.index}: {'; '.join(said)}", _LABEL),
            turn.index,
        )
    what = "the agent's end, after" if ends else "the agent, after"
    return Piece("tools", start, seconds, f"{what} turn {turn.index}", turn.index)
