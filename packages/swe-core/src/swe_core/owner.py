"""Which process owns a sandbox, so that the next run can reap what a killed one left behind."""

from __future__ import annotations

import os
import platform
from pathlib import Path

LABEL = "swe-core.owner"
"""The label under which a provider stores `current_owner()` on what it starts."""


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "-"


def _start_time(pid: int) -> str | None:
    """Field 22 of proc(5) stat: clock ticks from boot to the start of `pid`; None when it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def current_owner() -> str:
    """`host/boot id/pid/start time` of this process: unlike a bare pid it is never reused."""
    pid = os.getpid()
    return f"{platform.node()}/{_boot_id()}/{pid}/{_start_time(pid) or '-'}"


def is_abandoned(owner: str) -> bool:
    """Whether `owner` ran on this host and lives no more; False for other hosts, which we cannot judge."""
    try:
        host, boot, pid, started = owner.rsplit("/", 3)
        number = int(pid)
    except ValueError:
        return False
    if host != platform.node():
        return False
    return boot != _boot_id() or _start_time(number) != started
