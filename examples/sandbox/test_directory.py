"""What every sandbox provider must do, as swe-testing says. Each switch turns tests off."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from swe_core import SandboxProvider, SandboxSpec
from swe_core.errors import PolicyRefused
from swe_core.system.process_owner import current_owner
from swe_sandbox_directory import DirectoryConfig, DirectoryProvider, kept
from swe_testing.sandbox import SandboxConformance


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


class TestDirectory(SandboxConformance):
    isolates = False
    limits_memory = False
    limits_pids = False
    limits_disk = False

    @pytest.fixture
    def provider(self) -> SandboxProvider:
        return DirectoryProvider(DirectoryConfig(unisolated=True))

    @pytest.fixture
    def spec(self) -> SandboxSpec:
        return SandboxSpec()

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        return [str(path) for path, owner in kept() if owner == current_owner()]


def test_missing_isolation_must_be_accepted() -> None:
    with pytest.raises(PolicyRefused, match=r"set sandbox\.directory\.unisolated=true"):
        DirectoryProvider(DirectoryConfig()).check_supported(SandboxSpec())
