"""The Messages API: requests to canonical messages, and replies that a client's history brings back."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import jiter
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_core.api.deltas import cut
from swe_core.api.engine import Completion, Delta, Usage
from swe_core.api.messages import Message, message_key
from swe_core.errors import ContextOverflow
from swe_core.interception.dialects.base import BadRequest, ErrorKind, ParsedRequest, Problem, Reply, Target
from swe_core.interception.dialects.messages import Messages
from swe_core.interception.dialects.messages_input import ObjectPrefix

MESSAGES = Messages()
GENERATE, COUNT = MESSAGES.routes
USAGE = Usage(prompt_tokens=7, completion_tokens=9)
HELLO = {"role": "user", "content": "hello"}
CANONICAL_HELLO = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = {"name": "Bash", "description": "Run it.", "input_schema": SCHEMA}
FETCH = {"name": "Fetch", "input_schema": {"type": "object"}, "defer_loading": True}
SHOWN, SIGNED = {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive", "display": "omitted"}


def _parse(*messages: Any, route: Any = GENERATE, memory: Any = None, **more: Any) -> ParsedRequest:
    body = json.dumps({"messages": messages, **more})
    return MESSAGES.parse(body.encode(), Target(route, memory={} if memory is None else memory))


def _messages(*messages: Any, **more: Any) -> list[Message]:
    return list(_parse(*messages, **more).messages)


def _assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def _user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _use(id: str = "c1", input: Any = None, name: str = "Bash") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {} if input is None else input}


def _result(content: Any = None, id: str = "c1", **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": id, **more}
    return block if content is None else {**block, "content": content}


def _call(arguments: str, id: str = "c1", name: str = "Bash") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _said(content: str = "", *arguments: str, reasoning: str = "") -> Message:
    """Return a reply of the model, in canonical form."""
    message: Message = {"role": "assistant"}
    if reasoning:
        message["reasoning_content"] = reasoning
    message["content"] = content
    if arguments:
        message["tool_calls"] = [_call(text, f"c{number}") for number, text in enumerate(arguments, 1)]
    return message


def _tool(text: str, id: str = "c1") -> Message:
    return {"role": "tool", "content": text, "tool_call_id": id}


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ([_user(_text("a"), _text("b"))], [{"role": "user", "content": "ab"}]),
        ([_user()], [{"role": "user", "content": ""}]),
        (
            [HELLO, {"role": "system", "content": [_text("be brief")], "output_config": {"effort": "low"}}],
            [CANONICAL_HELLO, {"role": "system", "content": "be brief"}],
        ),
        ([HELLO, {"role": "system", "content": [], "output_config": {"effort": "low"}}], [CANONICAL_HELLO]),
        (
            [
                HELLO,
                _assistant(_text("I "), _text("look."), _use("c1", {"a": 1}), _use("c2")),
                _user(_text("go on"), _result("one"), _result([_text("t"), _text("wo")], "c2")),
            ],
            [
                CANONICAL_HELLO,
                _said("I look.", '{"a":1}', "{}"),
                _tool("one"),
                _tool("two", "c2"),
                {"role": "user", "content": "go on"},
            ],
        ),
        (
            [HELLO, _assistant(_use()), _user(_result("no such file", is_error=True))],
            [CANONICAL_HELLO, _said("", "{}"), _tool("Error: no such file")],
        ),
        (
            [HELLO, _assistant(_use()), _user(_result(is_error=False))],
            [CANONICAL_HELLO, _said("", "{}"), _tool("")],
        ),
        (
            [
                HELLO,
                _assistant(
                    {"type": "thinking", "thinking": "h", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "thinking", "thinking": "m", "signature": "x"},
                    _text("yes"),
                ),
                HELLO,
            ],
            [CANONICAL_HELLO, _said("yes", reasoning="hm"), CANONICAL_HELLO],
        ),
        (
            # A turn that the client sends block by block.
            [
                HELLO,
                _assistant({"type": "thinking", "thinking": "hm", "signature": "x"}),
                {"role": "assistant", "content": "I look."},
                _assistant(_use("c1")),
                _assistant(_use("c2")),
                _user(_result("one"), _result("two", "c2")),
            ],
            [
                CANONICAL_HELLO,
                _said("I look.", "{}", "{}", reasoning="hm"),
                _tool("one"),
                _tool("two", "c2"),
            ],
        ),
    ],
)
def test_messages_become_canonical(given: list[Any], canonical: list[Message]) -> None:
    asked = _parse(*given)
    assert asked.messages == canonical
    assert asked.body["messages"] == canonical


@pytest.mark.parametrize(
    ("system", "first"),
    [
        ("be brief", [{"role": "system", "content": "be brief"}]),
        (
            [_text("You are x."), _text("\nBe brief.")],
            [{"role": "system", "content": "You are x.\nBe brief."}],
        ),
        ("", []),
        ([], []),
        (None, []),
    ],
)
def test_system_prompt_is_the_first_message(system: Any, first: list[Message]) -> None:
    assert _messages(HELLO, system=system) == [*first, CANONICAL_HELLO]


@pytest.mark.parametrize("signature", ["", "!", "c3d", "/w=="])
def test_signature_of_another_server_has_no_reasoning(signature: str) -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": signature}
    assert _messages(HELLO, _assistant(thinking, _text("yes")), HELLO)[1] == _said("yes")


def test_tools_become_functions() -> None:
    asked = _parse(HELLO, tools=[{**BASH, "cache_control": {"type": "ephemeral"}}, FETCH])
    function = {"name": "Bash", "description": "Run it.", "parameters": SCHEMA}
    assert asked.tools == asked.body["tools"] == [{"type": "function", "function": function}]
    assert _parse(HELLO).tools is None
    assert "tools" not in _parse(HELLO, tools=[FETCH]).body


def test_deferred_tool_is_shown_where_a_result_refers_to_it() -> None:
    """The tools before it stay, so that a prompt continues the one before it."""
    reference = {"type": "tool_reference", "tool_name": "Fetch"}
    result = _messages(
        HELLO,
        _assistant(_use(name="ToolSearch")),
        _user(_result([reference, _text("loaded")])),
        tools=[BASH, FETCH],
    )[2]
    shown = (
        '<functions>\n<function>{"name":"Fetch","parameters":{"type":"object"}}</function>\n</functions>\n'
    )
    assert result == _tool(shown + "loaded")


def test_options_get_the_names_of_a_chat_completion() -> None:
    asked = _parse(
        HELLO,
        model="m",
        max_tokens=5,
        stream=True,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop_sequences=["x"],
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
    )
    assert asked.body == {
        "model": "m",
        "messages": [CANONICAL_HELLO],
        "stream": True,
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["x"],
    }
    assert (asked.stream, asked.max_tokens) == (True, 5)
    assert _parse(HELLO).max_tokens is None


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        (
            {"type": "tool", "name": "Bash"},
            {"tool_choice": {"type": "function", "function": {"name": "Bash"}}},
        ),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
        (None, {}),
    ],
)
def test_choice_of_tools_is_translated(given: Any, choice: dict[str, Any]) -> None:
    body = _parse(HELLO, tools=[BASH], tool_choice=given).body
    assert {key: body[key] for key in ("tool_choice", "parallel_tool_calls") if key in body} == choice
    assert "tool_choice" not in _parse(HELLO, tool_choice=given).body  # none to choose from


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_format_of_a_reply_is_requested(where: str) -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    body = _parse(HELLO, **{where: {"format": wanted} if where == "output_config" else wanted}).body
    schema = {"name": "response", "schema": SCHEMA}
    assert body["response_format"] == {"type": "json_schema", "json_schema": schema}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
ONLY_TEXT = "this endpoint's model reads text only; send text"


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([_user(_text("x"), IMAGE)], f"messages.0.content.1.image: {ONLY_TEXT}"),
        (
            [HELLO, _assistant(_use()), _user(_result([IMAGE]))],
            f"messages.2.content.0.tool_result.content.0.image: {ONLY_TEXT}",
        ),
        ([_user({"type": "document", "source": {}})], f"messages.0.content.0.document: {ONLY_TEXT}"),
        (
            [HELLO, _assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})],
            "messages.1.content.0.type is 'server_tool_use', which is not supported here; "
            "send text, thinking and tool_use",
        ),
        ([_user(_use())], "messages.0.content.0.type is 'tool_use', which .* send text and tool_result"),
        (
            [HELLO, {"role": "system", "content": [{"type": "tool_addition", "tool": {}}]}],
            "messages.1.content.0.type is 'tool_addition', which is not supported here; send text",
        ),
        (
            [HELLO, {"role": "system", "content": "x", "clear_at": "next_user_message"}],
            "messages.1.clear_at: messages are not cleared here; leave it out",
        ),
        (
            [HELLO, _assistant(_use()), _user(_result("x", "c2"))],
            "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: c2; send",
        ),
        (
            [HELLO, _assistant(_use()), _user(_result([{"type": "tool_reference", "tool_name": "Fetch"}]))],
            "messages.2.content.0.tool_result.content.0: no tool 'Fetch' has `defer_loading`",
        ),
        (
            [HELLO, {"role": "assistant", "content": "It is ("}],
            "this model does not support assistant message prefill; the conversation must end with a user",
        ),
        (["hello"], "messages.0 is a string; send an object with a 'role'"),
        ([{"role": "critic", "content": ""}], "messages.0.role is 'critic'; send one of user, assistant"),
        ([{"content": ""}], "messages.0.role is None; send one of"),
        ([{"role": "user"}], "messages.0.content is missing or null; send a string or a list of blocks"),
        ([{"role": "user", "content": {}}], "messages.0.content is an object; send a string or a list"),
        ([{"role": "user", "content": ["x"]}], "messages.0.content.0 is a string; send an object with a"),
        ([_user({"text": "x"})], "messages.0.content.0.type is missing or null; send a string"),
        ([_user({"type": "text", "text": 3})], "messages.0.content.0.text is a number; send a string"),
        ([_user({"type": "tool_result"})], "messages.0.content.0.tool_use_id is missing or null; send a"),
        ([HELLO, _assistant({**_use(), "id": 3})], "messages.1.content.0.id is a number; send a string"),
        ([HELLO, _assistant({**_use(), "name": None})], "messages.1.content.0.name is missing or null"),
        ([HELLO, _assistant(_use(input=[]))], "messages.1.content.0.input is an empty list; send an object"),
        ([HELLO, _assistant({"type": "thinking"})], "messages.1.content.0.thinking is missing or null"),
        ([HELLO, _assistant(_use()), _user(_result(3))], "messages.2.content.0.tool_result.content is a num"),
        ([{"role": "system", "content": []}], "'messages' has no text; send at least one message with text"),
    ],
)
def test_unsupported_content_is_rejected(messages: list[Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        _parse(*messages)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"system": [IMAGE]}, f"system.content.0.image: {ONLY_TEXT}"),
        ({"system": 3}, "system.content is a number; send a string or a list of blocks"),
        ({"tools": {}}, "'tools' is an object; send a list"),
        ({"tools": ["x"]}, "tools.0 is a string; send an object"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema is missing or null; send an object"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name is missing or null; send a string"),
        (
            {"tools": [BASH, {"type": "web_search_20250305", "name": "web_search"}]},
            "tools.1.type is 'web_search_20250305': this endpoint runs no tools itself, and its model knows",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type is 'bash_20250124'"),
        ({"tools": [BASH], "tool_choice": {"type": "some"}}, "tool_choice.type is 'some'; send one of auto"),
        ({"tools": [BASH], "tool_choice": {"type": []}}, r"tool_choice.type is \[\]; send one of auto"),
        ({"tool_choice": "auto"}, "'tool_choice' is a string; send an object"),
        ({"thinking": True}, "'thinking' is a boolean; send an object"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format is .* of type json_schema"),
        ({"stop_sequences": "x"}, "'stop_sequences' is a string; send a list"),
        ({"stream": 1}, "'stream' is a number; send true or false"),
        ({"max_tokens": 0}, "'max_tokens' is 0; send a whole number of at least 1"),
        ({"mcp_servers": [{"url": "x"}]}, "'mcp_servers' is not supported here: this endpoint runs no tools"),
        ({"container": "x"}, "'container' is not supported here: there are no containers; leave it out"),
        ({"prefill": {"content": "x"}}, "'prefill' is not supported here"),
        ({"compaction": {"type": "auto"}}, "'compaction' is not supported here: nothing is compacted"),
        ({"thread": {"id": "x"}}, "'thread' is not supported here: no conversations are kept"),
    ],
)
def test_invalid_field_is_rejected(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        _parse(HELLO, **fields)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the request body is not JSON"),
        (b"[]", "the request body is an empty list; send a JSON object"),
        (b"{}", "'messages' is missing or null; send a list of at least one message"),
        (b'{"messages": []}', "'messages' is an empty list"),
        (b'{"messages": [' + b"[" * 200 + b"]" * 200 + b"]}", "nested more than 128 levels deep"),
    ],
)
def test_body_that_is_no_request_is_rejected(body: bytes, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        MESSAGES.parse(body, Target(GENERATE))


def test_prompt_to_count_may_end_with_the_model() -> None:
    said = _assistant(_text("yes"))
    assert _messages(HELLO, said, route=COUNT) == [CANONICAL_HELLO, _said("yes")]
    assert MESSAGES.count(5) == b'{"input_tokens":5}'


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"x-api-key": "k"}, "k"),
        ({"Authorization": "Bearer k"}, "k"),
        ({"x-api-key": "k", "Authorization": "Bearer other"}, "k"),
        ({"x-goog-api-key": "k"}, None),
    ],
)
def test_key_is_read_where_clients_send_it(headers: dict[str, str], key: str | None) -> None:
    assert MESSAGES.key(headers, {"key": "k"}) == key


@pytest.mark.parametrize(
    ("status", "kind", "word"),
    [
        (400, "invalid_request", "invalid_request_error"),
        (401, "authentication", "authentication_error"),
        (404, "invalid_request", "not_found_error"),
        (410, "rollout_over", "invalid_request_error"),
        (413, "invalid_request", "request_too_large"),
        (429, "engine", "rate_limit_error"),
        (424, "engine", "api_error"),
        (500, "server", "api_error"),
        (504, "engine", "timeout_error"),
    ],
)
def test_errors_have_the_types_of_the_api(status: int, kind: ErrorKind, word: str) -> None:
    body = json.loads(MESSAGES.error(Problem(status, kind, "so it is")))
    assert body == {"type": "error", "error": {"type": word, "message": "so it is"}}


def test_prompt_too_long_has_the_words_on_which_clients_compact() -> None:
    overflow = ContextOverflow(9, 8, or_more=True)
    problem = Problem(400, "invalid_request", "the engine's words", "context_length_exceeded", overflow)
    message = json.loads(MESSAGES.error(problem))["error"]["message"]
    assert re.fullmatch(r"prompt is too long: \d+ tokens > \d+ maximum", message)
    assert message == "prompt is too long: 9 tokens > 8 maximum"


def _reply(memory: Any = None, **more: Any) -> Reply:
    return MESSAGES.reply(_parse(HELLO, memory=memory, **more), "policy")


def _body(said: Message, memory: Any = None, **more: Any) -> list[Any]:
    """Return the blocks of a reply in one piece."""
    content: list[Any] = json.loads(_reply(memory, **more).body(Completion(said)))["content"]
    return content


def _without_ids(blocks: list[Any]) -> list[Any]:
    """Remove the ids of calls, which are new in each reply."""
    for block in blocks:
        if block["type"] == "tool_use":
            assert re.fullmatch("toolu_[0-9a-f]{32}", block.pop("id"))
    return blocks


def _events(raw: bytes) -> list[dict[str, Any]]:
    """Return the data of events, each of which has the name that its data says."""
    events = []
    for part in raw.decode().split("\n\n")[:-1]:
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _streamed(reply: Reply, completion: Completion, pieces: Iterable[Delta]) -> list[dict[str, Any]]:
    return _events(b"".join([*map(reply.delta, pieces), reply.end(completion)]))


def _summary(events: Iterable[dict[str, Any]]) -> list[Any]:
    """Return events in short."""
    short: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            short.append(event["content_block"]["type"])
        elif event["type"] == "content_block_delta":
            (text,) = (value for key, value in event["delta"].items() if key != "type")
            short.append((event["index"], text))
        elif event["type"] == "content_block_stop":
            short.append(event["index"])
    return short


@pytest.mark.parametrize(
    ("thinking", "first"),
    [
        (None, []),
        ({"type": "disabled"}, []),
        (SHOWN, [{"type": "thinking", "thinking": "hm", "signature": "c3dlLWNvcmU="}]),
        ({"type": "adaptive"}, [{"type": "thinking", "thinking": "hm", "signature": "c3dlLWNvcmU="}]),
        (SIGNED, [{"type": "thinking", "thinking": "", "signature": "aG0="}]),
    ],
)
def test_reply_in_one_piece(thinking: Any, first: list[Any]) -> None:
    said = _said("I look.", '{"command": "ls"}', "", reasoning="hm")
    completion = Completion(said, "tool_calls", USAGE, "the-model")
    body = json.loads(_reply(thinking=thinking).body(completion))
    assert body.pop("id").startswith("msg_")
    _without_ids(body["content"])
    used = {"type": "tool_use", "name": "Bash"}
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "the-model",
        "content": [*first, _text("I look."), {**used, "input": {"command": "ls"}}, {**used, "input": {}}],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "output_tokens": 9,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


@pytest.mark.parametrize(
    ("finish", "arguments", "reason"),
    [
        ("stop", [], "end_turn"),
        ("stop", ["{}"], "tool_use"),
        ("tool_calls", ["{}"], "tool_use"),
        ("tool_calls", [], "end_turn"),
        ("length", [], "max_tokens"),
        ("length", ["{}"], "max_tokens"),
        ("content_filter", [], "refusal"),
    ],
)
def test_reason_of_the_end(finish: str, arguments: list[str], reason: str) -> None:
    completion = Completion(_said("x", *arguments), finish)
    assert json.loads(_reply().body(completion))["stop_reason"] == reason
    assert _streamed(_reply(), completion, [])[-2]["delta"]["stop_reason"] == reason


def test_reply_says_which_stop_sequence_ended_it() -> None:
    for said, reason in ((_said("x"), "stop_sequence"), (_said("x", "{}"), "tool_use")):
        completion = Completion(said, stopped_by="END")
        body = json.loads(_reply().body(completion))
        stop = "END" if reason == "stop_sequence" else None
        assert (body["stop_reason"], body["stop_sequence"]) == (reason, stop)
        assert _streamed(_reply(), completion, [])[-2]["delta"] == {
            "stop_reason": reason,
            "stop_sequence": stop,
        }


def test_pieces_are_events_of_blocks() -> None:
    said = _said("I look.", '{"a": "bcdef"}', "", reasoning="hm, hm")
    events = _streamed(_reply(thinking=SHOWN), Completion(said, "tool_calls", USAGE), cut(said, 6))
    start, end, stop = events[0], events[-2], events[-1]
    message = start["message"]
    assert (message["content"], message["stop_reason"], message["model"]) == ([], None, "policy")
    assert _summary(events) == [
        *["thinking", (0, "hm, hm"), (0, "c3dlLWNvcmU="), 0],
        *["text", (1, "I look"), (1, "."), 1],
        *["tool_use", (2, '{"a": '), (2, '"bcdef'), (2, '"}'), 2],
        *["tool_use", 3],
    ]
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    used = {"type": "tool_use", "name": "Bash", "input": {}}
    begun = {"type": "thinking", "thinking": "", "signature": ""}
    assert _without_ids(starts) == [begun, _text(""), used, used]
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert (end["usage"]["input_tokens"], end["usage"]["output_tokens"]) == (7, 9)
    assert stop == {"type": "message_stop"}


def test_hidden_reasoning_makes_no_events() -> None:
    reply = _reply()
    (start,) = _events(reply.delta({"reasoning_content": "hm"}))
    assert start["type"] == "message_start"
    assert reply.delta({"reasoning_content": "hm"}) == b""


def test_signature_takes_the_place_of_the_text() -> None:
    said = _said("yes", reasoning="hm")
    events = _streamed(_reply(thinking=SIGNED), Completion(said), cut(said, 1))
    assert _summary(events)[:3] == ["thinking", (0, "aG0="), 0]


def _piece(index: int, arguments: str = "", **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **more, "function": {"arguments": arguments}}]}


def _begin(index: int, arguments: str = "") -> dict[str, Any]:
    call = {"index": index, "id": f"c{index + 1}", "function": {"name": "Bash", "arguments": arguments}}
    return {"tool_calls": [call]}


def test_calls_that_a_provider_mixes_follow_each_other() -> None:
    pieces = [_begin(0, '{"a'), _begin(1, '{"b'), _piece(0, '": 1'), _piece(1, '": 2}'), _piece(0, "}")]
    said = _said("", '{"a": 1}', '{"b": 2}')
    events = _streamed(_reply(), Completion(said), pieces)
    assert _summary(events) == [
        *["tool_use", (0, '{"a'), (0, '": '), (0, "1}"), 0],
        *["tool_use", (1, '{"b": 2}'), 1],
    ]


def test_call_waits_for_its_name() -> None:
    reply = _reply()
    reply.delta({"content": "x"})
    assert reply.delta(_piece(0, '{"a": ', id="c1")) == b""
    named = {"tool_calls": [{"index": 0, "function": {"name": "Bash"}}]}
    assert _summary(_events(reply.delta(named))) == [0, "tool_use", (1, '{"a": ')]


def test_text_ends_the_calls_before_it() -> None:
    memory: dict[str, Any] = {}
    pieces = [_begin(0, '{"a": '), {"content": "so"}, _piece(0, "1}"), {"content": " it is"}]
    events = _streamed(_reply(memory), Completion(_said("so it is", '{"a": 1}')), pieces)
    assert _summary(events) == ["tool_use", (0, '{"a": '), 0, "text", (1, "so"), (1, " it is"), 1]
    # The client has half of the input, and sends back what it made of it.
    call_id = events[1]["content_block"]["id"]
    echo = _messages(HELLO, _assistant(_use(call_id), _text("so it is")), HELLO, memory=memory)[1]
    assert echo == _said("so it is", '{"a": 1}')


def test_call_without_an_id_gets_one() -> None:
    memory: dict[str, Any] = {}
    said = {"role": "assistant", "content": None, "tool_calls": [{"function": _call("{}")["function"]}]}
    (block,) = _body(said, memory)
    (call,) = _messages(HELLO, _assistant(block), HELLO, memory=memory)[1]["tool_calls"]
    assert call == _call("{}", block["id"])


@pytest.mark.parametrize(
    ("sampled", "repeated"),
    [
        ({"command": "cd /testbed && ls"}, {"command": "ls"}),
        ({"path": "a", "new": "b  \n"}, {"replace_all": False, "path": "a", "new": "b\n"}),
        ({"command": "x" * 2000}, {"command": "x" * 1000}),
    ],
)
def test_call_stays_as_the_model_sampled_it(sampled: Any, repeated: Any) -> None:
    """Claude Code rewrites inputs in its history. The tokens of the reply would not be found again."""
    memory: dict[str, Any] = {}
    said = _said("", json.dumps(sampled), "{}")
    first, second = _body(said, memory)
    echo = _assistant({**first, "input": repeated}, second)
    answers = _user(_result("one", first["id"]), _result("two", second["id"]))
    assert _messages(HELLO, echo, answers, memory=memory)[1:] == [said, _tool("one"), _tool("two", "c2")]


@pytest.mark.parametrize(
    "change", [{"input": {}}, {"input": {"command": "[cleared]"}}, {"name": "Other"}, {"id": "toolu_other"}]
)
def test_call_that_a_client_replaces_is_the_clients(change: dict[str, Any]) -> None:
    """A client clears large inputs to save room in the context."""
    memory: dict[str, Any] = {}
    (block,) = _body(_said("", json.dumps({"command": "x" * 2000})), memory)
    echo = {**block, **change}
    (call,) = _messages(HELLO, _assistant(echo), HELLO, memory=memory)[1]["tool_calls"]
    arguments = json.dumps(echo["input"], separators=(",", ":"))
    assert call == _call(arguments, echo["id"], echo["name"])


def test_reply_without_content_has_no_block() -> None:
    empty = Completion(_said(), "length")
    assert json.loads(_reply().body(empty))["content"] == []
    kinds = [event["type"] for event in _streamed(_reply(), empty, [])]
    assert kinds == ["message_start", "message_delta", "message_stop"]


def test_failure_in_a_stream_is_an_event() -> None:
    (event,) = _events(_reply().failed(Problem(502, "engine", "it is down")))
    assert event["error"] == {"type": "api_error", "message": "it is down"}


def _partial(text: str) -> Any:
    """Read an input as Anthropic's SDKs do."""
    return jiter.from_json(text.encode(), partial_mode=True) if text else {}


