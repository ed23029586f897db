"""The canonical form: which rewritings of history are harmless, and which are not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.messages import message_key, same_arguments, sort_results, text_of

NODE = shutil.which("node") or shutil.which("node", path=Path(sys.executable).parent)  # Pi's package has one
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


def reply(content: str = "", *calls: tuple[str, str], **more: Any) -> dict[str, Any]:
    called = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}
        for number, (name, text) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, **more}
    return {**message, "tool_calls": called} if called else message


@given(OBJECTS, st.randoms(use_true_random=False))
def test_arguments_are_equal_in_any_notation(value: dict[str, Any], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    rewritten = json.dumps({key: value[key] for key in keys}, indent=random.choice([None, 2]))
    assert same_arguments(json.dumps(value, ensure_ascii=False)) == same_arguments(rewritten)


@given(OBJECTS, OBJECTS)
def test_different_arguments_differ(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Strings, so that numbers which JavaScript cannot tell apart do not count."""
    one, other = {"v": json.dumps(one)}, {"v": json.dumps(other)}
    assert (same_arguments(json.dumps(one)) == same_arguments(json.dumps(other))) == (one == other)


@pytest.mark.skipif(NODE is None, reason="node is not installed: install Node.js to run it")
def test_arguments_rewritten_by_javascript_are_equal() -> None:
    texts = [
        '{"a": 1.0, "b": 1e3, "c": -0.0}',
        '{"big": 12345678901234567890, "bigger": 9007199254740993}',
        '{"huge": 1e400}',
        '{"2": 1, "1": 2, "x": {"b": [1.50], "a": null}}',
        '{"half": "\\ud800", "text": "é\\u00e9"}',
        '{"twice": 1, "twice": 2}',
        "{}",
    ]
    script = "for (const one of process.argv.slice(1)) console.log(JSON.stringify(JSON.parse(one)))"
    done = subprocess.run([str(NODE), "-e", script, *texts], capture_output=True, text=True, check=True)
    for text, rewritten in zip(texts, done.stdout.splitlines(), strict=True):
        assert same_arguments(rewritten) == same_arguments(text)


def test_malformed_deep_and_long_arguments_are_compared() -> None:
    for text in ("{", '{"a": NaN}', "[1]", "null", "[" * 9000):
        assert same_arguments(text) == same_arguments("{}")
    for depth in (300, 5000):
        one, other = ('{"a":' * depth + end + "}" * depth for end in "12")
        assert same_arguments(one) == same_arguments(one)
        assert same_arguments(one) != same_arguments(other)
    text = json.dumps({"content": "line\n" * 2000})
    assert same_arguments(text) == same_arguments(text.replace(": ", ":"))
    assert same_arguments(text) != same_arguments(text.replace("line", "lime", 1))


def test_message_key_ignores_ids_reasoning_and_outer_space() -> None:
    said = reply("\n\nLooking.\n", ("bash", '{"command": "ls"}'), reasoning_content="hm")
    sent_back = reply("Looking.", ("bash", '{"command":"ls"}'))
    sent_back["tool_calls"][0]["id"] = "another"
    assert message_key(said) == message_key(sent_back)


def test_message_key_distinguishes_replies_and_white_space_of_other_roles() -> None:
    call = ("bash", '{"command": "ls"}')
    key = message_key(reply("Looking.", call))
    for other in (
        reply("Looking", call),
        reply("Looking.", ("bash", '{"command": "ls -l"}')),
        reply("Looking.", ("shell", '{"command": "ls"}')),
        reply("Looking."),
        reply("Looking.", call, call),
        {"role": "user", "content": "Looking."},
    ):
        assert message_key(other) != key
    one, two = {"role": "user", "content": "a "}, {"role": "user", "content": "a"}
    assert message_key(one) != message_key(two)


def test_text_parts_become_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}, "!"]
    assert text_of(parts, "assistant") == "one two!"
    assert text_of(parts, "tool") == "one\n two\n!"
    assert text_of(None) == ""
    assert text_of("as it is") == "as it is"


def test_content_that_is_not_text_is_rejected() -> None:
    for content, named in (
        ([{"type": "image_url", "image_url": {"url": "data:"}}], "'image_url'"),
        ([{"type": "text"}], "'text'"),
        ([7], "'a number'"),
        ({"text": "x"}, "an object"),
        (True, "a boolean"),
    ):
        with pytest.raises(ValueError, match="text") as caught:
            text_of(content)
        assert named in str(caught.value)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("ab: b1 a1", "ab: a1 b1"),
        ("ab: b1 - a1", "ab: a1 - b1"),  # another message keeps its place
        ("abc: c1 a1", "abc: a1 c1"),  # a call without a result
        ("ab: b1 a1 a2", "ab: a1 a2 b1"),  # two results of a call
        ("xyx: x1 x2 y1", "xyx: x1 y1 x2"),  # equal ids
        ("ab: b1 .1", "ab: a1 b1"),  # a result without an id
        ("ab: a1 ?1 b1", "ab: a1 b1 ?1"),
        ("ab: b1 ?1", "ab: ?1 b1"),  # one with an unknown id
        ("a: .1 .2", "a: a1 .2"),
        ("ab: b1 - cd: d1 a1 c1", "ab: b1 - cd: c1 d1 a1"),  # a result of an earlier call
        ("a: a1 a: a2", "a: a1 a: a2"),  # ids that each reply has again
        ("a: b: b1 a1", "a: b: a1 b1"),  # consecutive messages of the assistant
        (".1 a1", ".1 a1"),
    ],
)
def test_results_stand_in_the_order_of_their_calls(given: str, wanted: str) -> None:
    """`ab:` is a reply with the calls a and b, `a1` a result of a, `.1` one without an id, `-` a user."""

    def messages(text: str) -> list[dict[str, Any]]:
        return [message(word) for word in text.split()]

    def message(word: str) -> dict[str, Any]:
        if word.endswith(":"):
            return {"role": "assistant", "content": "", "tool_calls": [{"id": id_} for id_ in word[:-1]]}
        if word == "-":
            return {"role": "user", "content": ""}
        known = {} if word[0] == "." else {"tool_call_id": word[0]}
        return {"role": "tool", "content": word[1], **known}

    said, words = messages(given), given.split()
    sort_results(said, words)
    assert said == messages(wanted)
    assert [word[-1] for word in words] == [word[-1] for word in wanted.split()]
