"""The seconds of the pull relay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the protocol; the defaults keep it under 60 calls a minute at 20 LLM calls a minute.

    Args:
        open: How long it may take to start the program inside and to pull for the first time.
        hold: How long a pull lasts.
        poll: How long a pull lasts where a proxy holds answers back until they are whole.
        tick: How often a pull with nothing to say gives a sign of life.
        patience: How late such a sign may be before the pull is given up.
        push: How long a push, or what is left of a poll, may take.
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
        """It worked: the next failure is a first one."""
        self._next = self._timing.retry

    def pause(self) -> float:
        """How long to pause now, seconds."""
        pause = self._next
        self._next = min(2 * pause, self._timing.retry_most)
        return pause
