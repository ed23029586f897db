"""A secret among the settings is rejected from any source, and no error repeats it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swe_core.api.component import Config
from swe_core.cli import cli
from swe_core.errors import ConfigError
from swe_core.run.settings import load_settings, validate

SECRET = "sk-of-nobody-at-all"


def test_secret_setting_is_rejected_from_each_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'[engine.openai]\napi_key = "{SECRET}"\n')

    def refused(*args: Any, **recorded: Any) -> None:
        with pytest.raises(ConfigError, match=r"'engine\.openai\.api_key' looks like a secret") as caught:
            load_settings(*args, **recorded)
        assert SECRET not in str(caught.value)

    refused(None, [f"engine.openai.api_key={SECRET}"])
    refused(file)
    refused(recorded={"engine": {"openai": {"api_key": SECRET}}})
    monkeypatch.setenv("SWE_ENGINE__OPENAI__API_KEY", SECRET)
    refused()


def test_run_with_secret_setting_does_not_start(tmp_path: Path) -> None:
    """Also if the component is not chosen, so that its settings are not read."""
    given = ["--agent", "nop", "--set", f"engine.openai.api_key={SECRET}", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(cli, ["run", *given])
    assert isinstance(done.exception, ConfigError)
    assert not (tmp_path / "run").exists()


def test_settings_error_has_no_secret() -> None:
    for sets in (
        ["api_key=" + SECRET],
        ["sandbox..api_key=" + SECRET],
        ["push.hub_token.api_key=" + SECRET],
        ["push=" + json.dumps({"hub_token": SECRET})],
        ["engine.openai=abc", "engine.openai.api_key=" + SECRET],
        ["engine.openai=" + json.dumps([{"api_key": SECRET}])],
    ):
        with pytest.raises(ConfigError) as caught:
            load_settings(sets=sets)
        assert SECRET not in str(caught.value)


class Strict(Config):
    number: int = 0
    servers: tuple[int, ...] = ()


def test_component_error_has_neither_a_secret_nor_the_password_of_a_url() -> None:
    for values, says in (
        ({"number": {"api_key": SECRET}}, "number"),
        ({"servers": [{"api_key": SECRET}]}, "servers"),
        ({"number": f"http://user:{SECRET}@host/path"}, "@host/path"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            validate(Strict, values, "[agent.strict]")
        assert SECRET not in str(caught.value)
