"""The seccomp profile of containers.

It replaces the engine's own profile, which depends on the engine's version: before Docker Engine 23 it
permits AF_VSOCK sockets, which leave every network namespace, and before 25 io_uring. This profile allows the
calls of syscalls.txt, and a few more with certain arguments. It covers only the machine's own architecture: a
32-bit program, whose socketcall(2) no filter can inspect, is killed at its first call.
"""

from __future__ import annotations

import errno
import json
from functools import cache
from importlib import resources
from typing import Any

MACHINES = ("x86_64", "aarch64")
"""Architectures that the profile supports. On others, calls have other arguments."""
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""Socket families that code inside may use (linux/socket.h)."""
MISSING = (
    "add_key", "bpf", "clone3", "io_uring_enter", "io_uring_register", "io_uring_setup", "keyctl",
    "perf_event_open", "request_key", "userfaultfd",
)  # fmt: skip
"""Calls that fail with ENOSYS, so that programs fall back to others. The most important is clone3(2), whose
flags a filter cannot see. All other forbidden calls fail with EPERM."""

_TRACING = ("process_vm_readv", "process_vm_writev", "ptrace")
_TRACING_SINCE = "4.8"  # before 4.8, ptrace(2) could bypass a filter
_NAMESPACES = 0x7E020000  # CLONE_NEW* (linux/sched.h)
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)  # 32-bit and uname26 on and off, and the query
_INT = 0xFFFFFFFF  # the half of a register that the kernel reads


@cache
def profile() -> str:
    """Return the profile as JSON, in the format of moby's seccomp profiles."""
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
    """Return a rule that allows calls; with `mask`, only those whose masked first argument is `value`."""
    rule: dict[str, Any] = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    if mask is not None:
        rule["args"] = [{"index": 0, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}]
    return rule
