"""The system call filter of local sandboxes: its program, and what the kernel makes of it."""

from __future__ import annotations

import errno
import json
import platform
import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.sandbox import SandboxSpec
from swe_core.builtin.local import bwrap, seccomp
from swe_core.builtin.local.provider import LocalProvider

OBSTACLE = bwrap.why_not(bwrap.find_bwrap())
ALLOW = 0x7FFF0000
I386, X32_BIT = 0x40000003, 0x40000000
SPEC = SandboxSpec(disk_mb=64)

machines = st.sampled_from(list(seccomp.MACHINES.values()))
words = st.integers(0, 2**32 - 1)


def evaluate(program: bytes, audit: int, number: int, argument: int) -> int:
    """What the kernel's interpreter returns: 0 where the call is allowed, else its errno."""
    data = struct.pack("<IIQ6Q", number, audit, 0, argument, *[2**64 - 1] * 5)
    instructions = list(struct.iter_unpack("<HBBI", program))
    position = value = 0
    while True:
        code, yes, no, operand = instructions[position]
        position += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                position += yes if value == operand else no
            case 0x35:
                position += yes if value >= operand else no
            case 0x06 if operand == ALLOW:
                return 0
            case 0x06 if operand >> 16 == 0x0005:
                return int(operand & 0xFFFF)
            case _:
                raise AssertionError(f"no such instruction: {code:#x} {operand:#x}")


@given(machines, words, st.integers(0, 2**64 - 1))
def test_filter_allows_listed_socket_families_only(machine: seccomp.Machine, family: int, upper: int) -> None:
    """The kernel takes the family as an int: the upper half of the register does not count."""
    argument = family | (upper << 32) & (2**64 - 1)
    expected = 0 if family in seccomp.FAMILIES.values() else errno.EAFNOSUPPORT
    assert evaluate(seccomp.program(machine), machine.audit, machine.socket, argument) == expected


def test_filter_knows_each_family_and_denied_call() -> None:
    for machine in seccomp.MACHINES.values():
        program = seccomp.program(machine)
        for family in seccomp.FAMILIES:
            argument = int(getattr(socket, family))
            assert evaluate(program, machine.audit, machine.socket, argument) == 0, family
        for call, number in machine.denied.items():
            assert evaluate(program, machine.audit, number, 0) == errno.ENOSYS, call


@given(machines, words, words)
def test_filter_allows_other_calls(machine: seccomp.Machine, number: int, argument: int) -> None:
    special = number == machine.socket or number in machine.denied.values()
    foreign = machine.foreign is not None and number >= machine.foreign
    if not special:
        expected = errno.ENOSYS if foreign else 0
        assert evaluate(seccomp.program(machine), machine.audit, number, argument) == expected


@given(machines, words, words)
def test_filter_denies_other_architectures(machine: seccomp.Machine, audit: int, number: int) -> None:
    program = seccomp.program(machine)
    for other in (audit, I386):
        if other != machine.audit:
            assert evaluate(program, other, number, 1) == errno.ENOSYS
    machine = seccomp.MACHINES["x86_64"]
    assert evaluate(seccomp.program(machine), machine.audit, X32_BIT | machine.socket, 1) == errno.ENOSYS


_TRY = """
import ctypes, json, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
found = {}
for name, number in json.loads(sys.argv[1]).items():
    # -1 is no address, no descriptor and no size: the call itself would fail too, with another errno
    libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 5)
    found[name] = ctypes.get_errno()
for family in range(1, 46):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_DGRAM).close()
        found[family] = 0
    except OSError as error:
        found[family] = error.errno
print(json.dumps(found))
"""


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("network", ["llm", pytest.param("none", marks=pytest.mark.slow), "full"])
async def test_kernel_applies_the_filter(network: str) -> None:
    machine = seccomp.this_machine()
    if machine is None:
        pytest.skip(f"there is no filter for {platform.machine()!r}")
    async with LocalProvider().open(SPEC.model_copy(update={"network": network})) as sandbox:
        done = await sandbox.exec(["python3", "-c", _TRY, json.dumps(machine.denied)], timeout=30)
    found = json.loads(done.stdout)
    assert {name: found.pop(name) for name in machine.denied} == dict.fromkeys(machine.denied, errno.ENOSYS)
    for family in ("AF_UNIX", "AF_INET", "AF_NETLINK"):  # and AF_INET6, where this kernel has it
        assert found.pop(str(seccomp.FAMILIES[family])) == 0, family
    del found[str(seccomp.FAMILIES["AF_INET6"])]
    assert set(found.values()) == {errno.EAFNOSUPPORT}


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("change", [("machine", "riscv64"), ("maxsize", 2**31 - 1)])
async def test_machine_without_filter_has_a_note(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, object]
) -> None:
    if seccomp.this_machine() is not None:
        assert not any("filter" in note for note in LocalProvider().notes())
    name, value = change
    if name == "machine":
        monkeypatch.setattr(platform, "machine", lambda: value)
    else:
        monkeypatch.setattr(sys, "maxsize", value)
    provider = LocalProvider()
    (note,) = [note for note in provider.notes() if "filter" in note]
    assert "keyrings" in note
    assert "AF_VSOCK" in note
    async with provider.open(SPEC) as sandbox:
        status = await sandbox.read("/proc/self/status")
    assert b"\nSeccomp:\t2" not in status
