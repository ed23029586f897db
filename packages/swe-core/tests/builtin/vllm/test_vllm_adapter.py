"""Policy versions that are LoRA adapters: which one a request names, and what its tokens carry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_core.errors import EngineRefused
from swe_testing.serving.start import TokenServer
from swe_testing.vllm import VLLMFault

from .conftest import Qwen, ask, chat, make_engine, session
from .test_vllm_engine import sampled_of

SERVED = ("scripted", "lora-v1", "lora-v2", "lora-v3")


async def test_request_without_adapters_names_the_model(qwen: Qwen) -> None:
    async with qwen.server("hello") as server, make_engine(server.url) as engine:
        engine.set_policy_version(4)
        await ask(engine)
    assert server.requests[0].body["model"] == "scripted"


@given(
    faults=st.lists(st.sampled_from(["abort", "drop", "500", "ok"]), max_size=5),
    announced=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    stream=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_tokens_carry_the_version_of_their_request(
    qwen: Qwen, faults: list[VLLMFault], announced: list[int], stream: bool
) -> None:
    """Also where a reply breaks off and another version continues it."""
    text = "one reply of several tokens, from any version"
    versions = sorted(announced)
    async with qwen.server(text, faults=faults, models=SERVED) as server:
        async with make_engine(server.url, adapter="lora", max_retries=5) as engine:
            rest = iter(versions)
            engine.set_policy_version(next(rest))

            async def newer(delta: Any) -> None:
                engine.set_policy_version(next(rest, versions[-1]))

            completion = await engine.complete(chat(), session(), newer if stream else None)
    came = [(asked.body["model"], asked.sent) for asked in server.requests]
    found = [0 if name == "scripted" else int(name.removeprefix("lora-v")) for name, ids in came for _ in ids]
    assert sampled_of(completion).versions.tolist() == found
    assert found == sorted(found)
    assert set(found) <= set(versions)
    assert completion.model == engine.model == "scripted"


async def test_unloaded_adapter_is_replaced_by_newer_one(qwen: Qwen, monkeypatch: pytest.MonkeyPatch) -> None:
    async with qwen.server("hello", models=("scripted", "lora-v2")) as server:
        async with make_engine(server.url, adapter="lora", max_retries=1) as engine:
            engine.set_policy_version(1)
            await engine._ready()
            refuse = server._refuse

            def announce(*args: Any) -> Any:
                engine.set_policy_version(2)  # while the request that names version 1 is under way
                return refuse(*args)

            monkeypatch.setattr(server, "_refuse", announce)
            completion, _ = await ask(engine)
    assert [asked.body["model"] for asked in server.requests] == ["lora-v1", "lora-v2"]
    assert set(sampled_of(completion).versions.tolist()) == {2}


async def test_missing_adapter_is_an_error_after_bounded_attempts(qwen: Qwen) -> None:
    async with qwen.server("hello", models=("scripted", "lora-v2")) as server:
        async with make_engine(server.url, adapter="lora", max_retries=2) as engine:
            engine.set_policy_version(7)
            with pytest.raises(EngineRefused) as caught:
                await ask(engine)
    assert "does not serve the adapter 'lora-v7' (404) (tried 3 times)" in str(caught.value)
    assert "engine.vllm.adapter" in str(caught.value)
    assert caught.value.status == 404
    assert len(server.requests) == 3
    async with qwen.server("hello", then="404") as server:
        async with make_engine(server.url, adapter="lora") as engine:
            with pytest.raises(EngineRefused, match="no such model or path"):
                await ask(engine)
    assert len(server.requests) == 1


async def test_check_probes_the_newest_adapter(qwen: Qwen) -> None:
    with pytest.raises(ValueError, match="adapter"):
        make_engine("http://h", adapter="")
    async with qwen.server(models=("scripted",)) as server:
        async with make_engine(server.url, adapter="lora") as engine:
            await engine.check()
            engine.set_policy_version(2)
            with pytest.raises(EngineRefused, match="does not serve the adapter 'lora-v2'"):
                await engine.check()
    assert [probe["model"] for probe in server.probes] == ["scripted"] * 3 + ["lora-v2"]
    async with qwen.server(models=SERVED) as server:
        async with make_engine(server.url, adapter="lora") as engine:
            engine.set_policy_version(2)
            await engine.check()
    assert {probe["model"] for probe in server.probes} == {"lora-v2"}


@pytest.mark.engine
async def test_real_server_rejects_unknown_adapter(token_server: TokenServer) -> None:
    settings = {"model": token_server.model, "adapter": "lora", "max_retries": 0}
    async with make_engine(token_server.url, **settings) as engine:
        await engine.check()
        engine.set_policy_version(2)
        with pytest.raises(EngineRefused, match="does not serve the adapter 'lora-v2'"):
            await ask(engine)
