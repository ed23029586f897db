"""Fixtures and helpers of the sandbox suite."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection

import anyio
import pytest

from swe_core.api.contracts import opened
from swe_core.api.sandbox import Process, Sandbox, SandboxProvider, SandboxSpec

PATIENCE = 120.0
"""Seconds until something that should happen at once has failed."""


class SandboxSuite:
    """Base of the suite. A subclass provides the fixtures `provider` and `spec`, and `leftovers`.

    The class attributes say what a provider cannot do. Each turns tests off, so set one only where the
    provider says the same in its `notes()` or documentation.
    """

    pytestmark = pytest.mark.anyio

    isolates = True
    """The sandbox sees no files, processes or addresses of the host, and paths are as in the contract."""
    limits_memory = True
    """`spec.memory_mb` is enforced."""
    limits_pids = True
    """`spec.pids` is enforced."""
    limits_disk = True
    """`spec.disk_mb` is enforced."""
    confines_vsock = True
    """Code inside cannot open AF_VSOCK sockets, which a network namespace does not confine."""

    @pytest.fixture
    def provider(self) -> SandboxProvider:
        """The provider under test."""
        raise NotImplementedError("give a fixture 'provider' that returns your SandboxProvider")

    @pytest.fixture
    def spec(self) -> SandboxSpec:
        """A spec that `provider` opens, with network "llm" and no repository."""
        raise NotImplementedError("give a fixture 'spec' that returns a SandboxSpec that your provider opens")

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        """Return what exists on the host for sandboxes of this process: containers, directories, …"""
        raise NotImplementedError("define 'leftovers' to list what your provider has running on the host")

    @pytest.fixture
    async def sandbox(self, provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """One open sandbox."""
        async with opened(provider, spec) as sandbox:
            yield sandbox


def unique_seconds() -> str:
    """Return a long, unique duration for `sleep`, which identifies the process."""
    return f"1000.{secrets.randbelow(10**9):09}"


async def runs(sandbox: Sandbox, marker: str) -> bool:
    """Return whether a process with `marker` among its arguments runs in the sandbox."""
    script = 'for file in /proc/[0-9]*/cmdline; do tr "\\0" " " <"$file"; echo; done 2>/dev/null'
    listed = await sandbox.exec(["sh", "-c", script])
    return marker in listed.text


async def until_runs(sandbox: Sandbox, marker: str) -> None:
    """Wait until a process with `marker` among its arguments runs."""
    with anyio.fail_after(PATIENCE):
        while not await runs(sandbox, marker):  # noqa: ASYNC110 (nothing inside tells us)
            await anyio.sleep(0.02)


async def python(sandbox: Sandbox, program: str, *arguments: str, timeout: float = PATIENCE) -> str:
    """Run a Python program inside and return what it prints; it must succeed."""
    done = await sandbox.exec(["python3", "-c", program, *arguments], timeout=timeout)
    assert done.exit_code == 0, done.stderr.decode(errors="replace")
    return done.text


async def drain(process: Process) -> bytes:
    """Return everything that a process prints to stdout."""
    return b"".join([chunk async for stream, chunk in process.output() if stream == "stdout"])
