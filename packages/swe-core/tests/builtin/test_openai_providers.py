"""`--model` alone: which provider it means, with which key, and what a run records of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from swe_core.api.engine import ChatRequest, EngineSession
from swe_core.builtin.openai import OpenAIConfig, providers
from swe_core.builtin.openai.engine import OpenAIEngine
from swe_core.builtin.openai.providers import PROVIDERS
from swe_core.errors import ConfigError
from swe_core.run.components import ResolvedComponent, load_plugins
from swe_core.run.plan import plan_run
from swe_core.run.settings import Settings, load_settings
from swe_core.system.redaction import redaction_scope
from swe_testing.provider import Ear, ScriptedProvider

WHO = EngineSession("r", "t", 0, "a")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", *(provider.key for provider in PROVIDERS.values())):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Put a server in the place of a provider of the table."""

    def serve(name: str, url: str, **changed: Any) -> str:
        table = {**PROVIDERS, name: replace(PROVIDERS[name], url=url, **changed)}
        monkeypatch.setattr(providers, "PROVIDERS", table)
        return url

    return serve


MEANT = (
    ("gpt-5.5", "api.openai.com", "gpt-5.5", "OPENAI_API_KEY"),
    ("openai/gpt-5.5", "api.openai.com", "gpt-5.5", "OPENAI_API_KEY"),
    ("anthropic/claude-opus-4-6", "api.anthropic.com", "claude-opus-4-6", "ANTHROPIC_API_KEY"),
    ("openrouter/openai/gpt-5.5", "openrouter.ai", "openai/gpt-5.5", "OPENROUTER_API_KEY"),
    ("hf/Qwen/Qwen3-8B", "router.huggingface.co", "Qwen/Qwen3-8B", "HF_TOKEN"),
    ("ollama/qwen3:8b", "127.0.0.1:11434", "qwen3:8b", "OLLAMA_API_KEY"),
)


def test_model_alone_names_its_provider() -> None:
    for model, host, name, key in MEANT:
        config = OpenAIConfig(model=model)
        assert host in str(config.url)
        assert (config.model, config.api_key_env) == (name, key)


def test_given_url_and_key_variable_stay() -> None:
    config = OpenAIConfig(url="http://127.0.0.1:9/v1", model="openai/gpt-oss-20b")
    assert (config.url, config.model) == ("http://127.0.0.1:9/v1", "openai/gpt-oss-20b")
    assert (config.api_key_env, config.filled_in()) == ("OPENAI_API_KEY", {})
    assert OpenAIConfig(model="anthropic/claude", api_key_env="MY_KEY").api_key_env == "MY_KEY"


def test_base_url_variable_stands_in_for_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in it is refused, and not shown."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")
    for model in ("gpt-5.5", "openai/gpt-oss-20b"):
        config = OpenAIConfig(model=model)
        assert (config.url, config.model) == ("http://127.0.0.1:9/v1", model)
        assert config.filled_in() == {"url": "environment variable OPENAI_BASE_URL"}
        assert OpenAIConfig(url="http://127.0.0.1:8/v1", model=model).url == "http://127.0.0.1:8/v1"
    assert "anthropic" in str(OpenAIConfig(model="anthropic/claude").url)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:sekret@127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="has a user or password") as caught:
        OpenAIConfig(model="m")
    assert "sekret" not in str(caught.value)


def test_unknown_provider_is_an_error_with_a_suggestion() -> None:
    for model, hint in (
        ("Qwen/Qwen3-8B", "put one first, such as hf/Qwen/Qwen3-8B, or pass --engine-url URL"),
        ("antropic/claude", "did you mean 'anthropic/claude'?"),
        ("vllm/Qwen/Qwen3-8B", "pass --engine vllm --engine-url URL --model Qwen/Qwen3-8B"),
        ("anthropic/", "no name of a model follows"),
        ("/gpt", "there are openai"),
    ):
        with pytest.raises(ConfigError, match="is not PROVIDER/NAME with a known provider") as caught:
            OpenAIConfig(model=model)
        assert hint in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_key_is_one_sentence_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"gpt-5.5": "'OPENAI_API_KEY'.* another provider", "anthropic/c": "'ANTHROPIC_API_KEY'"}
    for model, name in named.items():
        with pytest.raises(ConfigError, match=f"needs a key: put it into .*{name}"):
            OpenAIEngine(OpenAIConfig(model=model))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-0123456789")
    local = OpenAIEngine(OpenAIConfig(model="ollama/qwen3:8b"))
    assert local._key is None, "a local provider needs none, and gets none of another"


