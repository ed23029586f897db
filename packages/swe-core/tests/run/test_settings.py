"""Settings: four layers. Their mistakes: cli/bad_inputs.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swe_core.api.component import Config
from swe_core.errors import ConfigError
from swe_core.run.settings import Settings, load_settings, validate


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "swe.toml"
    path.write_text(
        '[run]\nattempts = 2\nconcurrency = 2\ntasks = "a"\n[limits]\nagent = 10\n[sandbox.docker]\nx = 1\n'
    )
    return path


def test_each_layer_overrides_the_one_below(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_RUN__CONCURRENCY", "3")
    monkeypatch.setenv("SWE_RUN__TASKS", "b")
    monkeypatch.setenv("SWE_SANDBOX__DOCKER__Y", "2")
    monkeypatch.setenv("SWE_PLUGINS", "pi")  # the allow list is no setting
    settings = load_settings(file, ["limits.grade=7", "sandbox.docker.z=true"], {"run": {"tasks": "c"}})
    run = settings.run
    assert (run.attempts, run.concurrency, run.tasks, run.plugins) == (2, 3, "c", None)
    assert (settings.limits.agent, settings.limits.grade, settings.limits.open) == (10, 7, 600)
    assert settings.sandbox["docker"] == {"x": 1, "y": "2", "z": True}
    assert load_settings().run.attempts == 1, "loaded settings are independent"


def test_settings_round_trip_through_json(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process elsewhere gets exactly what was recorded, whatever its own environment says."""
    chosen: dict[str, object] = {"plugins": ("pi", "trl"), "extra_plugins": ("./mine.py", "no:local")}
    chosen |= {"only": ("a", "b"), "recording": Path("replies.jsonl")}
    settings = load_settings(file, ["sandbox.docker.z=true", "budget.turns=3"], {"run": chosen})
    sent = json.loads(json.dumps(settings.model_dump(mode="json")))
    monkeypatch.setenv("SWE_RUN__ATTEMPTS", "9")
    again = Settings(**sent)
    assert again.model_dump() == settings.model_dump()
    assert (again.run.plugins, again.run.extra_plugins) == (("pi", "trl"), ("./mine.py", "no:local"))


def test_recorded_settings_replace_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    started = load_settings(
        sets=["run.attempts=2", "run.concurrency=2", "limits.agent=10", "worker.trl.lr=1"],
        command_line={"run": {"extra_plugins": ("./mine.py",)}},
    )
    monkeypatch.setenv("SWE_RUN__CONCURRENCY", "3")
    monkeypatch.setenv("SWE_LIMITS__AGENT", "11")
    settings = load_settings(
        sets=["limits.agent=12", "worker.trl.steps=5"], recorded=started.model_dump(mode="json")
    )
    assert settings.run.extra_plugins == ("./mine.py",)
    assert settings.run.attempts == 2  # recorded over default
    assert settings.run.concurrency == 3  # environment over recorded
    assert settings.limits.agent == 12  # command line over both
    assert settings.worker["trl"] == {"lr": 1, "steps": 5}


def test_unknown_recorded_settings_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'run.attempt'; did you mean 'attempts'"):
        load_settings(recorded={"run": {"attempt": 1}})


class Unfinished(Config):
    """Settings with an annotation that does not exist."""

    number: Missing = 3  # type: ignore[name-defined]  # noqa: F821 (the mistake of the test)


def test_settings_with_an_unknown_annotation_are_an_error_of_their_class() -> None:
    with pytest.raises(ConfigError, match="the agent 'mine': the class Unfinished of its settings is wrong"):
        validate(Unfinished, {}, "the agent 'mine'")
