"""`swe-core plugins`: the list, and one plugin with its settings."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from swe_core.cli.plugins import plugins
from swe_core.run.settings import load_settings

pytestmark = pytest.mark.usefixtures("no_installed_plugins")

FILE = """
from pathlib import Path

from pydantic import Field

from swe_core import AgentSpec, Component, Config, hookimpl
from swe_core.api.component import RunOption


class MineConfig(Config):
    program: Path = Field(description="what \\x1b[31mruns")
    mode: str = Field(default="fast", description="a mode")


class Mine(AgentSpec):
    name = "mine"

    def command(self, ctx):
        return ["true"]


@hookimpl
def swe_agents():
    other = Component("other", lambda _: Mine())
    return [Component("mine", lambda config: Mine(), MineConfig, "a test"), other]


@hookimpl
def swe_options():
    return [RunOption("--mine-mode", "agent.mine.mode", "How it runs.", "MODE")]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return str(path)


def said(*args: str, code: int = 0) -> str:
    done = CliRunner().invoke(plugins, args, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def test_list_wraps_no_line_in_a_pipe() -> None:
    lines = said().splitlines()
    (vllm,) = [line for line in lines if line.startswith("vllm ")]
    assert vllm.endswith("engine vllm: samples from vLLM servers by token ids, and keeps them")
    assert all(line == line.rstrip() for line in lines)
    assert lines[-1] == "`swe-core plugins NAME` shows one with its settings."


def test_plugin_is_shown_with_its_settings_and_options(file: str) -> None:
    text = said("vllm")
    assert text.startswith("vllm: a plugin, built in\nHooks: swe_checks, swe_engines\n")
    assert "Choose it with --engine vllm." in text
    (line,) = [line for line in text.splitlines() if line.startswith("top_p ")]
    assert " ".join(line.split()) == "top_p number, above 0, at most 1 1.0 nucleus sampling threshold"
    text = said("mine", "-p", file)
    assert f"mine: a plugin, {file}\n" in text
    assert "  --mine-mode MODE: How it runs. (the setting agent.mine.mode)\n" in text
    (line,) = [line for line in text.splitlines() if line.startswith("program ")]
    assert line.split() == ["program", "path", "required", "what", "runs"]
    assert "\x1b" not in text
    assert "agent other\n" in text
    assert "It has no settings." in text


def test_component_is_shown_without_the_others_of_its_plugin() -> None:
    text = said("oracle")
    assert "agents: a plugin" in text
    assert "It has 2 components: `swe-core plugins agents` shows all." in text
    assert "agent oracle: applies the gold patch" in text
    assert "agent nop" not in text
    assert "agent nop" in said("agents")


@pytest.mark.parametrize("name", ["mini", "swe"])
def test_shown_ways_set_a_setting(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.strip() for line in said(name).partition("Each of these sets one:\n")[2].splitlines()]
    option, variable, table, assignment = lines[:4]
    config = tmp_path / "settings.toml"
    config.write_text(f"{table}\n{assignment}\n")
    ((role, tables),) = tomllib.loads(config.read_text()).items()
    ((setting, written),) = tables[name].items()
    assert getattr(load_settings(config), role) == {name: {setting: written}}
    assert getattr(load_settings(sets=[shlex.split(option)[-1]]), role) == {name: {setting: written}}
    exported, _, value = shlex.split(variable)[1].partition("=")
    monkeypatch.setenv(exported, value)
    found = getattr(load_settings(), role)[name][setting]
    assert found == written or json.loads(found) == written


def test_variable_that_no_shell_exports_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "dashed.py"
    path.write_text(FILE.replace('Component("mine"', 'Component("my-agent"'))
    text = said("my-agent", "-p", str(path))
    assert "--set agent.my-agent." in text
    assert "export" not in text


def test_json_has_settings_hooks_and_options(file: str) -> None:
    (shown,) = json.loads(said("mine", "-p", file, "--json"))
    assert shown["hooks"] == ["swe_agents", "swe_options"]
    assert shown["options"][0]["flag"] == "--mine-mode"
    program, mode = shown["components"][0]["settings"]
    assert (program["name"], program["type"], program["required"]) == ("agent.mine.program", "path", True)
    assert (mode["default"], mode["description"]) == ("fast", "a mode")
    assert {"vllm", "openai"} <= {one["name"] for one in json.loads(said("--json"))}


def test_key_that_is_a_default_is_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the name of the setting, or by that of the variable that has the value."""
    path = tmp_path / "mine.py"
    own = (
        '    api_key: str = "not-in-the-environment"\n'
        '    url: str = Field(default_factory=lambda: "http://h/" + __import__("os").environ["MINE_API_KEY"])'
    )
    path.write_text(FILE.replace('    mode: str = Field(default="fast", description="a mode")', own))
    monkeypatch.setenv("MINE_API_KEY", "do-not-show-0123456789")
    for more in ((), ("--json",)):
        done = CliRunner().invoke(plugins, ["mine", "-p", str(path), *more])
        assert (done.exit_code, done.exception) == (0, None)
        assert "http://h/[redacted]" in done.output
        assert "not-in-the-environment" not in done.output
        assert "do-not-show" not in done.output


def test_broken_plugin_is_shown_with_its_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swe_core]\nbroken = no_such_module_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("SWE_PLUGINS")
    text = said("broken", code=1)
    assert text.startswith("broken: a plugin, broken 1.0\nIt is broken: ")
    assert "no_such_module_here" in text
