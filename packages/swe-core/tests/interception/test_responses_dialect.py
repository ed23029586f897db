"""The Responses API: items to canonical messages, and replies that a client's history brings back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_core.api.deltas import cut
from swe_core.api.engine import Completion, Usage
from swe_core.api.messages import Message, message_key
from swe_core.interception.dialects import responses_memory
from swe_core.interception.dialects.base import BadRequest, ParsedRequest, Problem, Reply, Target
from swe_core.interception.dialects.responses import Responses
from swe_core.interception.dialects.responses_custom import InputReader
from swe_core.interception.dialects.responses_memory import Memory

RESPONSES = Responses()
HELLO = {"role": "user", "content": "hello"}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: hunk+"},
}
TOOLS = [
    PATCH,
    {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Sub-agents.",
        "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}],
    },
]
Items = Sequence[Mapping[str, Any]]


def _target() -> Target:
    return Target(RESPONSES.routes[0])


def _parse(items: Items | str, target: Target | None = None, **more: Any) -> ParsedRequest:
    return RESPONSES.parse(orjson.dumps({"input": items, **more}), target or _target())


def _messages(*items: Mapping[str, Any], **more: Any) -> list[Message]:
    return list(_parse(items, **more).messages)


def _call(name: str, arguments: str, call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id, **more}


def _output(call_id: str = "c1", output: Any = "done", kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": output}


def _said(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **more}


def _thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}


def _canonical_call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("items", "canonical"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        ([HELLO], [HELLO]),
        (
            [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be"}]},
                {"type": "message", "role": "system", "content": "brief"},
                HELLO,
                {"role": "developer", "content": "later"},
            ],
            [{"role": "system", "content": "be\n\nbrief"}, HELLO, {"role": "system", "content": "later"}],
        ),
        (
            [_thought("hm", id="rs_x"), _said("look", phase="commentary"), _call("a", "{}"), _call("b", "{")],
            [
                {
                    "role": "assistant",
                    "content": "look",
                    "reasoning_content": "hm",
                    "tool_calls": [_canonical_call("a", "{}"), _canonical_call("b", "{")],
                }
            ],
        ),
        (
            [_call("a", "{}"), _output(), _call("b", "{}", namespace="n"), _output(output=[])],
            [
                {"role": "assistant", "content": "", "tool_calls": [_canonical_call("a", "{}")]},
                {"role": "tool", "content": "done", "tool_call_id": "c1"},
                {"role": "assistant", "content": "", "tool_calls": [_canonical_call("n__b", "{}")]},
                {"role": "tool", "content": "", "tool_call_id": "c1"},
            ],
        ),
        (
            [
                {"type": "custom_tool_call", "name": "apply_patch", "input": 'a "b"', "call_id": "c1"},
                _output(kind="custom_tool_call_output", output=[{"type": "input_text", "text": "out"}]),
            ],
            [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [_canonical_call("apply_patch", '{"input":"a \\"b\\""}')],
                },
                {"role": "tool", "content": "out", "tool_call_id": "c1"},
            ],
        ),
        # Without ids of ours, reasoning, text and calls in this order are one reply.
        (
            [_said("a"), _said("b"), _thought("c"), _said("d")],
            [
                {"role": "assistant", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": "d", "reasoning_content": "c"},
            ],
        ),
        # A reply that was cut, and the next one, which begins with a call.
        (
            [_said("a", id=f"msg_{'0' * 32}_0"), _call("b", "{}", id=f"fc_{'1' * 32}_0")],
            [
                {"role": "assistant", "content": "a"},
                {"role": "assistant", "content": "", "tool_calls": [_canonical_call("b", "{}")]},
            ],
        ),
        (
            [
                {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "another's"},
                _said("a"),
            ],
            [{"role": "assistant", "content": "a"}],
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]}, _said("a")],
            [{"role": "assistant", "content": "a", "reasoning_content": "b"}],
        ),
    ],
)
def test_items_become_canonical(items: Any, canonical: list[Message]) -> None:
    asked = _parse(items)
    assert asked.messages == canonical
    assert asked.body["messages"] == canonical


def test_instructions_come_first() -> None:
    assert _messages({"role": "developer", "content": "b"}, HELLO, instructions="a") == [
        {"role": "system", "content": "a\n\nb"},
        HELLO,
    ]


@pytest.mark.parametrize(
    ("asked", "chat"),
    [
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 0.5, "top_p": 1, "stream": True}, {"temperature": 0.5, "top_p": 1, "stream": True}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}, "strict": True},
                }
            },
        ),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
        ({"tools": [{"type": "web_search"}, {"type": "tool_search"}], "tool_choice": "none"}, {}),
        ({"store": False, "include": [], "metadata": {"a": "b"}, "prompt_cache_key": "k", "user": "u"}, {}),
        ({"background": False, "conversation": None, "prompt": None, "truncation": "auto"}, {}),
        ({"client_metadata": {"any": "thing"}, "service_tier": "flex", "max_tool_calls": 3}, {}),
    ],
)
def test_options_become_those_of_chat(asked: dict[str, Any], chat: dict[str, Any]) -> None:
    request = _parse("hello", **asked)
    assert request.body == {"messages": [HELLO], "stream": False, **chat}
    assert request.stream is chat.get("stream", False)
    assert request.max_tokens == chat.get("max_tokens")
    assert request.tools is None


def test_tools_become_functions() -> None:
    asked = _parse("hello", tools=TOOLS, tool_choice={"type": "custom", "name": "apply_patch"})
    assert asked.tools == asked.body["tools"]
    patch, shell, spawn = (tool["function"] for tool in asked.tools or ())
    assert patch["name"] == "apply_patch"
    assert patch["description"] == (
        "Edits files.\n\nThe argument `input` follows this grammar (lark):\n\nstart: hunk+"
    )
    assert list(patch["parameters"]["properties"]) == patch["parameters"]["required"] == ["input"]
    assert shell == {"name": "shell", "parameters": {"type": "object", "properties": {}}}
    assert spawn == {"name": "agents__spawn", "parameters": {"type": "object"}}
    assert asked.body["tool_choice"] == {"type": "function", "function": {"name": "apply_patch"}}


def test_additional_tools_are_offered_too() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [PATCH]}
    asked = _parse([added, HELLO], tools=TOOLS[1:2], parallel_tool_calls=False)
    assert [tool["function"]["name"] for tool in asked.tools or ()] == ["shell", "apply_patch"]
    assert asked.body["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("items", "more", "sentence"),
    [
        (None, {}, "'input' is missing or null; send a string or a list of items"),
        (3, {}, "'input' is a number"),
        ([], {}, "'input' has no message; send at least one"),
        (["hi"], {}, r"input\[0\] is a string; send an object"),
        ([HELLO, {"type": 3}], {}, r"input\[1\] is an item of type 3, which this endpoint does not take"),
        ([{"type": "web_search_call"}], {}, r"type 'web_search_call', .*; send message, reasoning"),
        ([{"type": "local_shell_call"}], {}, "type 'local_shell_call'"),
        ([{"role": "critic", "content": ""}], {}, r"input\[0\].role is 'critic'; send one of developer"),
        ([{"role": ["user"], "content": ""}], {}, r"input\[0\].role is \['user'\]"),
        ([{"role": "user", "content": 3}], {}, r"input\[0\]: content is a number"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}],
            {},
            r"input\[0\]: a content part is 'input_image'; this endpoint's model reads text only",
        ),
        ([_output(output=[{"type": "input_image"}])], {}, r"input\[0\]: .*'input_image'"),
        (
            [{"type": "reasoning", "summary": "x"}],
            {},
            r"input\[0\].summary is malformed; send a list of text",
        ),
        ([{"type": "reasoning", "content": [3]}], {}, r"input\[0\].content is malformed"),
        ([{"type": "additional_tools"}], {}, r"input\[0\].tools is missing or null; send a list"),
        ([{"type": "item_reference", "id": "msg_1"}], {}, r"input\[0\]: Item with id 'msg_1' not found"),
        ("x", {"tools": {}}, "'tools' is an object; send a list"),
        ("x", {"tools": ["t"]}, r"tools\[0\] is a string; send an object"),
        ("x", {"tools": [{"type": "function"}]}, r"tools\[0\].name is missing or null; send the tool's name"),
        (
            "x",
            {"tools": [{"type": "file_search"}]},
            r"tools\[0\] has the type 'file_search', which this endp",
        ),
        ("x", {"tools": [{"type": "namespace", "name": "n"}]}, r"tools\[0\].tools is missing or null"),
        ("x", {"tools": [{**PATCH, "format": "x"}]}, r"tools\[0\].format is a string; send an object"),
        ("x", {"tools": [{**PATCH, "format": {"type": "x"}}]}, r"tools\[0\].format.type is 'x'; send 'text'"),
        (
            "x",
            {"tool_choice": "any"},
            "'tool_choice' is 'any'; send auto, none, required, or one of the tools",
        ),
        ("x", {"tool_choice": "required"}, "'tool_choice' is 'required' without a tool"),
        ("x", {"tool_choice": {"type": "function", "name": "f"}, "tools": TOOLS}, "'tool_choice' is {'type'"),
        (
            "x",
            {"tool_choice": {"type": "web_search"}, "tools": TOOLS},
            "'tool_choice' is {'type': 'web_search'",
        ),
        ("x", {"text": {"format": {"type": "xml"}}}, "'text.format' is {'type': 'xml'}; send an object of"),
        ("x", {"include": ["message.output_text.logprobs"]}, "'include' asks for log-probabilities"),
        ("x", {"top_logprobs": 2}, "'top_logprobs' is not supported here: responses carry no log-prob"),
        ("x", {"background": True}, "'background' is not supported here: .*; leave it out"),
        ("x", {"conversation": "conv_1"}, "'conversation' is not supported here"),
        ("x", {"prompt": {"id": "p"}}, "'prompt' is not supported here"),
        ("x", {"instructions": ["a"]}, "'instructions' is a list; send a string"),
        ("x", {"stream": "yes"}, "'stream' is a string; send true or false"),
        ("x", {"max_output_tokens": 0}, "'max_output_tokens' is 0; send a whole number of at least 1"),
    ],
)
def test_invalid_request_is_rejected(items: Any, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        _parse(items, **more)


def _events(raw: bytes) -> Iterator[dict[str, Any]]:
    for block in raw.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        yield event


def _check(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Check that a stream is one that clients understand, and return its response."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    *inner, last = events[2:]
    response: dict[str, Any] = last["response"]
    assert last["type"] == f"response.{response['status']}"
    assert {event["response"]["id"] for event in (*events[:2], last)} == {response["id"]}
    done: list[dict[str, Any]] = []
    text = ""
    for event in inner:
        kind, index = event["type"], event["output_index"]
        assert index == len(done)  # an item ends before the next one begins
        if kind == "response.output_item.added":
            item, text = event["item"], ""
            assert item["status"] == "in_progress"
        elif kind == "response.output_item.done":
            assert {**event["item"], "status": 0}.items() >= {"id": item["id"], "type": item["type"]}.items()
            done.append(event["item"])
        else:
            assert event["item_id"] == item["id"]
            if kind.endswith(".delta"):
                assert event["delta"]
                text += event["delta"]
            elif kind.endswith(".done") and "part" not in event:
                assert (event.get("text"), event.get("arguments"), event.get("input")).count(text) == 1
    assert response["output"] == done
    return response


def _reply(asked: ParsedRequest) -> Reply:
    return RESPONSES.reply(asked, "policy")


def _response(asked: ParsedRequest, completion: Completion, size: int | None) -> dict[str, Any]:
    """Return the response, whole, or streamed in pieces of `size` characters."""
    reply = _reply(asked)
    if size is None:
        whole: dict[str, Any] = json.loads(reply.body(completion))
        return whole
    raw = b"".join([*map(reply.delta, cut(completion.message, size)), reply.end(completion)])
    return _check(list(_events(raw)))


def _echo(response: Mapping[str, Any], client: str) -> Items:
    """Return the output as some clients send it back."""
    items = []
    for item in response["output"]:
        item = dict(item)
        if client == "sealed" and item["type"] == "reasoning":
            item["content"] = None
        if client == "forgetful" and item["type"] == "reasoning":
            continue
        if client in ("forgetful", "anonymous"):
            del item["id"], item["status"]
        items.append(item)
    return items


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
arguments = st.one_of(
    st.fixed_dictionaries({"input": texts}).map(json.dumps),
    st.fixed_dictionaries({"input": texts}, optional={"more": st.integers(0, 9)}).map(
        lambda v: orjson.dumps(v).decode()
    ),
    st.sampled_from(
        ["", "{", "null", '{"input": 3}', '{"input": "a', '{"input": "\\', '{"input": "\\x', "*** Begin"]
    ),
    st.text('{}":, \\nud8abc3input', max_size=30),
    texts,
)
calls = st.lists(
    st.tuples(st.sampled_from(["apply_patch", "shell", "agents__spawn", "unknown"]), arguments), max_size=3
)


@given(
    texts,
    texts,
    calls,
    st.sampled_from([None, 1, 3, 1000]),
    st.sampled_from(["plain", "sealed", "forgetful", "anonymous"]),
    st.booleans(),
)
@example("", "", [("apply_patch", '{"input": "\\ud83d\\ude00 \\ud83d x"}')], 1, "plain", True)
@example("a", "", [("apply_patch", '{"input": "\n"}'), ("apply_patch", "{}")], 3, "anonymous", True)
def test_sent_back_reply_is_the_same_message(
    content: str, reasoning: str, wanted: list[tuple[str, str]], size: int | None, client: str, ended: bool
) -> None:
    target = _target()
    message: Message = {"role": "assistant"}
    if reasoning:
        message["reasoning_content"] = reasoning
    message["content"] = content
    if wanted:
        found = [_canonical_call(name, text, f"c{number}") for number, (name, text) in enumerate(wanted)]
        message["tool_calls"] = found
    asked = _parse("hello", target, tools=TOOLS, include=["reasoning.encrypted_content"])
    response = _response(asked, Completion(message, "stop" if ended else "length"), size)
    again = _parse([HELLO, *_echo(response, client), HELLO], target, tools=TOOLS)
    assert [message["role"] for message in again.messages] == ["user", "assistant", "user"]
    assert message_key(again.messages[1]) == message_key(message)
    sent_back = "" if client == "forgetful" else reasoning
    assert again.messages[1].get("reasoning_content", "") == sent_back
    later = _parse([HELLO], target, previous_response_id=response["id"])
    assert later.messages[0] == HELLO
    assert message_key(later.messages[1]) == message_key(message)
    assert later.messages[2:] == [HELLO]


@given(
    st.one_of(st.dictionaries(st.sampled_from(["input", "other"]), texts).map(json.dumps), arguments),
    st.data(),
)
@example('{"input": "\\ud83d\\ude00\\ud83d"}', None)
def test_input_of_a_custom_tool_is_the_same_in_pieces(arguments: str, data: Any) -> None:
    reader, size = InputReader(), data.draw(st.integers(1, 9)) if data else 1
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    read = "".join([*map(reader.add, pieces), reader.end()])
    once = InputReader()
    assert read == once.add(arguments) + once.end()
    try:
        value = json.loads(arguments)
    except ValueError:
        return
    if isinstance(value, dict) and isinstance(value.get("input"), str):
        assert read == value["input"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    else:
        assert read == arguments


def test_input_of_a_custom_tool_comes_as_it_is_sampled() -> None:
    reader = InputReader()
    read = [reader.add(piece) for piece in ('{"inp', 'ut":"a', "\\", "nb", "\\u00", 'e4", "x":', ' "y"}')]
    assert read == ["", "a", "", "\nb", "", "ä", ""]
    assert reader.end() == ""


def test_calls_wait_for_one_that_may_go_on() -> None:
    """The end of a call's arguments may come late: it is held back while it may begin a secret."""
    first, second = (
        {"tool_calls": [{"index": index, "id": f"c{index}", "function": {"name": "shell", "arguments": "{"}}]}
        for index in (0, 1)
    )
    rest = [{"tool_calls": [{"index": index, "function": {"arguments": "}"}}]} for index in (1, 0)]
    reply = _reply(_parse("hello", tools=TOOLS))
    raw = [reply.delta(delta) for delta in (first, second, *rest)]
    assert b'"c1"' not in raw[1] + raw[2]
    assert b'"c1"' in raw[3]
    response = _check(list(_events(b"".join(raw) + reply.end(Completion({"role": "assistant"})))))
    assert [(item["call_id"], item["arguments"]) for item in response["output"]] == [
        ("c0", "{}"),
        ("c1", "{}"),
    ]


