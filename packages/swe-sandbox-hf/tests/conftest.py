"""What the tests of the hf sandbox share: a provider for the local HF, with which it stands and falls."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.api.sandbox import Asset, SandboxSpec
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.provider import HfProvider
from swe_testing.hf import LocalHF
from swe_testing.sandbox import ESSENTIAL, SandboxConformance


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark what is slow of a suite that is not written here."""
    if issubclass(item.cls or object, SandboxConformance) and item.name not in ESSENTIAL:
        item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Archives of what tests make are of no use to anybody else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
async def provider(local_hf: LocalHF) -> HfProvider:
    """One that accepts the internet, of which the local HF has none."""
    return HfProvider(HfConfig(internet=True))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few attempts, where none can help."""
    for module in ("client", "provider", "assets"):
        monkeypatch.setattr(f"swe_sandbox_hf.{module}.ATTEMPTS", 2)


@pytest.fixture
def spec() -> SandboxSpec:
    """An image that the local HF has."""
    return SandboxSpec(image="python:3.12")


@pytest.fixture
def asset(tmp_path: Path) -> Asset:
    """With a file, a program and a link."""
    path = tmp_path / "asset"
    (path / "bin").mkdir(parents=True)
    (path / "file").write_text("of the agent")
    (path / "bin" / "program").write_text("#!/bin/sh\necho it runs\n")
    (path / "bin" / "program").chmod(0o755)
    (path / "link").symlink_to("bin/program")
    return Asset(name="mine", path=path, digest="1")


@pytest.fixture
def with_asset(spec: SandboxSpec, asset: Asset) -> SandboxSpec:
    """What an agent's sandbox is."""
    return spec.model_copy(update={"assets": (asset,)})