def _claude_code(text: str) -> Any:
    """Read an input as Claude Code does."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {"__unparsedToolInput": {"raw": text, "len": len(text)}}
    return value if isinstance(value, dict) else {}


Reader = Callable[[str], Any]


def _collected(events: Iterable[dict[str, Any]], read: Reader) -> list[dict[str, Any]]:
    """Return the blocks that a client makes of events."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                block["input"] = read(inputs[event["index"]])
            else:
                (key,) = delta.keys() - {"type"}
                block[key] += delta[key]
    return blocks


def _is_object(arguments: str) -> bool:
    prefix = ObjectPrefix()
    prefix.add(arguments)
    return prefix.whole


def _echo(blocks: Iterable[dict[str, Any]], dice: random.Random) -> list[dict[str, Any]]:
    """Return blocks as clients send them back: marks of a cache, keys in another order, blocks split up."""
    echoed = []
    for block in blocks:
        items = [*block.items()]
        if block["type"] == "tool_use":
            items = [(key, dict(sorted(one.items()))) if key == "input" else (key, one) for key, one in items]
        if dice.random() < 0.3:
            items.append(("cache_control", {"type": "ephemeral"}))
        dice.shuffle(items)
        if block["type"] == "text" and dice.random() < 0.3:
            at = dice.randrange(len(block["text"]) + 1)
            echoed += [_text(block["text"][:at]), _text(block["text"][at:])]
        else:
            echoed.append(dict(items))
    return echoed


