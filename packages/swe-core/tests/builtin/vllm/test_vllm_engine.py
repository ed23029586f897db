"""The engine `vllm` against a server that answers and fails as a real one does."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import anyio
import numpy as np
import orjson
import pytest
from aiohttp.base_protocol import BaseProtocol
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from swe_core.api.engine import ChatRequest, EngineSession, Progress, Sampled
from swe_core.api.messages import Message
from swe_core.builtin.http_engine import ErrorTranslator
from swe_core.builtin.vllm.client import Client
from swe_core.builtin.vllm.generation import Generation
from swe_core.builtin.vllm.policy import Policy
from swe_core.builtin.vllm.replies import Asked, Chunk, Replies
from swe_core.builtin.vllm.servers import _rank
from swe_core.errors import (
    ConfigError,
    ContextOverflow,
    EngineError,
    EngineProtocolError,
    EngineRefused,
    EngineUnavailable,
    RequestRefused,
)
from swe_testing.provider import Ear
from swe_testing.vllm import VLLMFault, logprob_of

from ...token_turns import all_ids
from .conftest import HELLO, KEY, TOOLS, Qwen, ask, chat, make_engine, said, session

CALL = (
    "<think>\nI look.\n</think>\n\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
)


def sampled_of(completion: Any) -> Sampled:
    assert completion.sampled is not None
    turn: Sampled = completion.sampled
    assert turn.completion_ids.dtype == turn.versions.dtype == turn.prompt_ids.dtype == np.int32
    assert turn.logprobs.dtype == np.float32
    assert len(turn.completion_ids) == len(turn.logprobs) == len(turn.versions)
    return turn


def heard_by(request: ChatRequest) -> Callable[[int], Awaitable[None]]:
    """For `ScriptedVLLM.between`: wait until the engine has what was sent."""

    async def heard(sent: int) -> None:
        while request.progress.sampled is None or len(request.progress.sampled.completion_ids) < sent:
            await anyio.lowlevel.checkpoint()

    return heard


@pytest.mark.parametrize(
    ("text", "stream"),
    [("Hello there, träveller!\n" * 5 + "Bye.", False), ("Hello!\n" * 9 + "Bye.", True), ("", False)],
    ids=["whole", "streamed", "a lone stop token"],
)
async def test_turn_keeps_sampled_ids_and_logprobs(qwen: Qwen, text: str, stream: bool) -> None:
    request, ear = chat(), Ear()
    async with qwen.server(text, between=heard_by(request)) as server, make_engine(server.url) as engine:
        completion = await engine.complete(request, session(), ear if stream else None)
    turn, [asked] = sampled_of(completion), server.requests
    assert asked.prompt == turn.prompt_ids.tolist() == qwen.renderer.render(HELLO, None)
    assert turn.completion_ids.tolist() == asked.sent == [*qwen.encode(text), qwen.stop]
    assert turn.logprobs.tolist() == [logprob_of(token) for token in asked.sent]
    assert completion.message == {"role": "assistant", "content": text}
    assert (completion.finish_reason, completion.stopped_by) == ("stop", None)
    used = completion.usage
    assert (used.prompt_tokens, used.completion_tokens) == (len(asked.prompt), len(asked.sent))
    assert (turn.extends, turn.cause, turn.rendered) == (None, "start", "full")
    if stream:
        assert ear.text() == completion.message["content"]
        assert len(ear.heard) > 2


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_conversation_is_one_chain_of_exact_ids(qwen: Qwen, stream: bool) -> None:
    """Also where the agent wants one call at a time: all sampled tokens stay."""
    both = CALL + CALL.partition("</think>")[2].replace("ls", "pwd")
    async with qwen.server(both, both, "Done.") as server, make_engine(server.url) as engine:
        every, _ = await ask(engine, tools=TOOLS, stream=stream, parallel_tool_calls=True)
        first, heard = await ask(engine, tools=TOOLS, stream=stream, parallel_tool_calls=False)
        result: Message = {"role": "tool", "content": "README.md"}
        history = [*HELLO, said(first), result]
        second, _ = await ask(engine, history, tools=TOOLS, stream=stream, parallel_tool_calls=False)
    commands = [call["function"]["arguments"] for call in every.message["tool_calls"]]
    assert commands == ['{"command": "ls"}', '{"command": "pwd"}']
    [call] = first.message["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "bash", "arguments": commands[0]}
    assert first.message["reasoning_content"] == "I look."
    assert (first.message["content"], first.finish_reason) == (None, "tool_calls")
    if stream:
        assert heard.text("reasoning_content") == "I look."
        assert heard.heard[-1]["tool_calls"] == [{"index": 0, **call}]
    assert sampled_of(first).completion_ids.tolist() == sampled_of(every).completion_ids.tolist()
    turn, asked = sampled_of(second), server.requests[2]
    assert turn.extends is first.sampled
    assert (turn.rendered, turn.cause) == ("bridge", None)
    assert asked.prompt + asked.sent == all_ids(turn)
    assert asked.prompt[: len(all_ids(first.sampled))] == all_ids(first.sampled)
    assert "README.md" in qwen.text(turn.prompt_ids.tolist())


async def test_vocabulary_gives_the_text_of_ids(qwen: Qwen) -> None:
    async with qwen.server("Bye.") as server, make_engine(server.url) as engine:
        assert engine.vocabulary() is None  # the tokenizer is not known before a server was asked
        await engine.check()
        table = engine.vocabulary()
    assert table is not None
    assert table.tokenizer == str(qwen.path)
    assert table.special[qwen.stop] == "<|im_end|>"


async def test_host_settings_override_sampling_of_the_agent(qwen: Qwen) -> None:
    async with qwen.server("ok") as server:
        async with make_engine(server.url, temperature=0.5, top_k=20) as engine:
            await ask(engine, temperature=0.0, top_p=0.1, seed=1, frequency_penalty=2, stop="END")
    body = server.requests[0].body
    assert body.pop("prompt") == qwen.renderer.render(HELLO, None)
    assert body == {
        "model": "scripted", "temperature": 0.5, "top_p": 1.0, "top_k": 20, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": ["END"],
        "stop_token_ids": sorted(qwen.renderer.stop_ids), "logprobs": 0, "return_token_ids": True,
        "stream": True, "stream_interval": 8, "max_tokens": 32768 - len(qwen.renderer.render(HELLO, None)),
    }  # fmt: skip
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


async def test_fixed_seed_repeats_the_draws_of_each_call(qwen: Qwen) -> None:
    """Two groups of a task have rollouts with the same attempt."""
    seeds = []
    for _ in range(2):
        async with qwen.server("ok") as server, make_engine(server.url, seed=7) as engine:
            for rollout in ("task-g0-1", "task-g0-1", "task-g1-1"):
                await engine.complete(chat(), EngineSession(rollout, "task", 1, "agent"))
        seeds.append([asked.body["seed"] for asked in server.requests])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


async def test_max_tokens_is_the_smallest_limit(qwen: Qwen) -> None:
    size = len(qwen.renderer.render(HELLO, None))
    async with (
        qwen.server("ok", max_model_len=size + 10) as server,
        make_engine(server.url, max_tokens=9) as engine,
    ):
        await ask(engine)
        await ask(engine, max_tokens=8)
        await ask(engine, max_context=size + 7)
    assert [asked.body["max_tokens"] for asked in server.requests] == [9, 8, 7]


async def test_cut_reply_says_so_and_is_continued(qwen: Qwen) -> None:
    async with qwen.server("one two three four five", "six") as server, make_engine(server.url) as engine:
        cut, _ = await ask(engine, max_tokens=3, stream=True)
        more: Message = {"role": "user", "content": "go on"}
        second, _ = await ask(engine, [*HELLO, said(cut), more])
    assert cut.finish_reason == "length"
    assert sampled_of(second).extends is cut.sampled
    assert sampled_of(second).prompt_ids[0] == qwen.stop


async def test_prompt_that_fills_the_context_overflows(qwen: Qwen) -> None:
    size = len(qwen.renderer.render(HELLO, None))
    async with qwen.server("ok", max_model_len=size) as server, make_engine(server.url) as engine:
        with pytest.raises(ContextOverflow) as caught:
            await ask(engine)
        assert (caught.value.prompt_tokens, caught.value.limit) == (size, size)
    async with qwen.server("ok") as server, make_engine(server.url) as engine:
        with pytest.raises(ContextOverflow):
            await ask(engine, max_context=size)
        with pytest.raises(ContextOverflow, match=r"is 500 tokens.* tokens or more"):  # not all are counted
            await ask(engine, [{"role": "user", "content": "word " * 100_000}], max_context=500)
        assert server.requests == []


BREAKS: list[VLLMFault] = ["abort", "drop", "error-event", "drop-at-end"]
REFUSALS: list[VLLMFault] = ["429", "500", "refuse", "empty", "error-in-reply"]


@given(
    faults=st.lists(st.sampled_from(BREAKS + REFUSALS), max_size=6),
    after=st.integers(1, 4),
    piece=st.integers(1, 3),
    stream=st.booleans(),
)
@example(faults=["abort", "drop", "error-event"], after=2, piece=1, stream=True)
@example(faults=["abort"] * 3, after=2, piece=1, stream=False)
@example(faults=["drop-at-end"], after=2, piece=1, stream=True)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_failure_loses_or_repeats_a_token(
    qwen: Qwen, faults: list[VLLMFault], after: int, piece: int, stream: bool
) -> None:
    """A reply that breaks off is continued, and costs none of the retries."""
    text, retries = "one reply of some tokens", sum(fault in REFUSALS for fault in faults)
    async with (
        qwen.server(text, "never asked for", faults=faults, after=after, piece=piece) as server,
        make_engine(server.url, max_retries=retries) as engine,
    ):
        completion, ear = await ask(engine, stream=stream)
    turn = sampled_of(completion)
    assert turn.completion_ids.tolist() == [*qwen.encode(text), qwen.stop]
    assert turn.logprobs.tolist() == [logprob_of(token) for token in turn.completion_ids.tolist()]
    assert ear.text() == (text if stream else "")
    for earlier, later in itertools.pairwise(server.requests):
        assert later.prompt == earlier.prompt + earlier.sent
        assert later.body["max_tokens"] == earlier.body["max_tokens"] - len(earlier.sent)
    assert server.requests[-1].prompt + server.requests[-1].sent == all_ids(turn)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("429", EngineUnavailable, "too many requests"),
        ("500", EngineUnavailable, "fails (500)"),
        ("refuse", EngineUnavailable, "broke the connection"),
        ("empty", EngineProtocolError, "no token (tried 3 times)"),
        ("hang", EngineUnavailable, "sent nothing in time (tried 3 times)"),
        ("400", RequestRefused, "refuses this request (400)"),
        ("vocabulary", RequestRefused, "out of vocabulary"),
        ("context", ContextOverflow, "maximum context length"),
        ("401", EngineRefused, "refuses the key"),
        ("404", EngineRefused, "'scripted'"),
        ("not-json", EngineProtocolError, "invalid JSON"),
        ("no-ids", EngineProtocolError, "return_token_ids"),
        ("short-logprobs", EngineProtocolError, "logprobs for"),
        ("wrong-prompt", EngineProtocolError, "other prompt ids"),
    ],
)
async def test_server_failure_has_a_type_and_a_message(
    qwen: Qwen, fault: VLLMFault, kind: type[EngineError], words: str
) -> None:
    async with qwen.server("fine text", then=fault) as server:
        async with make_engine(server.url, timeout=0.2 if fault == "hang" else 60) as engine:
            with pytest.raises(EngineError) as caught:
                await ask(engine)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert KEY not in str(caught.value)


async def test_garbage_event_keeps_what_was_sampled(qwen: Qwen) -> None:
    async with qwen.server("some text", then="garbage") as server, make_engine(server.url) as engine:
        request = chat()
        with pytest.raises(EngineProtocolError, match="invalid JSON"):
            await engine.complete(request, session(), Ear())
    assert request.progress.sampled is not None
    assert request.progress.sampled.completion_ids.tolist() == server.requests[0].sent


async def test_missing_logprobs_are_nan_and_beyond_the_limit_make_engine_unfit(qwen: Qwen) -> None:
    faults: list[VLLMFault] = ["ok", "no-logprobs", "null-logprobs"]
    async with qwen.server([7] * 63 + [qwen.stop], faults=faults) as server:
        async with make_engine(server.url, max_missing_logprobs=0.6) as engine:
            await ask(engine)
            completion, _ = await ask(engine)
            assert all(map(math.isnan, sampled_of(completion).logprobs.tolist()))
            assert engine.unfit is None
            with pytest.raises(EngineProtocolError, match="no log-probability for 128 of 192 sampled tokens"):
                await ask(engine)
            assert engine.unfit is not None
            assert "engine.vllm.max_missing_logprobs" in engine.unfit


@pytest.mark.parametrize(("stream", "after"), [(False, 4), (True, 4), (False, 0)])
async def test_cancelled_call_aborts_request_and_keeps_tokens(qwen: Qwen, stream: bool, after: int) -> None:
    then: VLLMFault = "stall" if after else "hang"
    async with qwen.server("many tokens in here", then=then, after=after) as server:
        async with make_engine(server.url) as engine:
            await engine.check()
            request = chat()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.complete, request, session(), Ear() if stream else None)
                while not server.requests:
                    await anyio.lowlevel.checkpoint()
                await (heard_by(request)(after) if after else server.requests[0].begun.wait())
                tasks.cancel_scope.cancel()
            with anyio.fail_after(120):
                await server.requests[0].finished.wait()
    assert server.requests[0].disconnected
    sampled = request.progress.sampled
    assert (sampled.completion_ids.tolist() if sampled else []) == server.requests[0].sent


async def test_token_of_uncertain_version_carries_the_older(qwen: Qwen) -> None:
    """The first event after an announcement may have waited here, and the server may have held back ids of
    the second one."""
    request = chat()
    heard = heard_by(request)

    async def between(sent: int) -> None:
        await heard(sent)
        if sent == 4:
            engine.set_policy_version(2)
        for _ in range(20):  # until the engine waits for more
            await anyio.lowlevel.checkpoint()

    async with qwen.server("a b c d e f g h", between=between) as server, make_engine(server.url) as engine:
        engine.set_policy_version(1)
        completion = await engine.complete(request, session(), Ear())
        server._between = None
        after, _ = await ask(engine)
    versions = sampled_of(completion).versions.tolist()
    assert len(versions) > 8
    assert versions == [1] * 8 + [2] * (len(versions) - 8)
    assert set(sampled_of(after).versions.tolist()) == {2}


async def test_late_read_tokens_carry_the_older_version() -> None:
    """The event loop is busy elsewhere when the event arrives."""
    protocol = BaseProtocol(asyncio.get_running_loop())
    protocol.connection_made(asyncio.Transport())
    content = aiohttp.StreamReader(protocol, 2**16)
    response = SimpleNamespace(content_type="text/event-stream", content=content)
    client = Client(
        cast(Any, None), "http://h", ErrorTranslator("vLLM server", "http://h", "", "m", "KEY", None), 60
    )
    # What answers stands in for aiohttp's response, and is no method: hence "type: ignore".
    client._asked = lambda body: nullcontext(response)  # type: ignore[method-assign, assignment, return-value]
    policy = Policy("m", None)
    versions: list[int] = []

    def event(token: int) -> bytes:
        choice = {"index": 0, "token_ids": [token], "logprobs": {"token_logprobs": [-1.0]}}
        return b"data: %b\n\n" % orjson.dumps({"choices": [choice]})

    async def later() -> None:
        held_back, sampled_after = event(3), event(4) + b"data: [DONE]\n\n"
        for rest in (held_back[:9], held_back[9:], sampled_after):
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            content.feed_data(rest)

    async with anyio.create_task_group() as group:
        content.feed_data(event(1))
        async for chunk in client.sample(b"", Asked(b"", 9), lambda: policy.version):  # noqa: B023 (the newest one)
            versions.append(chunk.version)
            if len(versions) == 1:
                content.feed_data(event(2))
                policy = replace(policy, version=1)
            elif len(versions) == 2:  # all that came was read, but the server may hold back ids
                group.start_soon(later)
    assert versions == [0, 0, 0, 1]


def test_malformed_event_is_an_error() -> None:
    replies = Replies(ErrorTranslator("vLLM server", "http://h", "", "m", "KEY", None))

    def said(ids: str, logprobs: str) -> bytes:
        return f'{{"choices":[{{"token_ids":{ids},"logprobs":{{"token_logprobs":{logprobs}}}}}]}}'.encode()

    for chunk, event, why in (
        (Chunk(), b'{"choices":[{"index":1,"token_ids":[9],"logprobs":null}]}', "a choice with the index 1"),
        (Chunk(), b'{"choices":[{"token_ids":[9],"finish_reason":"\xff"}]}', "invalid JSON|Invalid UTF-8"),
        (Chunk(), b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid JSON"),
        (Chunk(finish="stop"), b'{"choices":[{"token_ids":[9]}]}', "more of a reply that had ended"),
        (Chunk(), said("[2]", "[0.001]"), "token_logprobs"),
        (Chunk(), said("[2]", "[-1e999]"), "out of range"),
        (Chunk(), said("[2]", "[NaN]"), "invalid JSON"),
        (Chunk(), said("[2]", "[-Infinity]"), "invalid JSON"),
    ):
        with pytest.raises(EngineProtocolError, match=why):
            replies.add(chunk, event, Asked(b"", 2, vocabulary=50))
    chunk = Chunk()
    replies.add(chunk, said("[2,49,1]", "[1e-7,null,-9999.0]"), Asked(b"", 3))
    replies.check(chunk.ids, Asked(b"", 4, vocabulary=50), before=1)
    for asked, why in (
        (Asked(b"", 3), "more ids than the 3"),
        (Asked(b"", 4, 49), "the id 49, .* has 49 ids"),
    ):
        with pytest.raises(EngineProtocolError, match=why):
            replies.check(chunk.ids, asked, before=1)
    prompt = SimpleNamespace(extends=None, new_ids=[], rendered="full", cause=None)
    generation = Generation(cast(Any, prompt), 9, (), Progress(), (), str)
    generation.add(chunk)
    assert generation.missing() == 2
    assert [math.isnan(logprob) for logprob in generation.sampled().logprobs] == [False, True, True]


async def test_server_that_breaks_off_for_ever_is_left(qwen: Qwen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "swe_core.builtin.vllm.engine.pause", lambda backoff, attempt: waits.append(attempt) or 0
    )
    waits: list[int] = []
    async with qwen.server([7] * 500, then="drop", after=1, piece=1) as server:
        async with make_engine(server.url, max_retries=0) as engine:
            with pytest.raises(EngineUnavailable, match="broke replies off after a few tokens 10 times"):
                await ask(engine)
    assert (len(server.requests), waits) == (10, [*range(1, 10)])


async def test_request_that_changes_the_distribution_is_rejected(qwen: Qwen) -> None:
    async with qwen.server() as server, make_engine(server.url) as engine:
        for name, value, words in (
            ("tool_choice", "required", "tool_choice 'required' is not supported"),
            ("response_format", {"type": "json_object"}, "response_format"),
            ("logit_bias", {"50256": -100}, "logit_bias is not supported"),
            ("stop", 3, "stop is 3"),
            ("stop", [""], "stop is .*none of them empty"),
        ):
            with pytest.raises(RequestRefused, match=words):
                await ask(engine, tools=TOOLS, **{name: value})


async def test_tool_choice_none_hides_the_tools(qwen: Qwen) -> None:
    async with qwen.server("x") as server, make_engine(server.url) as engine:
        neutral = {"response_format": {"type": "text"}, "logit_bias": {}}
        await ask(engine, tools=TOOLS, tool_choice="none", **neutral)
        await ask(engine)
    assert server.requests[0].prompt == server.requests[1].prompt


async def test_text_ends_at_a_stop_text(qwen: Qwen) -> None:
    async with (
        qwen.server("first line\nOBSERVE second line of it") as server,
        make_engine(server.url) as engine,
    ):
        whole, _ = await ask(engine, stop=["OBSERVE", "never"])
        streamed, ear = await ask(engine, stop="OBSERVE", stream=True)
    assert whole.message["content"] == streamed.message["content"] == ear.text() == "first line\n"
    assert whole.stopped_by == streamed.stopped_by == "OBSERVE"
    assert sampled_of(whole).completion_ids.tolist() == server.requests[0].sent


@pytest.mark.parametrize(
    ("fault", "stream", "after", "requests"),
    [("drop", True, 2, 2), ("abort", True, 3, 1), ("drop", True, 4, 1), ("abort", False, 2, 2)],
    ids=["in it", "at it", "behind it", "whole"],
)
async def test_stop_text_is_found_across_a_broken_reply(
    qwen: Qwen, fault: VLLMFault, stream: bool, after: int, requests: int
) -> None:
    parts = ["say ", "OBS", "ERVE", " a long story that"]
    encoded = [qwen.encode(part) for part in parts]
    ids = [token for part in encoded for token in part]
    before, stopped = (sum(map(len, encoded[:number])) for number in (after, 3))
    async with (
        qwen.server([*ids, qwen.stop], faults=[fault], after=before, piece=1) as server,
        make_engine(server.url) as engine,
    ):
        completion, ear = await ask(engine, stop="OBSERVE", stream=stream, max_tokens=len(ids))
    assert completion.message["content"] == "say "
    assert (completion.finish_reason, completion.stopped_by) == ("stop", "OBSERVE")
    assert ear.text() == ("say " if stream else "")
    assert len(server.requests) == requests
    assert sampled_of(completion).completion_ids.tolist() == ids[: max(before, stopped)]


async def test_rollouts_are_isolated_and_freed_at_their_end(qwen: Qwen) -> None:
    async with qwen.server("hi") as server, make_engine(server.url) as engine:
        first, _ = await ask(engine, rollout="a")
        history = [*HELLO, said(first), {"role": "user", "content": "more"}]
        other, _ = await ask(engine, history, rollout="b")
        await engine.end(session("a"))
        again, _ = await ask(engine, history, rollout="a")
        assert sampled_of(other).cause == sampled_of(again).cause == "start"
        await engine.end(session("never seen"))


def chooses(url: str, *others: str) -> str:
    """The id of a rollout that asks the server of `url` where none has more rollouts than another."""
    ids = (f"r{number}" for number in itertools.count())
    return next(name for name in ids if max((url, *others), key=partial(_rank, name)) == url)


async def test_call_leaves_nothing_to_the_garbage_collector(qwen: Qwen) -> None:
    async with qwen.server("hi") as server, make_engine(server.url) as engine:
        gc.collect()
        gc.disable()
        try:
            await ask(engine)
            assert Generation not in map(type, gc.get_objects())
        finally:
            gc.enable()


async def test_rollout_leaves_failed_server(qwen: Qwen) -> None:
    async with qwen.server(then="500") as bad, qwen.server("from the other") as good:
        async with make_engine(bad.url + ", " + good.url + "/v1") as engine:
            first = chooses(bad.url, good.url)
            completion, _ = await ask(engine, rollout=first)
            assert completion.message["content"] == "from the other"
            assert len(bad.requests) == 3
            await ask(engine, rollout="another")
            await ask(engine, rollout=first)
            assert len(bad.requests) == 3
    async with qwen.server(then="500") as bad, qwen.server(then="500") as worse:
        async with make_engine(bad.url, worse.url) as engine:
            with pytest.raises(EngineUnavailable, match="tried 3 times"):
                await ask(engine)
            assert (len(bad.requests), len(worse.requests)) == (3, 3)


async def test_concurrent_calls_leave_failed_server_together(qwen: Qwen) -> None:
    async with qwen.server(then="500") as bad, qwen.server("good") as good:
        async with make_engine(bad.url, good.url) as engine:
            rollout = chooses(bad.url, good.url)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(ask, engine, rollout=rollout))
                tasks.start_soon(partial(ask, engine, rollout=rollout))
            assert len(good.requests) == 2
            await engine.end(session(rollout))
            assert [server.rollouts for server in engine._servers._servers] == [0, 0]


async def test_server_that_is_taken_out_serves_no_new_rollout_until_it_is_back(qwen: Qwen) -> None:
    async with qwen.server("a") as one, qwen.server("b") as two:
        async with make_engine(one.url, two.url) as engine:
            on_one, on_two = chooses(one.url, two.url), chooses(two.url, one.url)
            await ask(engine, rollout=on_one)
            await ask(engine, rollout=on_two)
            assert engine.take_out(one.url) == [on_one]
            for number in range(5):
                await ask(engine, rollout=f"late{number}")
            assert (len(one.requests), len(two.requests)) == (1, 6)
            assert engine.take_out(two.url) == [on_two, *(f"late{number}" for number in range(5))]
            with pytest.raises(EngineUnavailable, match="all servers of the model 'scripted' are dead"):
                await ask(engine, rollout="nowhere")
            engine.put_in(one.url)
            engine.put_in(one.url)
            await ask(engine, rollout="again")
            assert (len(one.requests), len(two.requests)) == (2, 6)


async def test_rollout_moves_only_to_servers_that_are_in(qwen: Qwen) -> None:
    """One that is put in may be one that was dead at the start."""
    async with qwen.server(then="500") as bad, qwen.server("old weights", key=KEY) as other:
        async with make_engine(bad.url) as engine:
            with pytest.raises(EngineUnavailable, match="tried 3 times"):
                await ask(engine)
            assert other.requests == []
            engine.put_in(other.url)
            await ask(engine, rollout="another")
            assert len(other.requests) == 1


async def test_long_prompt_is_sent_and_compared(qwen: Qwen) -> None:
    long: list[Message] = [{"role": "user", "content": "word " * 20_000}]
    async with qwen.server("ok", max_model_len=200_000) as server, make_engine(server.url) as engine:
        completion, _ = await ask(engine, long, stream=True)
    assert len(server.requests[0].prompt) > 20_000
    assert sampled_of(completion).prompt_ids.tolist() == server.requests[0].prompt


def test_unusable_settings_are_rejected() -> None:
    for setting, words in (
        ({"url": " , "}, "--engine-url URL"),
        ({"model": None}, "--model NAME"),
        ({"url": "ftp://host"}, "not a base URL"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_engine("http://h", **setting)


async def test_count_is_that_of_the_prompt_that_would_be_sent(qwen: Qwen) -> None:
    """With the reasoning of earlier replies, which a prompt that is rendered afresh would not have."""
    async with (
        qwen.server("<think>\nA long thought.\n</think>\n\nHi.") as server,
        make_engine(server.url) as engine,
    ):
        replied, _ = await ask(engine)
        history = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Go on."}]
        counted = await engine.count_tokens(chat(history), session())
        alone = await engine.count_tokens(chat(history), session("another"))
        assert counted == (await ask(engine, history))[0].usage.prompt_tokens
        assert counted > alone
        assert replied.message["reasoning_content"]
