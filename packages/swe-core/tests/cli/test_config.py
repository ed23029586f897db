"""`swe-core config show`: each setting with the layer that it comes from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from swe_core.cli import cli
from swe_core.errors import ConfigError, UsageError
from swe_core.run.components import load_plugins
from swe_core.run.plan import plan_run
from swe_core.run.settings import load_settings

WORKER = """
from swe_core import Component, Config, hookimpl

class Own(Config):
    api_key: str = "not-in-the-environment"

class Worker:
    async def run(self, runner): ...

@hookimpl
def swe_workers():
    settings = {"grader": {"swe": {"log_mb": 7}}}
    return [Component("busy", lambda config: Worker(), Own, defaults={"agent": "oracle"}, settings=settings)]
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_PLUGINS", "")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["config", "show", *args])


def shown(*args: str) -> dict[str, Any]:
    """Full name → its value and origin."""
    done = run("--json", *args)
    assert done.exception is None, done.exception
    settings: dict[str, Any] = json.loads(done.stdout)["settings"]
    return settings


def origin(found: dict[str, Any], name: str) -> tuple[object, str, str]:
    entry = found[name]
    return entry["value"], entry["layer"], entry["source"]


def lines(*args: str) -> list[str]:
    done = run(*args)
    assert done.exception is None, done.exception
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_each_value_has_the_layer_that_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "swe.toml"
    file.write_text("[run]\nattempts = 2\nconcurrency = 2\n[limits]\nagent = 10\ngrade = 10\n")
    monkeypatch.setenv("SWE_RUN__CONCURRENCY", "3")
    monkeypatch.setenv("SWE_LIMITS__AGENT", "11")
    found = shown("--config", str(file), "--set", "limits.agent=12", "--network", "none")
    assert origin(found, "run.attempts") == (2, "file", str(file))
    assert origin(found, "run.concurrency") == (3, "environment", "SWE_RUN__CONCURRENCY")
    assert origin(found, "limits.agent") == (12, "command line", "")
    assert origin(found, "limits.grade") == (10, "file", str(file))
    assert origin(found, "limits.open") == (600, "default", "")
    assert origin(found, "resources.network") == ("none", "command line", "")


def test_only_what_is_set_is_printed_unless_all_is_asked_for() -> None:
    args = ("--attempts", "4", "--set", "sandbox.docker.pull=never")
    few, every = lines(*args), lines(*args, "--all")
    assert "[sandbox.docker] # not used: the sandbox is local" in few
    assert shown(*args)["sandbox.docker.pull"]["used"] is False
    assert "attempts = 4 # command line" in few
    assert "concurrency = 4 # default" not in few
    assert "concurrency = 4 # default" in every
    assert "# split is unset # default" in every
    assert few[-1].endswith("settings have their defaults: --all shows them.")
    assert not any("--all" in line for line in every)


def test_lines_are_a_file_of_the_same_settings(tmp_path: Path) -> None:
    table = 'engine.openai.params={"stop": ["\\n"], "a b": {"c": 1}}'
    args = [
        *("--agent", "mini", "--engine", "openai", "--engine-url", "http://127.0.0.1:9/v1"),
        *("--model", 'm"ü\u2028', "--task", "a", "--task", "b"),
        *("--set", table, "--set", "sandbox.docker.pull=never"),
    ]
    file = tmp_path / "again.toml"
    first = {name: one["value"] for name, one in shown(*args).items()}
    for everything in ([], ["--all"]):
        file.write_text(run(*args, *everything).stdout)
        assert {name: one["value"] for name, one in shown("--config", str(file)).items()} == first


def test_components_in_effect_are_named_and_their_settings_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_AGENT__MINI__MAX_TURNS", "5")
    found = shown()
    assert origin(found, "run.agent") == ("mini", "default", "")
    assert origin(found, "agent.mini.max_turns") == (5, "environment", "SWE_AGENT__MINI__MAX_TURNS")
    assert origin(found, "agent.mini.command_timeout") == (120, "default", "")
    assert origin(found, "run.engine") == ("replay", "tasks", "demo")
    assert Path(found["engine.replay.file"]["value"]).name == "recording.jsonl"
    assert not any(name.startswith("engine.openai") for name in found)
    monkeypatch.delenv("SWE_AGENT__MINI__MAX_TURNS")
    monkeypatch.setenv("SWE_AGENT__MINI", '{"max_turns": 5}')
    assert origin(shown(), "agent.mini.max_turns") == (5, "environment", "SWE_AGENT__MINI")


