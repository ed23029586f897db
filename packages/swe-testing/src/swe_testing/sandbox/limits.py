"""Limits of processes, memory and disk; the sandbox survives each violation."""

from __future__ import annotations

import anyio
import pytest

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.errors import SandboxError
from swe_testing.sandbox.base import PATIENCE, SandboxSuite, python

_SPAWN = """
import subprocess
count = 0
try:
    while count < 200:
        subprocess.Popen(["sleep", "1000"])
        count += 1
except OSError:
    pass
print(count)
"""
_FORK_BOMB = "bomb() { bomb | bomb & }; bomb & exec sleep 1000"  # forks once itself: a second could fail


class LimitTests(SandboxSuite):
    """`spec.pids`, `spec.memory_mb`, `spec.disk_mb`."""

    async def test_processes_are_limited(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """One process too many cannot start; the others and the sandbox continue."""
        if not self.limits_pids:
            pytest.skip("this provider does not limit processes")
        async with provider.open(spec.model_copy(update={"pids": 40})) as sandbox:
            assert 20 <= int(await python(sandbox, _SPAWN)) <= 45
            await sandbox.kill_all()
            assert (await sandbox.exec(["echo", "usable"])).stdout == b"usable\n"

    async def test_fork_bomb(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """`kill_all` ends a fork bomb, and the sandbox is usable after it."""
        if not self.limits_pids:
            pytest.skip("this provider does not limit processes: a fork bomb would hit this machine")
        async with provider.open(spec.model_copy(update={"pids": 64})) as sandbox:
            await sandbox.start(["sh", "-c", _FORK_BOMB])
            await anyio.sleep(0.5)
            with anyio.fail_after(PATIENCE):
                await sandbox.kill_all()
                done = await sandbox.exec(["sh", "-c", "ls /proc | grep -c '^[0-9]'"])
            assert done.exit_code == 0
            assert int(done.text) < 15

    async def test_timeout_of_a_fork_bomb(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """A time-out ends before its command has filled the sandbox for good."""
        if not self.limits_pids:
            pytest.skip("this provider does not limit processes: a fork bomb would hit this machine")
        async with provider.open(spec.model_copy(update={"pids": 64})) as sandbox:
            with anyio.fail_after(PATIENCE):
                with pytest.raises(TimeoutError):
                    await sandbox.exec(["sh", "-c", _FORK_BOMB], timeout=0.5)
                await sandbox.kill_all()
                assert (await sandbox.exec(["echo", "usable"])).stdout == b"usable\n"

    async def test_memory_is_limited(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """A process that takes too much fails or dies; the sandbox continues."""
        if not self.limits_memory:
            pytest.skip("this provider does not limit memory")
        async with provider.open(spec.model_copy(update={"memory_mb": 128, "disk_mb": 64})) as sandbox:
            hog = await sandbox.exec(["python3", "-c", "x = b'x' * 10**9; print(len(x))"], timeout=PATIENCE)
            assert hog.exit_code in (1, 137)  # MemoryError, or killed
            assert hog.stdout == b""
            modest = await sandbox.exec(["python3", "-c", "x = b'x' * 10**7; print(len(x))"])
            assert modest.stdout == b"10000000\n"

    async def test_disk_is_limited(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """A command on a full disk fails at once, and succeeds when there is room again."""
        if not self.limits_disk:
            pytest.skip("this provider does not limit the disk")
        async with provider.open(spec.model_copy(update={"disk_mb": 24})) as sandbox:
            for directory in (spec.workdir, "/tmp"):
                file = f"{directory}/big"
                fill = await sandbox.exec(
                    ["sh", "-c", f"head -c 100000000 /dev/zero >{file}"], timeout=PATIENCE
                )
                assert fill.exit_code not in (0, 137)
                assert b"No space left" in fill.stderr
                with pytest.raises(SandboxError, match="No space left"):
                    await sandbox.write(f"{directory}/more", bytes(10**6))
                await sandbox.exec(["rm", file])
                await sandbox.write(f"{directory}/more", bytes(10**6))