def test_name_of_a_call_may_come_after_its_id() -> None:
    reply = _reply(_parse("hello", tools=TOOLS))
    pieces = (
        {"id": "c1"},
        {"function": {"name": "apply_patch"}},
        {"function": {"arguments": '{"input": "a"}'}},
    )
    raw = b"".join(reply.delta({"tool_calls": [{"index": 0, **piece}]}) for piece in pieces)
    (item,) = _check(list(_events(raw + reply.end(Completion({"role": "assistant"})))))["output"]
    assert (item["type"], item["call_id"], item["input"]) == ("custom_tool_call", "c1", "a")


@pytest.mark.parametrize("size", [None, 2])
def test_cut_reply_is_incomplete(size: int | None) -> None:
    message = {"role": "assistant", "reasoning_content": "hm", "content": "I wi"}
    usage = Usage(prompt_tokens=7, completion_tokens=4)
    response = _response(_parse("hello"), Completion(message, "length", usage), size)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 11,
    }


@pytest.mark.parametrize("message", [{"content": ""}, {"content": None, "reasoning_content": "hm"}])
def test_reply_without_text_has_a_message_to_send_back(message: dict[str, Any]) -> None:
    response = _response(_parse("hello"), Completion({"role": "assistant", **message}), None)
    assert response["output"][-1]["content"] == [
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    ]


