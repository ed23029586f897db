"""What is in the bundle of Pi, and what `swe-core doctor` says of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from swe_agents_pi.agent import PiAgent
from swe_agents_pi.bundle import ANSWER, CLI, PI
from swe_agents_pi.config import PiConfig
from swe_core.errors import ConfigError
from swe_core.plugins.manager import PluginSet


def test_bundle_has_pi_its_extension_and_a_node(pi_bundle: Path) -> None:
    names = sorted(path.name for path in pi_bundle.iterdir())
    assert names == [ANSWER, "bin", "node_modules", "pi", "runtime"]
    assert sorted(path.name for path in (pi_bundle / "pi").iterdir()) == ["dist", "package.json"]
    assert json.loads((pi_bundle / "pi/package.json").read_bytes())["version"] == PI.version
    command = [pi_bundle / "bin/node", pi_bundle / CLI, "--version"]
    said = subprocess.run(command, capture_output=True, text=True)
    assert PI.version in said.stdout + said.stderr
    (asset,) = PiAgent().assets()
    assert (asset.name, asset.path) == ("pi", pi_bundle)


def test_configured_node_that_does_not_run_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^agent\.pi\.node: '.*absent' does not run as a node; set it to"):
        PiAgent(PiConfig(node=tmp_path / "absent")).assets()


def test_doctor_asks_for_the_bundle(pi_bundle: Path) -> None:
    impls = PluginSet(["pi"]).manager.hook.swe_checks.get_hookimpls()
    (mine,) = (impl for impl in impls if impl.plugin_name == "pi")
    (check,) = mine.function()
    assert (check.name, check.needed_for) == ("bundle", "--agent pi")
    found = check.look()
    assert (found.state, str(pi_bundle) in found.text) == ("ok", True)
