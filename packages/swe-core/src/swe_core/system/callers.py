"""Callers: when the processes were born that a relay carries connections for, as far as it can prove that.

A relay and the server that it leads to are in one process: the server asks by the peer of a connection.
"""

from __future__ import annotations

import math
import time

TICK = 0.01
"""Seconds by which the birth of a process may be before its time in `/proc`, which Linux counts in ticks."""
HIDDEN = math.inf
"""The birth of a process of which the relay saw no more than that it hides, which the agent's does not."""
_born: dict[tuple[str, int], float] = {}


def boot_time() -> float:
    """Return the seconds since the kernel's start, of which the births of its processes are."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def note(address: tuple[str, int], born: float | None) -> None:
    """Note who is behind a connection from `address` of this host, until it ends; None where unknown."""
    _born.pop(address, None)
    if born is not None:
        _born[address] = born


def born(address: object) -> float | None:
    """Return when the process behind a connection was born, in `boot_time`; None where unknown."""
    return _born.get(address[:2]) if isinstance(address, tuple) else None