def test_defaults_of_a_plugin_have_its_name(tmp_path: Path) -> None:
    file = tmp_path / "busy.py"
    file.write_text(WORKER)
    found = shown("-p", str(file))
    assert origin(found, "run.worker") == ("busy", "plugin", "busy")
    assert origin(found, "run.agent") == ("oracle", "worker", "busy")
    assert origin(found, "grader.swe.log_mb") == (7, "worker", "busy")
    assert found["run.engine"]["value"] is None  # the agent calls no model


def test_provider_of_a_model_is_where_its_url_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    found, source = shown("--model", "anthropic/claude"), ("engine", "provider anthropic")
    assert origin(found, "run.engine_url") == ("https://api.anthropic.com/v1", *source)
    assert origin(found, "run.model") == ("claude", *source)
    assert origin(found, "engine.openai.api_key_env") == ("ANTHROPIC_API_KEY", *source)
    assert origin(shown("--model", "gpt-5.5"), "run.model") == ("gpt-5.5", "command line", "")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    url = 'engine_url = "http://127.0.0.1:9/v1" # environment variable OPENAI_BASE_URL'
    assert url in lines("--model", "m")


def test_what_is_shown_is_what_a_run_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWE_RUN__ATTEMPTS", "3")
    file = tmp_path / "again.toml"
    file.write_text(run("--model", "anthropic/claude", "--set", "limits.agent=9").stdout)
    monkeypatch.delenv("SWE_RUN__ATTEMPTS")
    asked = {"run": {"model": "anthropic/claude", "attempts": 3}}
    settings = load_settings(None, ["limits.agent=9"], asked)
    recorded = plan_run(settings, load_plugins(settings.run)).settings
    again = load_settings(file)
    assert again.limits == recorded.limits
    assert (again.run.model, again.run.engine_url) == (recorded.run.model, recorded.run.engine_url)
    assert again.engine == recorded.engine


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-do-not-show-0123456789")
    hidden = 'engine.openai.params={"user": "sk-do-not-show-0123456789"}'
    url = "http://me:passw0rd@127.0.0.1:9/v1?key=passw0rd"
    args = ("--engine", "openai", "--engine-url", url, "--model", "m", "--set", hidden, "--all")
    for text in (run(*args).stdout, run(*args, "--json").stdout):
        assert "sk-do-not-show" not in text
        assert "passw0rd" not in text
        assert "OPENAI_API_KEY" in text  # the name of the variable
    with pytest.raises(ConfigError, match="looks like a secret"):
        CliRunner().invoke(cli, ["config", "show", "--set", "agent.mini.token=abc"], catch_exceptions=False)


def test_default_of_a_secret_is_not_shown(tmp_path: Path) -> None:
    plugin = tmp_path / "busy.py"
    plugin.write_text(WORKER)
    for more in ("--all", "--json"):
        shown = run("-p", str(plugin), more).stdout
        assert "api_key" in shown
        assert "not-in-the-environment" not in shown


def test_settings_are_shown_although_the_run_could_not_start() -> None:
    done = run("--tasks", "none.jsonl", "--sandbox", "lokal")
    assert 'tasks = "none.jsonl"' in done.stdout
    assert isinstance(done.exception, UsageError)
    assert "'none.jsonl' is neither a file" in str(done.exception)
    assert str(done.exception).endswith("(and 1 more)")
    done = run("--set", "sandbox.dokcer.pull=never")
    assert "[sandbox.dokcer]" in done.stdout
    assert "settings for an unknown sandbox 'dokcer'" in str(done.exception)


def test_every_option_of_run_that_sets_something_is_taken() -> None:
    from swe_core.cli.config import show
    from swe_core.cli.run import run as run_command

    own = {param.name for param in run_command.params if param.expose_value}  # without those of plugins
    missing = own - {param.name for param in show.params}
    assert missing == {"out", "resume", "retry_errors", "dry_run", "verbose"}


def test_toml_of_any_value_is_valid_and_one_without_a_form_is_a_comment() -> None:
    from swe_core.cli.config import _toml

    for value in ("a\nb\x7f\x1b", 1.5, True, [1, "x"], {"a b": [{"c": 1}]}, {}, []):
        assert tomllib.loads(f"x = {_toml(value)}")["x"] == value
    args = ("--engine", "openai", "--engine-url", "http://127.0.0.1:9/v1", "--model", "m")
    text = lines(*args, "--set", 'engine.openai.params={"stop": [null]}')
    assert "# params.stop = [null] # command line" in text