async def test_provider_gets_its_key_and_its_name_of_the_model(
    served: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-0123456789")
    async with ScriptedProvider(models=None, key="sk-ant-0123456789") as server:
        served("anthropic", server.url)
        with redaction_scope() as redactor:
            engine = OpenAIEngine(OpenAIConfig(model="anthropic/claude"))
            assert redactor.text("sk-ant-0123456789") == "[redacted]"
        async with engine:
            await engine.check()
            await engine.complete(ChatRequest({"messages": []}, []), WHO)
    assert server.requests[0].body["model"] == "claude"


async def test_request_has_the_fields_that_the_provider_accepts(served: Callable[..., str]) -> None:
    async with ScriptedProvider() as server:
        for limit, most, asked, sent in (
            ("max_completion_tokens", None, {"max_tokens": 5}, {"max_completion_tokens": 5}),
            ("max_tokens", None, {"max_completion_tokens": 5, "max_tokens": 4}, {"max_tokens": 4}),
            ("max_completion_tokens", None, {}, {}),
            (None, None, {"max_tokens": 5}, {"max_tokens": 5}),
            ("max_completion_tokens", 7, {"max_tokens": 9}, {"max_completion_tokens": 7}),
        ):
            served("ollama", server.url, limit=limit, stream_options=not most)
            async with OpenAIEngine(OpenAIConfig(model="ollama/m", max_tokens=most)) as engine:
                await engine.complete(ChatRequest({"messages": [], "stream": True, **asked}, []), WHO, Ear())
            found = server.requests[-1].body
            assert {name: value for name, value in found.items() if name.startswith("max_")} == sent
            assert ("stream_options" in found) is (not most)


async def test_provider_that_lists_no_models_is_not_asked(served: Callable[..., str]) -> None:
    async with ScriptedProvider(models_fault="401") as server:
        served("ollama", server.url, lists_models=False)
        async with OpenAIEngine(OpenAIConfig(model="ollama/m")) as engine:
            await engine.check()


def planned(*sets: str, **run: Any) -> Settings:
    """The settings that a run records."""
    settings = load_settings(sets=["sandbox.local.unisolated=true", *sets], command_line={"run": run})
    return plan_run(settings, load_plugins(settings.run)).settings


@pytest.mark.parametrize(
    ("model", "url", "key"),
    [
        ("anthropic/claude", "https://api.anthropic.com/v1", {"api_key_env": "ANTHROPIC_API_KEY"}),
        ("claude", "http://127.0.0.1:9/v1", {}),
    ],
)
def test_run_records_the_endpoint_and_resumes_there(
    monkeypatch: pytest.MonkeyPatch, model: str, url: str, key: dict[str, str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    first = planned("engine.openai.timeout=5", model=model)
    assert (first.run.model, first.run.engine_url) == ("claude", url)
    assert first.engine == {"openai": {"timeout": 5, **key}}
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8/v1")
    settings = load_settings(recorded=first.model_dump(mode="json"))
    plan = plan_run(settings, load_plugins(settings.run))
    assert plan.settings.model_dump() == first.model_dump()
    assert isinstance(plan.model_side, ResolvedComponent)
    assert plan.model_side.config.model_dump()["url"] == url


def test_model_chooses_the_engine_over_the_recording_of_the_tasks() -> None:
    assert planned().run.engine_url is None
    assert planned(model="gpt-5.5").run.engine_url == "https://api.openai.com/v1"
