"""Which process owns a sandbox, so that the next run can reap what a killed one left behind."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Literal

LABEL = "swe-core.owner"
"""The label under which a provider stores `current_owner()` on what it starts."""

OwnerState = Literal["alive", "gone", "unknown"]
"""Whether an owner still runs; "unknown" where that cannot be judged from here."""

_PROC = Path("/proc")  # not there on every system
_MACHINE_ID = Path("/etc/machine-id")


def _host() -> str:
    """The name of this machine, with a mark of the machine itself where it has one: sandboxes of a service
    are seen from everywhere, and names such as `localhost` are borne by many."""
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
    """Field 22 of proc(5) stat: clock ticks from boot to the start of `pid`; None when it does not run. Where
    there is no such file system it is `-`."""
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
    """The pid namespace in which our pids mean something: containers may share a host's name and boot."""
    try:
        return str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return "-"


def current_owner() -> str:
    """`host/boot id/pid namespace/pid/start time` of this process: unlike a bare pid it is never reused."""
    pid = os.getpid()
    return f"{_host()}/{_boot_id()}/{_namespace()}/{pid}/{_start_time(pid) or '-'}"


def process_state(owner: str) -> OwnerState:
    """Whether `owner` still runs; "unknown" for those that cannot be judged from here: of other hosts, and of
    other pid namespaces of this boot."""
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
    """Whether `owner` is known to run no more: what it left may be destroyed."""
    return process_state(owner) == "gone"
