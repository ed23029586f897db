"""What a provider attaches to its replies goes back to it, whatever the agent's dialect drops."""

from __future__ import annotations

from typing import Any

import pytest

from swe_core.api.engine import ChatRequest, EngineSession
from swe_core.api.messages import Message
from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai.engine import OpenAIEngine
from swe_core.builtin.openai.memory import Memory
from swe_core.builtin.openai.providers import PROVIDERS
from swe_testing.provider import ScriptedProvider, say

GO: Message = {"role": "user", "content": "go"}
SIGNED = {"extra_content": {"google": {"thought_signature": "s"}}}
DETAILS = [{"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0}]


def call(id: str = "a", command: str = "ls", **more: Any) -> dict[str, Any]:
    function = {"name": "bash", "arguments": f'{{"command": "{command}"}}'}
    return {"id": id, "type": "function", "function": function, **more}


def said(*calls: dict[str, Any], content: str = "Looking.", **more: Any) -> Message:
    message: Message = {"role": "assistant", "content": content, **more}
    return {**message, "tool_calls": list(calls)} if calls else message


def asked(*messages: Message) -> ChatRequest:
    canonical = [
        {key: value for key, value in one.items() if key in ("role", "content", "tool_calls", "tool_call_id")}
        for one in messages
    ]
    return ChatRequest({"messages": list(messages)}, canonical)


def restored(memory: Memory, *messages: Message) -> list[Message]:
    return memory.restored(asked(GO, *messages))[1:]


HM, OURS = {"reasoning": "hm"}, {"reasoning_content": "hm"}
OTHER = {"content": "another reply"}
IN_FUNCTION = call(function={**call()["function"], "signature": "s"})


@pytest.mark.parametrize(
    ("provider", "gave", "sent", "gets"),
    [
        # An unknown provider: what it gave, under its names.
        (None, said(call(), **HM), said(call()), said(call(), **HM)),
        (None, said(**HM), said(**OURS), said(**HM)),
        (None, said(thinking_blocks=[1]), said(), said(thinking_blocks=[1])),
        (None, said(annotations=[1], refusal="no"), said(), said()),
        (None, said({**IN_FUNCTION, "index": 0}), said(call()), said(IN_FUNCTION)),
        # What only the first call has; other ids; rewritten arguments and text.
        (None, said(call(**SIGNED), call("b")), said(call(), call("b")), said(call(**SIGNED), call("b"))),
        (None, said(call(**SIGNED)), said(call("x")), said(call(**SIGNED))),
        (
            None,
            said(call(**SIGNED), **HM),
            said(call(command="pwd"), **OTHER),
            said(call(command="pwd", **SIGNED), **OTHER, **HM),
        ),
        (None, said(call(**SIGNED), call("b")), said(call("b")), said(call("b", **SIGNED))),
        # No reply of the provider: the agent's reasoning, under the provider's name if one is known.
        (None, said(**HM), said(**OTHER, **OURS), said(**OTHER, **HM)),
        (None, said(), said(**OTHER, **OURS), said(**OTHER, **OURS)),
        # Providers of the table.
        ("gemini", said(call(**SIGNED), **SIGNED), said(call(), **OURS), said(call(**SIGNED), **SIGNED)),
        ("deepseek", said(call(), **OURS), said(call()), said(call(), **OURS)),
        ("groq", said(**HM, executed_tools=[1]), said(**OURS), said(**HM)),
        ("cerebras", said(), said(**OTHER, **OURS), said(**OTHER, **HM)),
        ("openrouter", said(**HM, reasoning_details=DETAILS), said(), said(**HM, reasoning_details=DETAILS)),
        ("openai", said(**OURS), said(**OURS), said()),
        ("mistral", said(**OURS), said(**HM), said()),
    ],
)
def test_provider_gets_its_own_fields_back(
    provider: str | None, gave: Message, sent: Message, gets: Message
) -> None:
    memory = Memory(PROVIDERS[provider].takes if provider else None)
    memory.keep(asked(GO), gave)
    assert restored(memory, sent) == [gets]


def test_results_have_the_ids_of_the_provider() -> None:
    memory = Memory(())
    memory.keep(asked(GO), said(call("own1"), call("own2", "pwd")))
    results = [{"role": "tool", "content": id, "tool_call_id": id} for id in ("x", "y", "z")]
    sent = restored(memory, said(call("x"), call("y", "pwd")), *results)
    assert [one["id"] for one in sent[0]["tool_calls"]] == ["own1", "own2"]
    assert [one["tool_call_id"] for one in sent[1:]] == ["own1", "own2", "z"]


def test_results_come_directly_after_their_calls() -> None:
    one, two = ({"role": "tool", "content": "", "tool_call_id": id} for id in "ab")
    first, second = said(call("a")), said(call("b"))
    assert restored(Memory(None), first, second, GO, two, said(), one, GO) == [
        first, one, second, two, GO, said(), GO
    ]  # fmt: skip


def test_equal_replies_keep_their_order() -> None:
    memory = Memory(None)
    for text in ("one", "two", "three"):
        memory.keep(asked(GO), said(reasoning=text))
    memory.keep(asked({"role": "user", "content": "more"}), said(reasoning="four"))
    sent = restored(memory, said(), GO, said(), {"role": "user", "content": "more"}, said())
    assert [one["reasoning"] for one in sent if one["role"] == "assistant"] == ["one", "two", "four"]


def test_call_without_a_thought_goes_back_with_an_empty_one_where_others_have_one() -> None:
    for takes, given, empty in ((None, OURS, {"reasoning_content": ""}), (None, HM, {}), ((), OURS, {})):
        memory = Memory(takes)
        memory.keep(asked(GO), said(call("a"), **given))
        memory.keep(asked(GO), said(call("b", "pwd")))
        assert restored(memory, said(call("b", "pwd")))[0] == said(call("b", "pwd"), **empty)
        assert restored(memory, said()) == [said()]


def test_reply_that_its_ids_name_counts_among_equal_ones() -> None:
    memory = Memory(None)
    for text in ("one", "two"):
        memory.keep(asked(GO), said(call("call_0"), reasoning=text))
    sent = restored(memory, said(call("call_0")), GO, said(call("call_1")))
    assert [one["reasoning"] for one in sent[::2]] == ["one", "two"]


def test_streamed_details_are_one() -> None:
    memory = Memory(None)
    pieces = [{"type": "reasoning.text", "text": text, "index": 0} for text in "hm"]
    memory.keep(asked(GO), said(reasoning_details=[*pieces, {**pieces[0], "text": None, "signature": "s"}]))
    assert restored(memory, said())[0]["reasoning_details"] == DETAILS


def test_streamed_blocks_of_thinking_are_one_each_and_data_of_two_calls_are_two() -> None:
    pieces = [{"type": "thinking", "thinking": text, "signature": None} for text in "hm"]
    end = {"type": "thinking", "thinking": "", "signature": "s"}
    sealed = [{"type": "reasoning.encrypted", "data": "d", "index": 0, "id": id} for id in "ab"]
    memory = Memory(None)
    memory.keep(asked(GO), said(thinking_blocks=[*pieces, end, *pieces, end], reasoning_details=sealed))
    (sent,) = restored(memory, said())
    assert sent["thinking_blocks"] == [{**end, "thinking": "hm"}] * 2
    assert sent["reasoning_details"] == sealed


async def test_rollout_keeps_complete_replies_until_it_ends() -> None:
    cut = say("", reasoning="cut").model_copy(update={"finish_reason": "length"})
    one, two = (EngineSession(name, "t", 0, "a") for name in ("one", "two"))
    async with (
        ScriptedProvider([cut, *[say("", **HM)] * 4]) as provider,
        OpenAIEngine(OpenAIConfig(url=provider.url, model="m")) as engine,
    ):
        for who in (one, one, one, two):
            await engine.complete(asked(GO, said(content="")), who)
        await engine.end(one)
        await engine.complete(asked(GO, said(content="")), one)
    sent = [seen.body["messages"][1].get("reasoning") for seen in provider.requests]
    assert sent == [None, None, "hm", None, None]
