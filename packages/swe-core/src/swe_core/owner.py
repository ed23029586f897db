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


def _namespace() -> str:
    """The pid namespace in which our pids mean something: containers may share a host's name and boot."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "-"


def current_owner() -> str:
    """`host/boot id/pid namespace/pid/start time` of this process: unlike a bare pid it is never reused."""
    pid = os.getpid()
    return f"{platform.node()}/{_boot_id()}/{_namespace()}/{pid}/{_start_time(pid) or '-'}"


def is_abandoned(owner: str) -> bool:
    """Whether `owner` ran on this host and lives no more; False for those that we cannot judge: of other
    hosts, and of other pid namespaces of this boot."""
    try:
        host, boot, namespace, pid, started = owner.rsplit("/", 4)
        number = int(pid)
    except ValueError:
        return False
    if host != platform.node():
        return False
    if boot != _boot_id():
        return True
    return namespace == _namespace() and _start_time(number) != started
