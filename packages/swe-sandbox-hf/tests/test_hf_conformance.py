"""The hf sandbox, the real client against the local HF: what every sandbox must do."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.provider import HfProvider
from swe_testing.hf import LocalHF
from swe_testing.sandbox import SandboxConformance


class TestHf(SandboxConformance):
    """What every sandbox must do, but for what no flavor limits: `notes` says so."""

    limits_memory = False
    limits_pids = False
    limits_disk = False

    @pytest.fixture
    def provider(self, local_hf: LocalHF) -> HfProvider:
        self.hf = local_hf
        return HfProvider(HfConfig(internet=True))

    @pytest.fixture
    def spec(self) -> SandboxSpec:
        return SandboxSpec(image="python:3.12")

    async def test_notes(self, provider: SandboxProvider) -> None:  # async, for its fixture is
        super().test_notes(provider)

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        return [job.id for job in self.hf.jobs.running()]
