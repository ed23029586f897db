"""Any reply in any dialect: the history that a client makes of it has the same message again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jiter
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_core.api.deltas import cut, join
from swe_core.api.engine import Completion
from swe_core.api.messages import Message, message_key
from swe_core.api.object_prefix import ObjectPrefix
from swe_core.interception.dialects import DIALECTS
from swe_core.interception.dialects.base import Dialect, ParsedRequest, Route, Target
from swe_core.interception.dialects.responses_custom import InputReader

from .helpers import events_of

CHAT, RESPONSES, MESSAGES, GOOGLE = DIALECTS
HELLO = {"role": "user", "content": "hello"}


def parse(
    dialect: Dialect, memory: dict[str, Any] | None = None, route: Route | None = None, **body: Any
) -> ParsedRequest:
    target = Target(
        route or dialect.routes[0],
        {"id": "r1", "model": "m"},
        {"alt": "sse"},
        {} if memory is None else memory,
    )
    return dialect.parse(json.dumps(body).encode(), target)


def written(dialect: Dialect, asked: ParsedRequest, completion: Completion, size: int | None) -> Any:
    """Return a reply as JSON or, of pieces of `size` characters, as events."""
    reply = dialect.reply(asked, "policy")
    if size is None:
        return json.loads(reply.body(completion))
    pieces = [reply.delta(piece) for piece in cut(completion.message, size)]
    raw = b"".join([dialect.keepalive, *pieces, dialect.keepalive, reply.end(completion)])
    return events_of(raw, dialect)


def call(arguments: str, id: str = "c", name: str = "f") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def reply_of(content: str = "", *calls: str | tuple[str, str], reasoning: str = "") -> Message:
    """Return a message of the model with calls, each its arguments, or a name and them."""
    message: Message = {"role": "assistant"}
    if reasoning:
        message["reasoning_content"] = reasoning
    message["content"] = content
    if calls:
        pairs = [("Bash", one) if isinstance(one, str) else one for one in calls]
        message["tool_calls"] = [call(text, f"c{at}", name) for at, (name, text) in enumerate(pairs, 1)]
    return message


words = st.text(st.characters(codec="utf-8"), max_size=20)


def values_of(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON with these texts."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
        lambda inside: st.lists(inside, max_size=3) | st.dictionaries(texts, inside, max_size=3),
        max_leaves=10,
    )


values = values_of(words)
arguments = st.one_of(
    st.builds(
        json.dumps,
        st.dictionaries(words, values, max_size=4),
        indent=st.sampled_from([None, 1]),
        ensure_ascii=st.booleans(),
    ),
    st.builds(json.dumps, values, ensure_ascii=st.booleans()),
    words,
)
broken = st.builds(
    lambda value, at: json.dumps(value)[:at], st.dictionaries(words, values, min_size=1), st.integers(1, 40)
)
dices = st.randoms(use_true_random=False)
SHOWN, SIGNED = {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive", "display": "omitted"}


def replies(calls: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    return st.builds(
        lambda content, reasoning, calls: reply_of(content, *calls, reasoning=reasoning),
        *(words, words, st.lists(calls, max_size=3)),
    )


def as_sdk(text: str) -> Any:
    """Read an input as Anthropic's SDKs do."""
    return jiter.from_json(text.encode(), partial_mode=True) if text else {}


def as_claude_code(text: str) -> Any:
    """Read an input as Claude Code does."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {"__unparsedToolInput": {"raw": text, "len": len(text)}}
    return value if isinstance(value, dict) else {}


def collected(events: Iterable[dict[str, Any]], read: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return the blocks that a client of Anthropic's makes of events."""
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


def is_object(text: str) -> bool:
    (prefix := ObjectPrefix()).add(text)
    return prefix.whole


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def echoed(blocks: Iterable[dict[str, Any]], dice: random.Random, cuts: float = 0.3) -> list[dict[str, Any]]:
    """Return blocks as clients send them back: marks of a cache, keys in another order, replies split up."""
    found = []
    for block in blocks:
        items = [*block.items()]
        if block["type"] == "tool_use":
            items = [(key, dict(sorted(one.items()))) if key == "input" else (key, one) for key, one in items]
        if dice.random() < 0.3:
            items.append(("cache_control", {"type": "ephemeral"}))
        dice.shuffle(items)
        if block["type"] == "text" and dice.random() < cuts:
            at = dice.randrange(len(block["text"]) + 1)
            found += map(text_block, (block["text"][:at], block["text"][at:]))
        else:
            found.append(dict(items))
    return found


