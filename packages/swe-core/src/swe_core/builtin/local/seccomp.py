"""The system calls that code inside a sandbox cannot make, as a filter for the kernel.

Namespaces do not confine everything: the kernel's keyrings are those of the user of the run, AF_VSOCK
sockets lead out of every network namespace, and some large interfaces are of no use to a task. The filter is
a classic BPF program over `struct seccomp_data` (linux/seccomp.h, linux/filter.h), which bubblewrap installs
just before it starts the supervisor; all processes inside inherit it, and none can remove it.

A denied call looks as if the kernel lacked it, so programs fall back: ENOSYS, or EAFNOSUPPORT for a
socket's family. Programs of another architecture than the machine's (32-bit ones) cannot run at all: their
calls have other numbers.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""The socket families that code inside may use (linux/socket.h)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the filter has to know of an architecture.

    Args:
        audit: Its AUDIT_ARCH_* (linux/audit.h).
        socket: The number of socket(2).
        denied: The numbers of the calls that do not exist inside.
        foreign: The first number of another ABI under the same AUDIT_ARCH_*; None without one.
    """

    audit: int
    socket: int
    denied: Mapping[str, int]
    foreign: int | None = None


MACHINES = {
    # arch/x86/entry/syscalls/syscall_64.tbl; x32 sets __X32_SYSCALL_BIT (asm/unistd.h)
    "x86_64": Machine(
        audit=0xC000003E,
        socket=41,
        denied={
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "perf_event_open": 298,
            "bpf": 321,
            "userfaultfd": 323,
            "io_uring_setup": 425,  # its requests open sockets past this filter
        },
        foreign=0x40000000,
    ),
    # asm-generic/unistd.h
    "aarch64": Machine(
        audit=0xC00000B7,
        socket=198,
        denied={
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "bpf": 280,
            "userfaultfd": 282,
            "io_uring_setup": 425,
        },
    ),
}

# linux/filter.h: BPF_LD | BPF_W | BPF_ABS, and so on
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
# linux/seccomp.h: offsets in struct seccomp_data; of an argument the low half, for both are little-endian
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def this_machine() -> Machine | None:
    """Return the machine that this process runs on; None where the filter is not written for it."""
    if sys.maxsize < 2**32:  # a 32-bit Python on a 64-bit kernel: the supervisor could not run
        return None
    return MACHINES.get(platform.machine())


def program(machine: Machine) -> bytes:
    """Return the filter, as the array of `struct sock_filter` that bubblewrap's --seccomp reads."""
    missing = _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    allow = _instruction(_RETURN, _ALLOW)
    lines = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, machine.audit, yes=1),
        missing,
        _instruction(_LOAD, _NUMBER),
    ]
    if machine.foreign is not None:
        lines += [_instruction(_AT_LEAST, machine.foreign, no=1), missing]
    for number in machine.denied.values():
        lines += [_instruction(_EQUAL, number, no=1), missing]
    lines += [_instruction(_EQUAL, machine.socket, yes=1), allow, _instruction(_LOAD, _ARGUMENT)]
    for family in FAMILIES.values():
        lines += [_instruction(_EQUAL, family, no=1), allow]
    lines.append(_instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT))
    return b"".join(lines)


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """Return one `struct sock_filter`. `yes` and `no`: how many instructions a comparison skips."""
    return struct.pack("<HBBI", code, yes, no, value)
