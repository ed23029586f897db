"""What is trained is what the server sampled: a real model behind the gate, real clients before it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from itertools import chain as joined
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI, LengthFinishReasonError

from swe_core.api.chain import Chain
from swe_core.api.engine import EngineSession
from swe_core.api.records import Turn
from swe_core.builtin.vllm import VLLMConfig
from swe_core.interception.server import InterceptionServer
from swe_core.report.token_audit import recount
from swe_core.tokens.chains import chains_of
from swe_testing.serving.start import TokenServer
from swe_testing.vllm import tool_call

from .conftest import Scripted
from .engines import Call, ObservingProxy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from swe_core.builtin.vllm.engine import VLLMEngine

pytestmark = [pytest.mark.anyio, pytest.mark.engine]
BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


@pytest.fixture
async def proxy(token_server: TokenServer) -> AsyncIterator[ObservingProxy]:
    async with ObservingProxy(token_server.url) as proxy:
        yield proxy


def engine_of(url: str, **settings: Any) -> VLLMEngine:
    from swe_core.builtin.vllm.engine import VLLMEngine

    return VLLMEngine(VLLMConfig(url=url, **settings))


def assert_rows_are(calls: Sequence[Call], chains: Sequence[Chain]) -> None:
    """Each call's prompt and completion stand at the beginning of exactly one row, which trains it with the
    logprobs that the server gave; and the rows train nothing else."""
    untrained = [chain.completion_mask.copy() for chain in chains]
    for call in calls:
        ids = [*call.prompt, *call.ids]
        own = slice(len(call.prompt), len(ids))
        found = [
            row
            for row, chain in enumerate(chains)
            if chain.input_ids[: len(ids)].tolist() == ids and untrained[row][own].all()
        ]
        assert len(found) == 1, f"{len(found)} rows train the reply to a prompt of {len(call.prompt)} ids"
        untrained[found[0]][own] = False
        np.testing.assert_array_equal(chains[found[0]].old_log_probs[own], np.float32(call.logprobs))
    assert not any(mask.any() for mask in untrained)


def assert_a_forward_pass_agrees(network: Any, chains: Sequence[Chain], temperature: float = 1.0) -> None:
    """Log-probabilities of a plain forward pass over each row are those in the row."""
    import torch

    for chain in chains:
        ids = torch.from_numpy(chain.input_ids.astype(np.int64))
        with torch.no_grad():
            logits = network(ids[None]).logits[0, :-1] / temperature
        expected = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].numpy()
        mask = chain.completion_mask[1:]
        np.testing.assert_allclose(chain.old_log_probs[1:][mask], expected[mask], rtol=0, atol=1e-4)


async def ask(client: AsyncOpenAI, messages: list[Any], stream: bool, **more: Any) -> dict[str, Any]:
    """The reply to `messages`, which it is added to as clients do that send history back."""
    request: dict[str, Any] = {"model": "any", "messages": messages, "tools": [BASH], **more}
    if stream:
        async with client.chat.completions.stream(**request) as events:
            try:
                completion: Any = await events.get_final_completion()
            except LengthFinishReasonError as cut:
                completion = cut.completion
    else:
        completion = await client.chat.completions.create(**request)
    message = completion.choices[0].message
    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
    return dict(messages[-1])


def user(text: str) -> dict[str, Any]:
    """A message whose content is a list of parts, as some clients send it."""
    return {
        "role": "user",
        "content": [{"type": "text", "text": text[:4]}, {"type": "text", "text": text[4:]}],
    }


async def test_rows_are_what_the_server_sampled_and_a_forward_pass_agrees(
    proxy: ObservingProxy, token_server: TokenServer, tokenizer: PreTrainedTokenizerBase
) -> None:
    """A conversation with an interleaved sub-agent, replies that are cut, and a rewritten history."""
    from transformers import AutoModelForCausalLM

    turns: list[Turn] = []
    temperature = 0.8
    who = EngineSession("r1", "t", 0, "a")
    async with (
        InterceptionServer() as server,
        engine_of(proxy.url, model=token_server.model, temperature=temperature, max_tokens=80) as engine,
    ):
        await engine.check()
        async with server.session(engine, who, turns.append) as gate:
            async with AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token) as client:
                main = [{"role": "system", "content": "You mend code. ☃"}, user("Where is the bug?")]
                helper = [{"role": "system", "content": "You look things up."}, user("Look it up.")]
                for step in range(6):
                    await ask(client, main, stream=step % 2 == 0, max_tokens=6 if step == 2 else 60)
                    main.append(user(f"Go on, {step}: naïve 日本語 🎉"))
                    if step in (1, 3):
                        await ask(client, helper, stream=step == 1)
                        helper.append(user("More."))
                main[1:-2] = [user("A summary of what was said.")]
                await ask(client, main, stream=True)
    assert [turn.error for turn in turns] == [None] * 9
    ledger = recount(turns)
    assert ledger is not None
    assert ledger.sampled == ledger.trainable == sum(len(call.ids) for call in proxy.sampled)
    chains = chains_of(turns)
    assert_rows_are(proxy.sampled, chains)
    network = AutoModelForCausalLM.from_pretrained(token_server.directory, dtype="float32")
    assert_a_forward_pass_agrees(network, chains, temperature)
    # The main conversation, its sub-agent, and the history that was rewritten.
    rows = [(chain.turns, chain.cause) for chain in chains]
    expected = [((0, 1, 3, 4, 6, 7), "start"), ((2, 5), "start"), ((8,), "rewritten")]
    assert rows == expected, [(turn.reply, call.ids) for turn, call in zip(turns, proxy.sampled, strict=True)]
    said = tokenizer.decode(chains[0].input_ids)
    for text in ("You mend code. ☃", "Wher\ne is the bug?", "Go o\nn, 4: naïve 日本語 🎉"):
        assert text in said


@pytest.fixture
def talkative(lent_server: TokenServer, tmp_path: Path) -> Any:
    """Load weights whose replies do not end by themselves, and return the model that has them."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(lent_server.directory, dtype="float32")
    with torch.no_grad():
        network.lm_head.weight.mul_(3)  # a stop id, whose logit is 0, becomes all but impossible
        network.lm_head.weight[[network.config.eos_token_id, network.config.pad_token_id]] = 0
    network.save_pretrained(tmp_path / "talkative")
    call = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "talkative")}}
    httpx.post(f"{lent_server.url}/collective_rpc", json=call, timeout=60).raise_for_status()
    return network