@given(replies(arguments | broken), st.sampled_from([None, SHOWN, SIGNED]), st.integers(1, 9), dices)
@example(reply_of("I look.", '{"a": 1, "b": "c', reasoning="hm"), SHOWN, 2, random.Random(1))
@example(reply_of("", '{"a": 1}}', '{"a": NaN}', " [1]", " "), None, 1, random.Random(2))
@example(
    reply_of("", '{"a": "\\ud83d"}', '{"a": 1e400}', '{"a": 9007199254740993}'), None, 1, random.Random(3)
)
@example(reply_of(" a ", '{"a":' * 300 + "1" + "}" * 300), SIGNED, 5, random.Random(4))
def test_messages_reply_comes_back(said: Message, thinking: Any, size: int, dice: random.Random) -> None:
    """To a client that keeps the ids, and to one that gives calls ids of its own."""
    completion, memory = Completion(said, "length"), dict[str, Any]()
    asked = parse(MESSAGES, memory, messages=[HELLO], thinking=thinking)
    told = [written(MESSAGES, asked, completion, None)["content"]]
    told += [collected(written(MESSAGES, asked, completion, size), read) for read in (as_sdk, as_claude_code)]
    calls = said.get("tool_calls", [])
    are_objects = all(is_object(one["function"]["arguments"]) for one in calls)
    whole, streamed = ([one.get("input") for one in blocks] for blocks in told[:2])
    assert whole == streamed
    for blocks in told:
        history = [HELLO, {"role": "assistant", "content": echoed(blocks, dice)}, HELLO]
        _, message, *rest = parse(MESSAGES, memory, messages=history).messages
        assert message_key(message) == message_key(said)
        assert message.get("tool_calls", []) == calls
        assert message.get("reasoning_content") == (said.get("reasoning_content") if thinking else None)
        assert rest == [HELLO]
        if are_objects:
            assert message_key(parse(MESSAGES, messages=history).messages[1]) == message_key(said)


@given(st.lists(st.dictionaries(words, values, max_size=3), min_size=1, max_size=3), dices)
def test_messages_history_with_other_ids_is_the_same(inputs: list[Any], dice: random.Random) -> None:
    """A client that gives calls ids of its own, and moves its marks from request to request."""

    def history(prefix: str) -> Sequence[Message]:
        ids = [f"{prefix}{number}" for number in range(len(inputs))]
        uses = [
            {"type": "tool_use", "id": id, "name": "Bash", "input": one}
            for id, one in zip(ids, inputs, strict=True)
        ]
        results = [{"type": "tool_result", "tool_use_id": id, "content": [text_block("out")]} for id in ids]
        messages = [
            {"role": "user", "content": echoed([text_block("look")], dice, 0)},
            {"role": "assistant", "content": echoed([text_block("I look."), *uses], dice)},
            {"role": "user", "content": echoed([*results, text_block("go on")], dice, 0)},
        ]
        return parse(MESSAGES, messages=messages, system=echoed([text_block("be brief")], dice, 0)).messages

    first, second = history("c"), history("toolu_")
    assert list(map(message_key, first)) == list(map(message_key, second))
    assert [message["tool_call_id"] for message in second if message["role"] == "tool"] == [
        one["id"] for one in second[2]["tool_calls"]
    ]


def as_javascript(value: Any) -> Any:
    """Return what a JavaScript client makes of a number, in any value."""
    if isinstance(value, dict):
        return {key: as_javascript(one) for key, one in reversed(value.items())}
    if isinstance(value, list):
        return list(map(as_javascript, value))
    return float(value) if isinstance(value, int) and abs(value) >= 2**53 else value


def content_of(reply: dict[str, Any], *, javascript: bool) -> dict[str, Any]:
    """Return Google's content of a reply as a client sends it back: other ids, notation, a signature."""
    parts = []
    for number, part in enumerate(reply["candidates"][0]["content"]["parts"]):
        if part.get("thought") and javascript:
            continue
        if "functionCall" in part:
            made = part["functionCall"]
            args = as_javascript(made["args"]) if javascript else made["args"]
            part = {"functionCall": {"args": args, "name": made["name"]}}
            if javascript:
                part["functionCall"]["id"] = f"{made['name']}_{number}"
                part["thoughtSignature"] = "skip_thought_signature_validator"
        parts.append(part)
    return {"parts": parts, "role": "model"}


GO = {"role": "user", "parts": [{"text": "go on"}]}


