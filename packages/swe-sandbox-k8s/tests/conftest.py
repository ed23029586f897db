"""What the tests of the k8s sandbox share: a provider for the local Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.provider import K8sProvider
from swe_testing.k8s import LocalK8s
from swe_testing.sandbox import SandboxConformance

QUICK = {
    "test_assets", "test_background_child_survives", "test_closing_leaves_nothing", "test_contract",
    "test_kill_all_ends_commands", "test_missing_stdin_is_empty", "test_no_other_address_is_reachable[llm]",
    "test_notes", "test_protect", "test_reach_is_refused_without_network", "test_reach_streams",
    "test_repository_is_private", "test_stdin", "test_timeout_kills_the_whole_tree",
    "test_write_and_read[4000000]",
}  # fmt: skip
"""Of what every sandbox must do. The rest is slow: what is followed is the same as in the hf sandbox."""


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark what is slow of a suite that is not written here."""
    if issubclass(item.cls or object, SandboxConformance) and not {item.name, item.originalname} & QUICK:
        item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Archives of what tests make are of no use to anybody else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
async def provider(local_k8s: LocalK8s) -> K8sProvider:
    """One with the settings that nobody has changed."""
    return K8sProvider(K8sConfig())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few attempts, where none can help."""
    monkeypatch.setattr("swe_sandbox_k8s.cluster.ATTEMPTS", 2)
    monkeypatch.setattr("swe_core.sandboxing.followed.sandbox.ATTEMPTS", 2)


@pytest.fixture
def spec() -> SandboxSpec:
    """An image that the local Kubernetes can pull."""
    return SandboxSpec(image="python:3.12")
