"""The sandbox `openenv` at a real server: what every sandbox must do."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_openenv.play import sandbox as module
from swe_openenv.play.config import PlaySandboxConfig
from swe_openenv.play.provider import PlayProvider
from swe_testing.sandbox import SandboxConformance, files

from .playground import Played

pytestmark = pytest.mark.anyio
OWN = "an environment has a repository of its own, and no other one can be brought in"


class TestOpenEnv(SandboxConformance):
    """The whole suite, but for limits and repositories, which are the server's: `notes` says so.

    What the sandbox isolates is the server's as well; that of these tests runs its shell in a local sandbox.
    """

    limits_memory = False
    limits_pids = False
    limits_disk = False

    @pytest.fixture
    def provider(self, played: Played) -> PlayProvider:
        self.ground = played.ground
        return PlayProvider(PlaySandboxConfig(internet=True))

    @pytest.fixture
    def spec(self, played: Played) -> SandboxSpec:
        return SandboxSpec(image=played.image())

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        return self.ground.open

    async def test_assets(
        self,
        provider: SandboxProvider,
        spec: SandboxSpec,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """In a place that the shell of this server may write."""
        for used in (files, module):
            monkeypatch.setattr(used, "ASSETS_DIR", "/tmp/assets")
        await super().test_assets(provider, spec, tmp_path)

    @pytest.mark.slow
    async def test_big_output_streams(self, sandbox: Sandbox) -> None:
        """A tool's reply has 192 KiB of it."""
        await super().test_big_output_streams(sandbox)

    @pytest.mark.slow
    async def test_reach_carries_big_bodies(self, sandbox: Sandbox) -> None:
        """For the same reason."""
        await super().test_reach_carries_big_bodies(sandbox)

    @pytest.mark.skip(reason=OWN)
    async def test_repository_is_private(self) -> None: ...  # type: ignore[override]  # takes no fixtures

    @pytest.mark.skip(reason=OWN)
    async def test_links_in_the_repository_are_no_way_out(self) -> None: ...  # type: ignore[override]  # takes no fixtures

    @pytest.mark.skip(reason=OWN)
    async def test_protect(self) -> None: ...  # type: ignore[override]  # takes no fixtures
