"""The system calls that code in a container may make, as a profile for the engine.

It takes the place of the engine's own, which differs from version to version: before Docker Engine 23 that
one lets a container open AF_VSOCK sockets, which lead out of every network namespace, and before 25
io_uring. Ours allows what syscalls.txt names, a few more by their arguments, and nothing else. It is for no
architecture but the machine's own: a 32-bit program, whose socketcall(2) no filter can look into, is killed
at its first call.
"""

from __future__ import annotations

import errno
import json
from functools import cache
from importlib import resources
from typing import Any

MACHINES = ("x86_64", "aarch64")
"""The machines that the profile is for: on others calls have other arguments."""
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""The socket families that code inside may use (linux/socket.h)."""
MISSING = (
    "add_key", "bpf", "clone3", "io_uring_enter", "io_uring_register", "io_uring_setup", "keyctl",
    "perf_event_open", "request_key", "userfaultfd",
)  # fmt: skip
"""The calls that look as if the kernel did not have them, so that programs fall back: clone3(2) above all,
whose flags a filter cannot see. Whatever else is not allowed ends in EPERM."""

_TRACING = ("process_vm_readv", "process_vm_writev", "ptrace")
_TRACING_SINCE = "4.8"  # before, ptrace(2) led past a filter
_NAMESPACES = 0x7E020000  # CLONE_NEW* (linux/sched.h)
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)  # 32-bit and uname26 on and off, and the question
_INT = 0xFFFFFFFF  # of a register the half that the kernel takes


@cache
def profile() -> str:
    """The profile as the engine wants it: JSON, with the keys of moby's seccomp profiles."""
    text = resources.files(__package__).joinpath("syscalls.txt").read_text(encoding="utf-8")
    names = [name for line in text.splitlines() if not line.startswith("#") for name in line.split()]
    rules: list[dict[str, Any]] = [
        _allow(*names),
        {**_allow(*_TRACING), "includes": {"minKernel": _TRACING_SINCE}},
        _allow("clone", mask=_NAMESPACES, value=0),
        *(_allow("personality", mask=_INT, value=value) for value in _PERSONALITIES),
        *(_allow("socket", "socketpair", mask=_INT, value=family) for family in FAMILIES.values()),
        {"names": list(MISSING), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules})


def _allow(*names: str, mask: int | None = None, value: int = 0) -> dict[str, Any]:
    """A rule that allows calls; with `mask` only where it leaves `value` of their first argument."""
    rule: dict[str, Any] = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    if mask is not None:
        rule["args"] = [{"index": 0, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}]
    return rule
