"""The host's kernel, as far as no namespace confines it."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_testing.sandbox.base import SandboxSuite, python

_OPEN_VSOCK = """
import socket
try:
    socket.socket(40, socket.SOCK_STREAM).close()  # AF_VSOCK, which not every Python names
    print("opened")
except OSError:
    print("refused")
"""

_SESSION_KEYRING = -3
_KEYCTL_UNLINK = 9
_KEY_CALLS = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}
"""The numbers of add_key, request_key and keyctl."""

# Looks for a key by its name and its number; prints how its payload, or its name, was visible.
_FIND_KEY = """
import ctypes, json, sys
name, payload, number, request_key, keyctl = (*map(str.encode, sys.argv[1:3]), *map(int, sys.argv[3:]))
libc = ctypes.CDLL(None)
libc.syscall.restype = ctypes.c_long
def call(*arguments):
    return libc.syscall(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
def holds(key):
    buffer = ctypes.create_string_buffer(100)
    return key > 0 and call(keyctl, 11, key, buffer, 100) > 0 and buffer.value == payload
session = -3
found = []
if holds(number):
    found.append("number")
if holds(call(keyctl, 10, session, b"user", name, 0)):
    found.append("search")
if holds(call(request_key, b"user", name, None, 0)):
    found.append("request")
try:
    if name in open("/proc/keys", "rb").read():
        found.append("list")
except OSError:
    pass
print(json.dumps(found))
"""


@contextmanager
def key_of_this_host() -> Iterator[list[str]]:
    """Add a key to this process's session keyring; yield the arguments of the program that finds it."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _KEY_CALLS:
        pytest.skip(f"the numbers of keyctl(2) and its like are not known for {sys.platform} on {machine}")
    add_key, request_key, keyctl = _KEY_CALLS[machine]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    session = ctypes.c_long(_SESSION_KEYRING)
    name, payload = f"swe-core-test-{secrets.token_hex(8)}", secrets.token_hex(8)
    number = libc.syscall(
        ctypes.c_long(add_key), b"user", name.encode(), payload.encode(), ctypes.c_long(len(payload)), session
    )
    if number < 0:
        pytest.skip(f"this host adds no key to a session keyring: {os.strerror(ctypes.get_errno())}")
    try:
        yield [name, payload, str(number), str(request_key), str(keyctl)]
    finally:
        libc.syscall(ctypes.c_long(keyctl), ctypes.c_long(_KEYCTL_UNLINK), ctypes.c_long(number), session)


class KernelTests(SandboxSuite):
    """Access to the host's kernel from inside."""

    async def test_no_vsock(self, sandbox: Sandbox) -> None:
        """AF_VSOCK ignores network namespaces: on a virtual machine it leads to the hypervisor."""
        if not (self.isolates and self.confines_vsock):
            pytest.skip("this provider does not confine AF_VSOCK")
        try:
            socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
        except (AttributeError, OSError) as error:
            pytest.skip(f"this host has no AF_VSOCK: {error}")
        assert await python(sandbox, _OPEN_VSOCK) == "refused\n"

    async def test_keyring_of_the_host(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """The session keyring of the user may hold passwords and tickets."""
        if not self.isolates:
            pytest.skip("this provider does not isolate")
        with key_of_this_host() as arguments:
            argv = [sys.executable, "-c", _FIND_KEY, *arguments]
            own = await anyio.run_process(argv)
            assert "search" in json.loads(own.stdout)  # or the next check would prove nothing
            async with provider.open(spec) as sandbox:
                assert json.loads(await python(sandbox, _FIND_KEY, *arguments)) == []