async def test_reply_that_a_weight_update_cuts_in_two_is_one_turn_of_two_policies(
    talkative: Any, lent_server: TokenServer
) -> None:
    """`/pause?mode=abort` ends the request; the engine resumes the reply once there are weights."""
    turns: list[Turn] = []
    async with (
        ObservingProxy(lent_server.url) as proxy,
        InterceptionServer() as server,
        # So long that the server is paused before the reply ends, also on a busy machine.
        engine_of(proxy.url, model=lent_server.model, max_tokens=1500, seed=1) as engine,
        server.session(engine, EngineSession("r1", "t", 0, "a"), turns.append) as gate,
        AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token) as client,
        httpx.AsyncClient(base_url=lent_server.url, timeout=60) as trainer,
    ):
        paused = False
        async for chunk in await client.chat.completions.create(
            model="any", messages=[user("Talk.")], stream=True
        ):
            if not paused and chunk.choices and chunk.choices[0].delta.content:
                paused = True
                await trainer.post("/pause?mode=abort")
                await proxy.asked(2)  # all that was sampled has come
                engine.set_policy_version(1)
                await trainer.post("/resume")
    before, after = proxy.sampled
    assert before.finish_reason == "abort"
    assert after.prompt == [*before.prompt, *before.ids]
    (chain,) = chains_of(turns)
    assert chain.input_ids.tolist() == [*after.prompt, *after.ids]
    versions = chain.versions[chain.completion_mask].tolist()
    older = versions.count(0)
    assert versions == [0] * older + [1] * (len(versions) - older)
    # The second request was under way when the version was announced, so its first ids carry the older one:
    # 9 of them on an idle machine, and more where one read brings several events.
    assert len(before.ids) < older < len(versions)
    assert_a_forward_pass_agrees(talkative, [chain])


@pytest.mark.parametrize("stream", [False, True])
async def test_sdk_finishes_a_tool_task_in_one_row(scripted: Scripted, stream: bool) -> None:
    """Arguments that the policy wrote with odd spaces come back as the client likes them: still one row."""
    script = [
        "<think>\nFirst a look.\n</think>\n\nLooking." + tool_call("bash", command="ls"),
        '<tool_call>\n{"name":  "bash", "arguments":   {"command" : "cat  é.py"}}\n</tool_call>',
        '<tool_call>\n{"name": "bash", "arguments": {"command": \n</tool_call>',
        tool_call("bash"),
        "It is mended.",
    ]
    turns: list[Turn] = []
    commands = []
    async with (
        scripted(script) as vllm,
        InterceptionServer() as server,
        engine_of(vllm.url, model="scripted") as engine,
        server.session(engine, EngineSession("r1", "t", 0, "a"), turns.append) as gate,
        AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token) as client,
    ):
        messages: list[Any] = [user("Mend it.")]
        for _ in range(len(script)):
            message = await ask(client, messages, stream)
            calls = message.get("tool_calls", ())
            for call in calls:
                commands.append(call["function"]["arguments"])
                try:  # a client that reads arguments and writes them anew
                    arguments = json.loads(call["function"]["arguments"])
                except ValueError:
                    arguments = {}
                call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "done ✓"})
            if not calls:
                messages.append(user("Then go on."))
        sampled = [asked.sent for asked in vllm.requests]
    assert [json.loads(text) for text in commands[:2]] == [{"command": "ls"}, {"command": "cat  é.py"}]
    assert messages[-2]["content"] == "It is mended."
    ledger = recount(turns)
    assert ledger is not None
    assert ledger.sampled == ledger.trainable == sum(map(len, sampled))
    (chain,) = chains_of(turns)
    assert chain.input_ids[chain.completion_mask].tolist() == list(joined.from_iterable(sampled))
    assert ledger.rendered == {"bridge": len(script) - 1, "full": 1}