@given(replies(st.tuples(words, arguments)), st.booleans(), st.integers(1, 9), st.booleans())
@example(
    reply_of("x\u2028y\u2029z\x85", '{"b": 1,\n "a": "\u2028"}', "no JSON", ("", "[1]"), reasoning="hm"),
    True,
    2,
    True,
)
@example(reply_of("", '{"a": 1e400, "b": 1' + "0" * 400 + "}"), False, 1, True)
@example(reply_of("", '{"a": NaN}'), False, 1, False)
@example(reply_of("", '{"a": 9007199254740993}'), False, 1, True)
@example(reply_of("", '{"a": "\\ud83d", "\\udc00": 1e400}'), False, 1, True)  # halves of surrogate pairs
def test_google_reply_comes_back(said: Message, thoughts: bool, size: int, javascript: bool) -> None:
    config = {"thinkingConfig": {"include_thoughts": True}} if thoughts else None
    asked = parse(GOOGLE, contents=[GO], generationConfig=config)
    whole, events = (written(GOOGLE, asked, Completion(said), one) for one in (None, size))
    for reply in ([whole], events):
        contents = [content_of(one, javascript=javascript) for one in reply]
        _, message, *rest = parse(GOOGLE, contents=[GO, *contents, GO]).messages
        assert message_key(message) == message_key(said)
        assert rest == [{"role": "user", "content": "go on"}]


@pytest.mark.parametrize(("levels", "kept"), [(90, True), (101, False), (100_000, False)])
def test_arguments_too_deep_for_the_next_google_request_become_empty(levels: int, kept: bool) -> None:
    said = reply_of("", '{"a":' * levels + "1" + "}" * levels)
    whole = written(GOOGLE, parse(GOOGLE, contents=[GO]), Completion(said), None)
    content = whole["candidates"][0]["content"]
    assert bool(content["parts"][0]["functionCall"]["args"]) is kept
    parse(GOOGLE, contents=[GO, content])


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "s: h+"}
SPAWN = {"type": "function", "name": "spawn", "parameters": {}}
TOOLS = [
    {"type": "custom", "name": "apply_patch", "format": GRAMMAR},
    {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}},
    {"type": "namespace", "name": "agents", "tools": [SPAWN]},
]
HALF_INPUTS = [
    "",
    "{",
    "null",
    '{"input": 3}',
    '{"input": "a',
    '{"input": "\\',
    '{"input": "\\x',
    "*** Begin",
]
inputs = st.one_of(
    st.fixed_dictionaries({"input": words}).map(json.dumps),
    st.fixed_dictionaries({"input": words}, optional={"more": st.integers(0, 9)}).map(
        lambda value: orjson.dumps(value).decode()
    ),
    st.sampled_from(HALF_INPUTS),
    st.text('{}":, \\nud8abc3input', max_size=30),
    words,
)


