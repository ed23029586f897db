"""The k8s sandbox, the real clients against the local Kubernetes: what every sandbox must do."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.provider import K8sProvider
from swe_testing.k8s import LocalK8s
from swe_testing.sandbox import SandboxConformance

pytestmark = pytest.mark.anyio


class TestK8s(SandboxConformance):
    """What every sandbox must do, but for the limits, which the local Kubernetes does not enforce."""

    limits_memory = False
    limits_pids = False
    limits_disk = False

    @pytest.fixture
    def provider(self, local_k8s: LocalK8s) -> K8sProvider:
        self.cluster = local_k8s
        return K8sProvider(K8sConfig())

    @pytest.fixture
    def spec(self) -> SandboxSpec:
        return SandboxSpec(image="python:3.12")

    async def test_notes(self, provider: SandboxProvider) -> None:  # async, for its fixture is
        super().test_notes(provider)

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.pods()]
