"""`reach_by_pull` does what every `Sandbox.reach` must do, over both of the ways that ship with it."""

from __future__ import annotations

import pytest

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.builtin.local.provider import LocalProvider
from swe_testing.sandbox import NetworkTests

from .helpers import PullProvider, by_exec, by_proxy

OBSTACLE = why_not(find_bwrap())
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))


class _Reached(NetworkTests):
    @pytest.fixture
    def spec(self) -> SandboxSpec:
        return SandboxSpec(disk_mb=256)


class TestByExec(_Reached):
    @pytest.fixture
    def provider(self) -> SandboxProvider:
        return PullProvider(LocalProvider(), by_exec)


@pytest.mark.slow  # other tests call through proxies, and sandboxes of Hugging Face pass the same suite
class TestByProxy(_Reached):
    @pytest.fixture
    def provider(self) -> SandboxProvider:
        return PullProvider(LocalProvider(), by_proxy)
