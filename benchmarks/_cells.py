"""What `interception` asks of each proxy: the cells of its table, by name."""

from __future__ import annotations

from dataclasses import dataclass

from _workload import LONG_TURNS

KILOBYTES = 2048
SESSION_TURNS = 40
CONNECTIONS = 8
_PACE = 0.02


@dataclass(frozen=True)
class Cell:
    """Some requests that are measured together.

    Args:
        requests: "unrelated" ones, those of a "session" or a "long" one, or unrelated ones in "parallel".
        replies: Which ones the engine gives.
        streamed: Whether they ask for streams.
        interval: How many tokens an event of the engine's streams holds at most; None leaves it to the
            proxy's requests.
        pace: Seconds from one token to the next.
    """

    title: str
    requests: str
    replies: str = "short"
    streamed: bool = False
    interval: int | None = None
    pace: float = 0.0


_TURNS = f"{SESSION_TURNS} turns × 2 KB"
CELLS = {
    "unrelated": Cell("2 KB requests", "unrelated"),
    "session": Cell(_TURNS, "session"),
    "long": Cell(f"{LONG_TURNS} turns to 74k tokens", "long"),
    "parallel": Cell(f"2 KB requests, {CONNECTIONS} at once", "parallel"),
    "streamed": Cell("2 KB requests, streamed", "unrelated", streamed=True, interval=1),
    "streamed_session": Cell(f"{_TURNS}, streamed", "session", streamed=True, interval=1),
    "streamed_growing": Cell(f"{LONG_TURNS} turns, streamed", "long", streamed=True, interval=1),
    "streamed_8": Cell("2 KB requests, interval 8", "unrelated", streamed=True, interval=8),
    "streamed_session_8": Cell(f"{_TURNS}, interval 8", "session", streamed=True, interval=8),
    "streamed_long": Cell("4,000 tokens streamed", "unrelated", "long", streamed=True, interval=1),
    "paced": Cell(
        f"{CONNECTIONS} streams at once, paced", "parallel", "paced", streamed=True, interval=1, pace=_PACE
    ),
}
