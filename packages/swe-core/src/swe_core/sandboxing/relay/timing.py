"""Time limits and pauses of the pull relay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the protocol; the defaults keep it under 60 calls a minute at 20 LLM calls a minute.

    Args:
        open: From the start of the program inside to the first pull.
        hold: Length of a pull.
        poll: Length of a pull through a proxy that holds answers back until they are complete.
        tick: Interval between signs of life in an idle pull.
        patience: Delay of a sign of life after which the pull is given up.
        push: Length of a push, or of the rest of a poll.
        retry: The first pause after a failure; each next one is twice as long.
        retry_most: The longest pause.
    """

    open: float = 90.0
    hold: float = 50.0
    poll: float = 25.0
    tick: float = 10.0
    patience: float = 5.0
    push: float = 30.0
    retry: float = 0.1
    retry_most: float = 5.0


class Backoff:
    """Pauses that grow from failure to failure."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._next = timing.retry

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._next = self._timing.retry

    def pause(self) -> float:
        """Return the next pause, seconds."""
        pause = self._next
        self._next = min(2 * pause, self._timing.retry_most)
        return pause
