"""Identify the process that owns a sandbox, so that a later run can reap sandboxes of a killed one."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Literal

LABEL = "swe-core.owner"
"""The label under which a provider stores `current_owner()` on what it starts."""

OwnerState = Literal["alive", "gone", "unknown"]
"""State of an owner process. "unknown" where this machine cannot tell."""

_PROC = Path("/proc")  # not there on every system
_MACHINE_ID = Path("/etc/machine-id")


def _host() -> str:
    """Return the host name with a hash of the machine id where there is one, since names are not unique."""
    try:
        machine = _MACHINE_ID.read_bytes().strip()
    except OSError:
        return platform.node()
    # machine-id(5) asks not to show the id itself, but a hash of it keyed by the application.
    return f"{platform.node()}.{hashlib.blake2b(machine, digest_size=6, person=b'swe-core').hexdigest()}"


def _boot_id() -> str:
    path = _PROC / "sys/kernel/random/boot_id"
    return path.read_text().strip() if path.exists() else "-"


def _start_time(pid: int) -> str | None:
    """Return the start time of `pid`, clock ticks since boot (proc(5), stat, field 22).

    None where the process does not run, `-` where there is no /proc.
    """
    if not _PROC.exists():
        return "-" if _runs(pid) else None
    try:
        fields = (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def _namespace() -> str:
    """Return the pid namespace of this process: containers may share a host's name and boot id."""
    try:
        return str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return "-"


def current_owner() -> str:
    """Return `host/boot id/pid namespace/pid/start time` of this process, which is never reused."""
    pid = os.getpid()
    return f"{_host()}/{_boot_id()}/{_namespace()}/{pid}/{_start_time(pid) or '-'}"


def process_state(owner: str) -> OwnerState:
    """Return the state of `owner`; "unknown" on another host or in another pid namespace of this boot."""
    try:
        host, boot, namespace, pid, started = owner.rsplit("/", 4)
        number = int(pid)
    except ValueError:
        return "unknown"
    if host != _host():
        return "unknown"
    if boot != _boot_id():
        return "gone"
    if namespace != _namespace():
        return "unknown"
    return "alive" if _start_time(number) == started else "gone"


def is_orphaned(owner: str) -> bool:
    """Return whether `owner` has certainly exited, so that its sandboxes may be destroyed."""
    return process_state(owner) == "gone"