def test_response_repeats_its_request() -> None:
    given = {
        "instructions": "be brief",
        "max_output_tokens": 5,
        "metadata": {"a": "b"},
        "tools": TOOLS,
        "temperature": 0.5,
        "store": False,
    }
    response = _response(_parse("hello", **given), Completion({"role": "assistant", "content": "a"}), None)
    assert response.items() >= given.items()
    assert (response["tool_choice"], response["parallel_tool_calls"]) == ("auto", True)


def test_reasoning_is_sealed_on_demand_only() -> None:
    completion = Completion({"role": "assistant", "reasoning_content": "hm", "content": ""})
    assert "encrypted_content" not in _response(_parse("hello"), completion, 2)["output"][0]


def test_failed_stream_tells_both_kinds_of_clients() -> None:
    reply = _reply(_parse("hello"))
    raw = reply.delta({"content": "I"}) + reply.failed(Problem(424, "engine", "it broke"))
    error, failed = list(_events(raw))[-2:]
    assert (error["type"], error["error"]["message"]) == ("error", "it broke")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "it broke"}


def _answered(asked: ParsedRequest, text: str) -> dict[str, Any]:
    return _response(asked, Completion({"role": "assistant", "content": text}), None)


def test_responses_are_stored_for_later_requests() -> None:
    target = _target()
    first = _answered(_parse("one", target, instructions="only here"), "1")
    second = _answered(_parse("two", target, previous_response_id=first["id"]), "2")
    for before, said in ((first, ["one", "1"]), (second, ["one", "1", "two", "2"])):
        messages = _parse("three", target, previous_response_id=before["id"]).messages
        assert [message["content"] for message in messages] == [*said, "three"]
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert _parse([HELLO, reference, HELLO], target).messages[1] == {"role": "assistant", "content": "1"}
    with pytest.raises(BadRequest, match=r"input\[0\] is an item of type 'x'"):
        _parse([{"type": "x"}], target, previous_response_id=second["id"])


