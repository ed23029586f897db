"""`reach_by_pull` passes the conformance suite of `Sandbox.reach`."""

from __future__ import annotations

import pytest

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.builtin.local.provider import LocalProvider
from swe_testing.sandbox import NetworkTests

from .helpers import PullProvider

OBSTACLE = why_not(find_bwrap())
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))


class TestPullReach(NetworkTests):
    @pytest.fixture
    def spec(self) -> SandboxSpec:
        return SandboxSpec(disk_mb=256)

    @pytest.fixture
    def provider(self) -> SandboxProvider:
        return PullProvider(LocalProvider())
