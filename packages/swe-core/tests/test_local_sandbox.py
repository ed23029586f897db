"""The sandbox "local": the shared behaviour, and what is its own."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from swe_core.builtin.local import state
from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.builtin.local.provider import LocalProvider
from swe_core.owner import current_owner
from swe_core.sandbox import SandboxProvider, SandboxSpec
from swe_core.testing.sandbox import SandboxConformance
from swe_core.testing.sandbox.base import drain

OBSTACLE = why_not(find_bwrap())
needs_namespaces = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))


def left_by_us() -> list[str]:
    """Directories, cgroups and processes of sandboxes that this process owns."""
    found = []
    for directory in state.root().iterdir():
        record = directory / "owner.json"
        if record.exists() and current_owner() in record.read_text():
            found.append(str(directory))
    for children in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for pid in children.read_text().split():
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"supervisor.py" in command:
                found.append(f"process {pid}")
    return found


@needs_namespaces
class TestLocal(SandboxConformance):
    @pytest.fixture
    def provider(self) -> SandboxProvider:
        return LocalProvider()

    @pytest.fixture
    def spec(self) -> SandboxSpec:
        return SandboxSpec(disk_mb=256)

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        return left_by_us()

    async def test_commands_killed_just_when_they_end(
        self, provider: SandboxProvider, spec: SandboxSpec
    ) -> None:
        """The supervisor hears of the end and of the kill at the same time; it outlives both orders."""
        async with provider.open(spec) as sandbox:
            for _ in range(300):
                process = await sandbox.start(["true"])
                await drain(process)
                assert await process.wait() == 0
                await process.kill()