_words = st.text(st.characters(codec="utf-8"), max_size=20)
_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _words,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(_words, inside, max_size=3),
    max_leaves=10,
)
_arguments = st.one_of(
    st.builds(
        json.dumps,
        st.dictionaries(_words, _values, max_size=4),
        indent=st.sampled_from([None, 1]),
        ensure_ascii=st.booleans(),
    ),
    st.builds(json.dumps, _values),
    _words,
)
_broken = st.builds(
    lambda value, at: json.dumps(value)[:at], st.dictionaries(_words, _values, min_size=1), st.integers(1, 40)
)
_replies = st.builds(
    lambda content, reasoning, arguments: _said(content, *arguments, reasoning=reasoning),
    _words,
    _words,
    st.lists(_arguments | _broken, max_size=3),
)


@given(_replies, st.sampled_from([None, SHOWN, SIGNED]), st.integers(1, 9), st.randoms(use_true_random=False))
@example(_said("I look.", '{"a": 1, "b": "c', reasoning="hm"), SHOWN, 2, random.Random(1))
@example(_said("", '{"a": 1}}', '{"a": NaN}', " [1]", " "), None, 1, random.Random(2))
@example(_said("", '{"a": "\\ud83d"}', '{"a": 1e400}', '{"a": 9007199254740993}'), None, 1, random.Random(3))
@example(_said(" a ", '{"a":' * 300 + "1" + "}" * 300), SIGNED, 5, random.Random(4))
def test_reply_comes_back_as_the_same_message(
    said: Message, thinking: Any, size: int, dice: random.Random
) -> None:
    """To a client that keeps the ids, and to one that gives calls ids of its own."""
    completion = Completion(said, "length")
    memory: dict[str, Any] = {}
    told = [_body(said, memory, thinking=thinking)]
    for read in (_partial, _claude_code):
        events = _streamed(_reply(memory, thinking=thinking), completion, cut(said, size))
        told.append(_collected(events, read))
    calls = said.get("tool_calls", [])
    are_objects = all(_is_object(call["function"]["arguments"]) for call in calls)
    for blocks in told:
        echo = _assistant(*_echo(blocks, dice))
        _, message, *rest = _messages(HELLO, echo, HELLO, memory=memory)
        assert message_key(message) == message_key(said)
        assert message.get("tool_calls", []) == calls
        assert message.get("reasoning_content") == (said.get("reasoning_content") if thinking else None)
        assert rest == [CANONICAL_HELLO]
        if are_objects:
            assert message_key(_messages(HELLO, echo, HELLO)[1]) == message_key(said)


@given(
    st.lists(st.dictionaries(_words, _values, max_size=3), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_history_with_other_ids_and_marks_is_the_same(inputs: list[Any], dice: random.Random) -> None:
    """A client that gives calls ids of its own, and moves its marks from request to request."""

    def history(prefix: str) -> list[Message]:
        ids = [f"{prefix}{number}" for number in range(len(inputs))]
        uses = [_use(id, input) for id, input in zip(ids, inputs, strict=True)]
        results = [_result([_text("out")], id) for id in ids]
        messages = [
            {"role": "user", "content": _echo([_text("look")], dice)},
            _assistant(*_echo([_text("I look."), *uses], dice)),
            _user(*_echo([*results, _text("go on")], dice)),
        ]
        return _messages(*messages, system=_echo([_text("be brief")], dice))

    first, second = history("c"), history("toolu_")
    assert list(map(message_key, first)) == list(map(message_key, second))
    assert [message["tool_call_id"] for message in second if message["role"] == "tool"] == [
        call["id"] for call in second[2]["tool_calls"]
    ]