@pytest.mark.parametrize("target", [_target(), None])
def test_unknown_response_is_an_error_of_openai(target: Target | None) -> None:
    if target is None:  # not to be stored
        target = _target()
        unknown = _answered(_parse("one", target, store=False), "1")["id"]
    else:
        unknown = "resp_1"
    with pytest.raises(BadRequest, match=f"Previous response with id '{unknown}' not found.") as raised:
        _parse("two", target, previous_response_id=unknown)
    problem = Problem(400, "invalid_request", str(raised.value), raised.value.code)
    assert json.loads(RESPONSES.error(problem))["error"] == {
        "message": str(raised.value),
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }


def test_stored_histories_share_their_beginnings() -> None:
    """Sub-agents take turns, and each sends its whole history."""
    memory, branches = Memory(), [[{"role": "user", "content": name}] for name in "abc"]
    for number in range(30):
        branch = branches[number % 3]
        output = [{"id": f"msg_{number}", "content": [str(number)]}]
        memory.keep(f"resp_{number}", branch, output)
        assert memory.history(f"resp_{number}") == [*branch, *output]
        echoed = {**output[0], "status": None}  # as an SDK sends it back
        branch += [echoed, {"role": "user", "content": "more"}]
    stored = list(memory._responses.values())
    assert max(len(response.added) for response in stored[3:]) == 3
    assert len(memory._branches) == 3


def test_too_large_memory_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_memory, "_MOST", 2000)
    target = _target()
    ids = [_answered(_parse(f"{number}" * 300, target), "1")["id"] for number in range(5)]
    for known in (ids[0], ids[3]):
        with pytest.raises(BadRequest, match="not found"):
            _parse("x", target, previous_response_id=known)
    assert len(_parse("x", target, previous_response_id=ids[4]).messages) == 3


def test_tokens_are_counted_in_the_shape_of_openai() -> None:
    assert json.loads(RESPONSES.count(7)) == {"object": "response.input_tokens", "input_tokens": 7}