def checked(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Check that a stream is one that clients of OpenAI's responses understand, and return its response."""
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


def output_of(response: Mapping[str, Any], client: str) -> list[dict[str, Any]]:
    """Return the output as some clients send it back."""
    items = []
    for item in map(dict, response["output"]):
        if item["type"] == "reasoning":
            if client == "forgetful":
                continue
            if client == "sealed":
                item["content"] = None
        if client in ("forgetful", "anonymous"):
            del item["id"], item["status"]
        items.append(item)
    return items


@given(
    replies(st.tuples(st.sampled_from(["apply_patch", "shell", "agents__spawn", "unknown"]), inputs)),
    st.sampled_from([None, 1, 3, 1000]),
    st.sampled_from(["plain", "sealed", "forgetful", "anonymous"]),
    st.booleans(),
)
@example(reply_of("", ("apply_patch", '{"input": "\\ud83d\\ude00 \\ud83d x"}')), 1, "plain", True)
@example(reply_of("a", ("apply_patch", '{"input": "\n"}'), ("apply_patch", "{}")), 3, "anonymous", True)
def test_responses_reply_comes_back(said: Message, size: int | None, client: str, ended: bool) -> None:
    memory: dict[str, Any] = {}
    asked = parse(RESPONSES, memory, input="hello", tools=TOOLS, include=["reasoning.encrypted_content"])
    response = written(RESPONSES, asked, Completion(said, "stop" if ended else "length"), size)
    response = response if size is None else checked(response)
    again = parse(RESPONSES, memory, input=[HELLO, *output_of(response, client), HELLO], tools=TOOLS)
    assert [message["role"] for message in again.messages] == ["user", "assistant", "user"]
    assert message_key(again.messages[1]) == message_key(said)
    sent_back = None if client == "forgetful" else said.get("reasoning_content")
    assert again.messages[1].get("reasoning_content") == sent_back
    asked = parse(RESPONSES, memory, input=[HELLO], previous_response_id=response["id"])
    before, message, *rest = asked.messages
    assert (before, message_key(message), rest) == (HELLO, message_key(said), [HELLO])


@given(st.dictionaries(st.sampled_from(["input", "other"]), words).map(json.dumps) | inputs, st.data())
@example('{"input": "\\ud83d\\ude00\\ud83d"}', None)
def test_input_of_a_custom_tool_is_the_same_in_pieces(text: str, data: Any) -> None:
    reader, size = InputReader(), data.draw(st.integers(1, 9)) if data else 1
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    read = "".join([*map(reader.add, pieces), reader.end()])
    once = InputReader()
    assert read == once.add(text) + once.end()
    try:
        value = json.loads(text)
    except ValueError:
        return
    if isinstance(value, dict) and isinstance(value.get("input"), str):
        assert read == value["input"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    else:
        assert read == text


def test_input_of_a_custom_tool_comes_as_it_is_sampled() -> None:
    reader = InputReader()
    read = [reader.add(piece) for piece in ('{"inp', 'ut":"a', "\\", "nb", "\\u00", 'e4", "x":', ' "y"}')]
    assert read == ["", "a", "", "\nb", "", "ä", ""]
    assert reader.end() == ""


_TEXTS = [
    {"role": "assistant", "tool_calls": [call("{}", "a"), call("{}", "b")]},
    *({"role": "tool", "tool_call_id": id, "content": id} for id in "ba"),
]
_BLOCKS = [
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in "ab"],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": id} for id in "ba"]},
]
_ITEMS = [
    *({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in "ab"),
    *({"type": "function_call_output", "call_id": id, "output": id} for id in "ba"),
]
_CONTENTS = [
    {"role": "model", "parts": [{"functionCall": {"id": id, "name": "f"}} for id in "ab"]},
    {
        "role": "user",
        "parts": [{"functionResponse": {"id": id, "name": "f", "response": {"output": id}}} for id in "ba"],
    },
]


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, {"messages": _TEXTS}),
        (MESSAGES, {"messages": _BLOCKS}),
        (RESPONSES, {"input": _ITEMS}),
        (GOOGLE, {"contents": _CONTENTS}),
    ],
)
def test_results_are_sorted(dialect: Dialect, body: dict[str, Any]) -> None:
    asked = parse(dialect, **body)
    for messages in (asked.messages, asked.body["messages"]):
        assert [(one["tool_call_id"], one["content"]) for one in messages[1:]] == [("a", "a"), ("b", "b")]


ODD: list[tuple[str, Any]] = [
    ('{"n": 1e999, "m": [-1e999, {"k": 1e400}], "z": 1}', {"n": None, "m": [None, {"k": None}], "z": 1}),
    ('{"n": 1' + "0" * 400 + ', "m": 12345678901234567890}', {"n": None, "m": 12345678901234567890}),
    ('{"n": 1, "n": 2}', {"n": 2}),
    ('{"\\udc00": "\\ud83d!"}', {"?": "?!"}),
]


@pytest.mark.parametrize(("text", "read"), ODD, ids=["huge", "long", "twice", "halves"])
@pytest.mark.parametrize("size", [None, 1, 5])
def test_odd_arguments_are_told_in_each_dialect(text: str, read: Any, size: int | None) -> None:
    """As text where the dialect has them as text, else as JavaScript reads them."""
    said = Completion(reply_of("", text, '{"a": 1}'), "tool_calls")

    def told(dialect: Dialect, **body: Any) -> Any:
        return written(dialect, parse(dialect, **body), said, size)

    chat = told(CHAT, messages=[HELLO])
    if size is None:
        calls = chat["choices"][0]["message"]["tool_calls"]
    else:
        calls = join(event["choices"][0]["delta"] for event in chat[:-1] if event["choices"])["tool_calls"]
    assert [one["function"]["arguments"] for one in calls] == [text, '{"a": 1}']
    responses = told(RESPONSES, input="hello")
    output = responses["output"] if size is None else responses[-1]["response"]["output"]
    assert [one["arguments"] for one in output if one["type"] == "function_call"] == [text, '{"a": 1}']
    messages = told(MESSAGES, messages=[HELLO])
    blocks = messages["content"] if size is None else collected(messages, as_claude_code)
    assert [block["input"] for block in blocks] == [read, {"a": 1}]
    google = told(GOOGLE, contents=[GO])
    parts = (google if size is None else google[-1])["candidates"][0]["content"]["parts"]
    assert [part["functionCall"]["args"] for part in parts if "functionCall" in part] == [read, {"a": 1}]
