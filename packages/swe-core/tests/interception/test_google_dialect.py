"""The Gemini API: requests to canonical messages, and replies that a client's history brings back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_core.api.deltas import cut
from swe_core.api.engine import Completion, Usage
from swe_core.api.messages import Message, message_key
from swe_core.errors import ContextOverflow
from swe_core.interception.dialects.base import BadRequest, ParsedRequest, Problem, Reply, Target
from swe_core.interception.dialects.google import GenerateContent

GOOGLE = GenerateContent()
HELLO = {"role": "user", "parts": [{"text": "hello"}]}
JAVASCRIPT_EVENT = re.compile("\\s*data: ([^\n\r\u2028\u2029]*)(?:\n\n|\r\r|\r\n\r\n)")
"""What the JavaScript SDK takes for an event at the beginning of what it has read."""


def _target(action: str = "generateContent", **query: str) -> Target:
    path = f"/v1beta/models/{{model:.+}}:{action}"
    (route,) = (route for route in GOOGLE.routes if route.path == path)
    return Target(route, {"id": "r1", "model": "policy"}, query)


def _parse(*contents: Any, action: str = "generateContent", **more: Any) -> ParsedRequest:
    return GOOGLE.parse(orjson.dumps({"contents": contents, **more}), _target(action))


def _messages(*contents: Any, **more: Any) -> list[Message]:
    return list(_parse(*contents, **more).messages)


def _model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def _user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def _call(name: str, args: Any = None, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args or {}, **more}}


def _result(name: str, output: Any, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {"output": output}, **more}}


def _canonical_call(name: str, arguments: str, id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ([{"parts": [{"text": "a"}, {"text": "b"}]}], [{"role": "user", "content": "ab"}]),
        ([{"role": "user", "parts": {"text": "a"}}], [{"role": "user", "content": "a"}]),
        ([_user()], [{"role": "user", "content": ""}]),
        (
            [_model({"text": "hm", "thought": True}, {"text": "x", "thoughtSignature": "c2ln"})],
            [{"role": "assistant", "content": "x", "reasoning_content": "hm"}],
        ),
        (
            [_model({"text": "x"}, _call("f", {"b": 1, "a": [2]}, id="c1"), {"thoughtSignature": "c2ln"})],
            [
                {
                    "role": "assistant",
                    "content": "x",
                    "tool_calls": [_canonical_call("f", '{"b":1,"a":[2]}', "c1")],
                }
            ],
        ),
        (  # a streamed reply in the history of an SDK's chat: a content an event
            [_model({"text": "o"}), _model({"text": "k"}), _model(_call("f")), _model({"text": ""})],
            [{"role": "assistant", "content": "ok", "tool_calls": [_canonical_call("f", "{}", "call_0")]}],
        ),
        (  # snake case
            [
                _model({"function_call": {"name": "f"}, "thought_signature": "c2ln"}),
                _user({"function_response": {"name": "f", "response": {"a_b": 1}}}),
            ],
            [
                {"role": "assistant", "content": "", "tool_calls": [_canonical_call("f", "{}", "call_0")]},
                {"role": "tool", "content": '{"a_b":1}', "tool_call_id": "call_0"},
            ],
        ),
        (
            [{"role": "function", "parts": [_result("f", "out"), {"text": "go on"}]}],
            [{"role": "tool", "content": "out"}, {"role": "user", "content": "go on"}],
        ),
    ],
)
def test_contents_become_canonical(given: list[Any], canonical: list[Message]) -> None:
    asked = _parse(*given)
    assert asked.messages == canonical
    assert asked.body == {"model": "policy", "messages": canonical, "stream": False}


@pytest.mark.parametrize(
    ("instructions", "text"),
    [
        ("be brief", "be brief"),
        ({"role": "user", "parts": [{"text": "be "}, {"text": "brief"}]}, "be brief"),
        ([{"text": "be brief"}], "be brief"),
        ({"text": "be brief"}, "be brief"),
        ({"parts": []}, None),
    ],
)
def test_instructions_become_a_system_message(instructions: Any, text: str | None) -> None:
    expected = [{"role": "system", "content": text}] if text else []
    for key in ("systemInstruction", "system_instruction"):
        assert _messages(HELLO, **{key: instructions})[:-1] == expected


@pytest.mark.parametrize(
    ("answers", "ids"),
    [
        ([_result("f", "1", id="a"), _result("f", "2", id="b"), _result("g", "3", id="c")], "abc"),
        ([_result("f", "1", id="b"), _result("g", "2", id="c"), _result("f", "3", id="a")], "bca"),
        ([_result("f", "1"), _result("g", "2"), _result("f", "3")], "acb"),
        ([_result("f", "1", id="b"), _result("f", "2", id="invented"), _result("g", "3", id="")], "bac"),
        ([_result("g", "1"), _result("g", "2", id="x"), _result("h", "3", id="y")], "cxy"),
    ],
)
def test_responses_find_their_calls(answers: list[Any], ids: str) -> None:
    made = _model(_call("f", id="a"), _call("f", id="b"), _call("g", id="c"))
    earlier = [_model(_call("f", id="z")), HELLO]  # its call stays open
    for contents in ([_user(*answers)], [_user(one) for one in answers]):
        found = _messages(HELLO, *earlier, made, *contents)[-3:]
        assert [message["tool_call_id"] for message in found] == list(ids)
        assert [message["content"] for message in found] == ["1", "2", "3"]


def test_response_without_a_call_has_no_id() -> None:
    (message,) = _messages(_user(_result("f", "out")))
    assert message == {"role": "tool", "content": "out"}


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "a\nb"}, "a\nb"),
        ({"result": "a"}, "a"),
        ({"result": 3}, '{"result":3}'),
        ({"error": "no"}, '{"error":"no"}'),
        ({"output": "a", "error": "no"}, '{"error":"no","output":"a"}'),
        ({"error": "no", "output": "a"}, '{"error":"no","output":"a"}'),  # in any order
        ({}, "{}"),
        (None, "{}"),
    ],
)
def test_response_becomes_text(response: Any, text: str) -> None:
    (message,) = _messages(_user({"functionResponse": {"name": "f", "response": response}}))
    assert message["content"] == text


def _declared(**more: Any) -> dict[str, Any]:
    return {"functionDeclarations": [{"name": "f", **more}]}


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"parametersJsonSchema": {"type": "OBJECT"}}, {"type": "OBJECT"}),  # as it is
        ({"parameters_json_schema": {"type": "object"}}, {"type": "object"}),
        (
            {
                "parameters": {
                    "type": "OBJECT",
                    "properties": {
                        "type": {"type": "STRING", "nullable": True, "minLength": "1"},
                        "nullable": {"type": "ARRAY", "items": {"type": "INTEGER"}, "max_items": 3},
                        "any_of": {"anyOf": [{"type": "NUMBER"}, {"ref": "#/defs/Pet"}]},
                    },
                    "propertyOrdering": ["type"],
                    "required": ["type"],
                    "additional_properties": {"type": "BOOLEAN"},
                    "defs": {"Pet": {"type": "STRING", "enum": ["CAT"]}},
                }
            },
            {
                "type": "object",
                "properties": {
                    "type": {"type": ["string", "null"], "minLength": 1},
                    "nullable": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
                    "any_of": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/Pet"}]},
                },
                "required": ["type"],
                "additionalProperties": {"type": "boolean"},
                "$defs": {"Pet": {"type": "string", "enum": ["CAT"]}},
            },
        ),
    ],
)
def test_declared_functions_become_tools(given: dict[str, Any], schema: dict[str, Any]) -> None:
    tools = [_declared(description="d", **given), {"function_declarations": [{"name": "g"}]}]
    asked = _parse(HELLO, tools=tools)
    assert asked.tools is not None
    f, g = asked.tools
    assert f == {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
    assert g["function"] == {"name": "g", "parameters": {"type": "object", "properties": {}}}
    assert asked.body["tools"] == asked.tools


def test_options_get_the_names_of_a_chat_completion() -> None:
    config = {
        "maxOutputTokens": 5,
        "temperature": 1,
        "topP": 0.95,
        "topK": 64,
        "seed": 3,
        "stop_sequences": ["x"],
        "presencePenalty": 0.5,
        "candidateCount": 1,
        "responseLogprobs": False,
        "responseModalities": ["TEXT"],
        "responseMimeType": "text/plain",
        "thinkingConfig": {"thinkingBudget": 100},
    }
    asked = _parse(
        HELLO,
        generationConfig=config,
        safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        labels={"a": "b"},
    )
    options = {key: value for key, value in asked.body.items() if key not in ("model", "messages", "stream")}
    assert options == {
        "max_tokens": 5,
        "temperature": 1,
        "top_p": 0.95,
        "seed": 3,
        "stop": ["x"],
        "presence_penalty": 0.5,
    }
    assert asked.max_tokens == 5


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"responseMimeType": "application/json"}, {"type": "json_object"}),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "STRING"}},
            {"type": "json_schema", "json_schema": {"name": "response", "schema": {"type": "string"}}},
        ),
        (
            {"responseJsonSchema": {"type": "string"}},
            {"type": "json_schema", "json_schema": {"name": "response", "schema": {"type": "string"}}},
        ),
    ],
)
def test_format_of_a_response_is_requested(config: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert _parse(HELLO, generationConfig=config).body["response_format"] == wanted


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        (None, None),
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "NONE", "allowedFunctionNames": ["f"]}, "none"),
        ({"mode": "ANY"}, "required"),
        (
            {"mode": "ANY", "allowed_function_names": ["f"]},
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
        ),
    ],
)
def test_mode_of_function_calling_becomes_a_tool_choice(config: Any, choice: Any) -> None:
    asked = _parse(HELLO, tools=[_declared()], toolConfig={"functionCallingConfig": config})
    assert asked.body.get("tool_choice") == choice
    assert "tool_choice" not in _parse(HELLO, toolConfig={"functionCallingConfig": config}).body


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ([], "'contents' is missing or empty; send a list of at least one content"),
        (["hello"], r"contents\[0\] is a string; send an object with 'parts'"),
        ([{"role": "system", "parts": []}], r"contents\[0\].role is 'system'; send user or model"),
        ([{"role": 3, "parts": []}], r"contents\[0\].role is 3; send user or model"),
        ([{"parts": ["x"]}], r"contents\[0\].parts\[0\] is a string"),
        ([_user({"text": 3})], r"contents\[0\].parts\[0\].text is a number; send a string"),
        (
            [HELLO, _user({"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": ""}})],
            r"contents\[1\].parts\[1\].inlineData is not supported here: .* send text",
        ),
        ([_user({"file_data": {"fileUri": "u"}})], "file_data is not supported"),
        ([_model({"executableCode": {"code": "1"}})], "executableCode is not supported"),
        ([_user(_call("f"))], "functionCall is not supported"),
        ([_model({"functionCall": "f"})], r"parts\[0\].functionCall is a string; send an object"),
        ([_model({"functionCall": {"name": 3}})], "functionCall.name is a number; send a string"),
        ([_model(_call("f", "x"))], "functionCall.args is a string; send an object"),
        (
            [_user({"functionResponse": {"name": "f", "response": "x"}})],
            "functionResponse.response is a string; send an object",
        ),
        ([_user(_result("f", "x", parts=[{"inlineData": {}}]))], "functionResponse.parts is not supported"),
    ],
)
def test_unsupported_content_is_rejected(contents: list[Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        _parse(*contents)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"cachedContent": "cachedContents/x"}, "'cachedContent' is not supported here"),
        ({"systemInstruction": 3}, r"systemInstruction.parts\[0\] is a number"),
        ({"systemInstruction": {"parts": [{"inlineData": {}}]}}, "systemInstruction.*inlineData is not"),
        ({"tools": ["x"]}, r"tools\[0\] is a string; send an object"),
        ({"tools": [{"googleSearch": {}}]}, r"tools\[0\].googleSearch is not supported here"),
        ({"tools": [{"code_execution": {}}]}, r"tools\[0\].code_execution is not supported"),
        ({"tools": [{"functionDeclarations": ["f"]}]}, r"functionDeclarations\[0\] is a string"),
        ({"tools": [{"functionDeclarations": [{}]}]}, r"functionDeclarations\[0\].name is missing"),
        ({"generationConfig": []}, "'generationConfig' is an empty list; send an object"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "'maxOutputTokens' is 0"),
        ({"generationConfig": {"max_output_tokens": "9"}}, "'max_output_tokens' is '9'"),
        ({"generationConfig": {"candidateCount": 2}}, "'candidateCount' is 2"),
        (
            {"generationConfig": {"responseLogprobs": True}},
            "'responseLogprobs' is not supported here: replies",
        ),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "'responseModalities' is not supported"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "'responseMimeType' is 'text/x.enum'"),
        (
            {"tools": [_declared()], "toolConfig": {"functionCallingConfig": {"mode": ["X"]}}},
            r"functionCallingConfig.mode is \"\['X'\]\"; send one of AUTO",
        ),
    ],
)
def test_invalid_field_is_rejected(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        _parse(HELLO, **fields)


def test_prompt_to_count_may_be_a_whole_request() -> None:
    whole = {"model": "models/m", "contents": [HELLO], "systemInstruction": {"parts": [{"text": "s"}]}}
    asked = GOOGLE.parse(orjson.dumps({"generateContentRequest": whole}), _target("countTokens"))
    assert [message["role"] for message in asked.messages] == ["system", "user"]
    assert _messages(HELLO, action="countTokens") == [{"role": "user", "content": "hello"}]
    assert GOOGLE.count(7) == b'{"totalTokens":7}'


@pytest.mark.parametrize(
    ("headers", "query", "key"),
    [
        ({"x-goog-api-key": "k"}, {}, "k"),
        ({}, {"key": "k"}, "k"),
        ({"Authorization": "Bearer k"}, {}, "k"),
        ({"x-goog-api-key": "k", "Authorization": "Bearer other"}, {"key": "another"}, "k"),
        ({"x-api-key": "k"}, {}, None),
    ],
)
def test_key_is_read_where_clients_send_it(
    headers: Mapping[str, str], query: Mapping[str, str], key: str | None
) -> None:
    assert GOOGLE.key(headers, query) == key


def test_errors_have_the_words_of_the_api() -> None:
    overflow = ContextOverflow(9, 8)
    refused = Problem(400, "invalid_request", str(overflow), "context_length_exceeded", overflow)
    said = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
    assert json.loads(GOOGLE.error(refused)) == {
        "error": {"code": 400, "message": said, "status": "INVALID_ARGUMENT"}
    }
    for status, name in ((401, "UNAUTHENTICATED"), (410, "FAILED_PRECONDITION"), (500, "INTERNAL")):
        error = json.loads(GOOGLE.error(Problem(status, "server", "why")))["error"]
        assert error == {"code": status, "message": "why", "status": name}


def _reply(*, thoughts: bool = False, **query: str) -> Reply:
    config = {"generationConfig": {"thinkingConfig": {"include_thoughts": thoughts}}}
    raw = orjson.dumps({"contents": [HELLO], **config})
    return GOOGLE.reply(GOOGLE.parse(raw, _target("streamGenerateContent", **query)), "policy")


def _events(raw: bytes) -> list[dict[str, Any]]:
    text, found = raw.decode(), []
    while event := JAVASCRIPT_EVENT.match(text):
        found.append(json.loads(event[1]))
        text = text[event.end() :]
    assert not text.strip()
    return found


SAID = {
    "role": "assistant",
    "content": "x\u2028y\u2029z\x85",
    "reasoning_content": "hm",
    "tool_calls": [
        _canonical_call("f", '{"b": 1,\n "a": "\u2028"}', "c1"),
        _canonical_call("f", "no JSON", ""),
        _canonical_call("", "[1]", "c3"),
    ],
}


def _candidate(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"content": {"parts": list(parts), "role": "model"}, **more, "index": 0}


CALLS = (
    {"functionCall": {"id": "c1", "name": "f", "args": {"b": 1, "a": "\u2028"}}},
    {"functionCall": {"name": "f", "args": {}}},
    {"functionCall": {"id": "c3", "name": "", "args": {}}},
)


@pytest.mark.parametrize("thoughts", [False, True])
def test_reply_in_one_piece(thoughts: bool) -> None:
    completion = Completion(SAID, "tool_calls", Usage(prompt_tokens=7, completion_tokens=9), "served")
    body = json.loads(_reply(thoughts=thoughts).body(completion))
    shown = [{"text": "hm", "thought": True}] if thoughts else []
    assert body.pop("responseId")
    assert body == {
        "candidates": [_candidate(*shown, {"text": SAID["content"]}, *CALLS, finishReason="STOP")],
        "modelVersion": "served",
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 9, "totalTokenCount": 16},
    }


def test_pieces_are_events_and_calls_come_at_the_end() -> None:
    reply = _reply(thoughts=True, alt="sse")
    pieces = [reply.delta(piece) for piece in cut(SAID, 3)]
    end = reply.end(Completion(SAID, "tool_calls"))
    events = _events(b"".join([GOOGLE.keepalive, *pieces, GOOGLE.keepalive, end]))
    candidates = [event["candidates"][0] for event in events]
    assert candidates == [
        _candidate({"text": "x\u2028y"}),
        _candidate({"text": "\u2029z\x85"}),
        _candidate({"text": "hm", "thought": True}),
        _candidate(*CALLS, finishReason="STOP"),
    ]
    assert [("usageMetadata" in event) for event in events] == [False, False, False, True]
    for piece in filter(None, pieces):  # older Python SDKs split lines at more characters
        assert len(piece.decode().splitlines()) == 2


@pytest.mark.parametrize(("reason", "word"), [("stop", "STOP"), ("length", "MAX_TOKENS")])
def test_last_event_has_a_part(reason: str, word: str) -> None:
    """The chats of the SDKs forget a turn in which one event has none."""
    reply = _reply(alt="sse")
    reply.delta({"content": "x"})
    (event,) = _events(reply.end(Completion({"role": "assistant", "content": "x"}, reason)))
    assert event["candidates"] == [_candidate({"text": ""}, finishReason=word)]


def test_stream_without_events_is_a_json_array() -> None:
    completion = Completion({"role": "assistant", "content": "abc"})
    for size in (1, 3):
        reply = _reply()
        raw = [GOOGLE.keepalive]
        for piece in cut(completion.message, size):
            raw += [reply.delta(piece), GOOGLE.keepalive]
        found = json.loads(b"".join([*raw, reply.end(completion)]))
        texts = [one["candidates"][0]["content"]["parts"][0]["text"] for one in found]
        assert ("".join(texts), len(texts)) == ("abc", 3 // size + 1)
        assert found[-1]["candidates"][0]["finishReason"] == "STOP"
    assert len(json.loads(_reply().end(completion))) == 1  # an engine that does not stream
    assert _reply().content_type == "application/json"
    assert _reply(alt="sse").content_type == "text/event-stream"


def test_error_in_a_stream_is_no_event() -> None:
    """The JavaScript SDK finds only an error that it can parse by itself."""
    problem = Problem(410, "rollout_over", "over")
    error = {"error": {"code": 410, "message": "over", "status": "FAILED_PRECONDITION"}}
    assert json.loads(_reply(alt="sse").failed(problem)) == error
    assert json.loads(_reply().failed(problem)) == [error]
    begun = _reply()
    raw = begun.delta({"content": "x"}) + begun.failed(problem)
    assert json.loads(raw)[1] == error


def _as_javascript(value: Any) -> Any:
    """Return what a JavaScript client makes of a number, in any value."""
    if isinstance(value, dict):
        return {key: _as_javascript(one) for key, one in reversed(value.items())}
    if isinstance(value, list):
        return [_as_javascript(one) for one in value]
    return float(value) if isinstance(value, int) and abs(value) >= 2**53 else value


def _echo(content: dict[str, Any], *, javascript: bool) -> dict[str, Any]:
    """Return a content of a reply as a client sends it back: other ids, a signature, other notation."""
    parts = []
    for number, part in enumerate(content["parts"]):
        if part.get("thought") and javascript:
            continue
        if "functionCall" in part:
            call = part["functionCall"]
            args = _as_javascript(call["args"]) if javascript else call["args"]
            part = {"functionCall": {"args": args, "name": call["name"]}}
            if javascript:
                part["functionCall"]["id"] = f"{call['name']}_{number}"
                part["thoughtSignature"] = "skip_thought_signature_validator"
        parts.append(part)
    return {"parts": parts, "role": "model"}


def _said_with(arguments: str) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": [_canonical_call("f", arguments, "c")]}


_text = st.text(st.characters(codec="utf-8"), max_size=20)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(_text, inside, max_size=3),
    max_leaves=10,
)
_objects = st.dictionaries(_text, _values, max_size=4)
_arguments = st.one_of(
    st.builds(json.dumps, _objects, indent=st.sampled_from([None, 1])),
    st.builds(json.dumps, _values, ensure_ascii=st.booleans()),
    _text,
)
_calls = st.builds(_canonical_call, _text, _arguments, _text)
_said = st.builds(
    lambda content, thought, calls: {
        "role": "assistant",
        "content": content,
        **({"reasoning_content": thought} if thought else {}),
        **({"tool_calls": calls} if calls else {}),
    },
    _text,
    _text,
    st.lists(_calls, max_size=3),
)


@given(_said, st.booleans(), st.integers(1, 9), st.booleans())
@example(SAID, True, 2, True)
@example(_said_with('{"a": 1e400, "b": 1' + "0" * 400 + "}"), False, 1, True)
@example(_said_with('{"a": NaN}'), False, 1, False)
@example(_said_with('{"a": 9007199254740993}'), False, 1, True)
@example(_said_with('{"a": "\\ud83d", "\\udc00": 1e400}'), False, 1, True)  # halves of surrogate pairs
def test_reply_comes_back_as_the_same_message(
    said: Message, thoughts: bool, size: int, javascript: bool
) -> None:
    completion = Completion(said)
    whole = json.loads(_reply(thoughts=thoughts).body(completion))
    streamed = _reply(thoughts=thoughts, alt="sse")
    events = _events(b"".join([*map(streamed.delta, cut(said, size)), streamed.end(completion)]))
    for reply in ([whole], events):
        contents = [_echo(one["candidates"][0]["content"], javascript=javascript) for one in reply]
        _, message, *rest = _messages(HELLO, *contents, _user({"text": "go on"}))
        assert message_key(message) == message_key(said)
        assert rest == [{"role": "user", "content": "go on"}]


def test_arguments_too_deep_for_the_next_request_become_empty() -> None:
    for levels, kept in ((90, True), (101, False), (2000, False), (100_000, False)):
        said = _said_with('{"a":' * levels + "1" + "}" * levels)
        content = json.loads(_reply().body(Completion(said)))["candidates"][0]["content"]
        assert bool(content["parts"][0]["functionCall"]["args"]) is kept
        _messages(HELLO, content)


def test_lone_surrogate_in_arguments_is_replaced() -> None:
    body = json.loads(_reply().body(Completion(_said_with('{"a": "\\ud83d"}'))))
    (part,) = body["candidates"][0]["content"]["parts"]
    assert part["functionCall"]["args"] == {"a": "?"}
