"""What the engine `vllm` says of servers that cannot be used."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import anyio
import pytest

from swe_core.builtin import vllm
from swe_core.builtin.vllm import VLLMConfig
from swe_core.errors import ConfigError, EngineError, EngineProtocolError, EngineRefused, EngineUnavailable
from swe_core.tokens.renderer import THINKING
from swe_core.tokens.template_renderer import TemplateRenderer
from swe_testing.provider import refusing_url

from .conftest import Qwen, ask, make_engine


async def test_check_accepts_good_server_for_few_tokens(qwen: Qwen, caplog: pytest.LogCaptureFixture) -> None:
    async with qwen.server() as server, make_engine(server.url, temperature=0.7) as engine:
        await engine.check()
        assert list(engine.notes()) == []
    assert [probe.get("temperature") for probe in server.probes] == [1.0, 2.0, None]
    assert [probe["max_tokens"] for probe in server.probes] == [1, 1, 9]
    assert caplog.records == []
    async with qwen.server(piece=1) as server:
        async with make_engine(server.url, stream_interval=1) as engine:
            await engine.check()
            assert caplog.records == []
        async with make_engine(server.url) as engine:
            await engine.check()
    assert "start it with --stream-interval 8" in caplog.text


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"models": ("other", "third")}, EngineRefused, r"pass --model with one .* \('other', 'third'\)"),
        ({"models": ()}, EngineRefused, r"\(none\)"),
        ({"models": None}, EngineRefused, "no such model or path"),
        ({"key": "another"}, EngineRefused, "refuses the key"),
        ({"max_model_len": None}, EngineProtocolError, "max_model_len"),
        ({"vocabulary": 100}, EngineRefused, "does not know ids of the tokenizer"),
        ({"probe": "no-ids"}, EngineProtocolError, "returns no token ids"),
        ({"probe": "no-logprobs"}, EngineProtocolError, "gives no log-probabilities"),
        ({"probe": "wrong-prompt"}, EngineProtocolError, "other prompt ids"),
        ({"probe": "other-text"}, EngineRefused, "reads the token id 0 as '☃', the tokenizer as"),
        ({"probe": "500"}, EngineUnavailable, "fails"),
    ],
)
async def test_check_reports_each_defect_of_a_server(
    qwen: Qwen, settings: dict[str, Any], kind: type[EngineError], words: str
) -> None:
    async with qwen.server(**settings) as server, make_engine(server.url) as engine:
        with pytest.raises(EngineError, match=words) as caught:
            await engine.check()
    assert type(caught.value) is kind
    assert server.url in str(caught.value)


async def test_check_rejects_raw_logprobs_that_differ(qwen: Qwen, caplog: pytest.LogCaptureFixture) -> None:
    async with qwen.server(processed=False) as server:
        for setting in ({"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
            async with make_engine(server.url, **setting) as engine:
                with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
                    await engine.check()
        async with make_engine(server.url) as engine:
            await engine.check()
    assert "no difference with these settings" in caplog.text


async def test_check_covers_every_server(qwen: Qwen) -> None:
    async with qwen.server() as good, qwen.server(models=("other",)) as bad:
        async with make_engine(good.url, bad.url) as engine:
            with pytest.raises(EngineRefused, match=bad.url):
                await engine.check()
    with refusing_url() as url:
        async with qwen.server() as good, make_engine(good.url, url) as engine:
            with pytest.raises(EngineUnavailable, match="cannot be reached"):
                await engine.check()
        async with make_engine(url) as engine:
            with pytest.raises(EngineUnavailable, match="cannot be reached"):
                await ask(engine)


async def test_context_is_the_shortest_of_all_servers(qwen: Qwen) -> None:
    async with qwen.server(max_model_len=900) as one, qwen.server(max_model_len=400) as two:
        async with make_engine(one.url, two.url) as engine:
            assert engine.context is None
            await ask(engine)
            assert engine.context == 400
    (asked,) = (*one.requests, *two.requests)  # one of them: that depends on their ports
    assert asked.body["max_tokens"] < 400


async def test_tokenizer_defaults_to_directory_of_the_server(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server(root=str(tmp_path)) as server:
        async with make_engine(server.url, tokenizer=str(qwen.path)) as engine:
            await ask(engine)
        async with make_engine(server.url) as engine:
            with pytest.raises(ConfigError, match="tokenizer"):
                await engine.check()


async def test_concurrent_calls_load_the_tokenizer_once(qwen: Qwen, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(
        "swe_core.builtin.vllm.engine.load_renderer", lambda name, **_: loaded.append(name) or qwen.renderer
    )
    async with qwen.server("x") as server, make_engine(server.url) as engine:
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(lambda name: ask(engine, rollout=name), f"r{number}")
    assert loaded == [str(qwen.path)]


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("how", "full", "engine.vllm.chat_template"),
        ("differs", ("tools", "calls"), "prints tools, calls otherwise than the model's"),
        ("differs", (THINKING,), "leaves the thinking of earlier replies in the prompt as it was sampled"),
    ],
)
async def test_limits_of_the_chat_format_are_noted(
    qwen: Qwen, monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, said: str
) -> None:
    renderer = copy.copy(qwen.renderer)
    setattr(renderer, attribute, value)
    monkeypatch.setattr("swe_core.builtin.vllm.engine.load_renderer", lambda *_, **__: renderer)
    async with qwen.server() as server, make_engine(server.url) as engine:
        assert list(engine.notes()) == []
        await engine.check()
        [note] = engine.notes()
    assert said in note


def test_missing_extra_names_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    [component] = vllm.swe_engines()
    engine = component.create(VLLMConfig(url="http://h:8000/v1,http://i", model="m"))
    assert (component.name, engine.model, engine.limits_context) == ("vllm", "m", True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'swe-core\[vllm\]'"):
        component.create(VLLMConfig(url="http://h", model="m"))


async def test_unreadable_calls_are_known_after_the_check(
    qwen: Qwen, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = TemplateRenderer(qwen.renderer.tokenizer, "{% for m in messages %}{{ m.content }}{% endfor %}")
    monkeypatch.setattr("swe_core.builtin.vllm.engine.load_renderer", lambda *_, **__: renderer)
    async with qwen.server() as server, make_engine(server.url) as engine:
        assert engine.without_calls is None
        await engine.check()
        assert "engine.vllm.tool_parser" in (engine.without_calls or "")
