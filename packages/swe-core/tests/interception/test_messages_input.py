"""ObjectPrefix: the beginning of a JSON object in a text that grows."""

from __future__ import annotations

import json
from typing import Any

import jiter
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.interception.dialects.messages_input import ObjectPrefix


def _read(text: str, size: int) -> tuple[ObjectPrefix, str]:
    """Return the reader after `text`, which comes in pieces, and what it returned."""
    prefix = ObjectPrefix()
    told = [prefix.add(text[start : start + size]) for start in range(0, len(text), size)]
    return prefix, "".join(told)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        ' { "" : "" } ',
        '{"a": [1, -0, 2.5e-3, 1E5, true, false, null, [], {"b": [[]]}], "c": {}}\n',
        '{"a": "\\" \\\\ \\n \\u00e9 \\ud83d\\ude00 é 😀 \u2028 {[,:]}"}',
        '{"a": ' * 100 + "1" + "}" * 100,
    ],
)
def test_object_is_whole(text: str, size: int) -> None:
    prefix, told = _read(text, size)
    assert told == text.lstrip()
    assert prefix.whole
    assert not prefix.broken


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("", ""),
        (" \n", ""),  # the SDKs fail on an input of white space
        ('{"a": tr', '{"a": '),
        ('{"a": 12', '{"a": '),  # more digits may follow
        ('{"a": "b', '{"a": "b'),
        ('{"a": "b\\', '{"a": "b'),
        ('{"a": "b\\ud83d\\u', '{"a": "b'),
        ('{"a": 1', '{"a": '),
        ('{"a": {}', '{"a": {}'),
    ],
)
def test_cut_object_is_neither_whole_nor_broken(text: str, begins: str, size: int) -> None:
    prefix, told = _read(text, size)
    assert told == begins
    assert not prefix.whole
    assert not prefix.broken


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("[1]", ""),
        ("ls", ""),
        (" 1", ""),
        ("value", ""),
        ("{a: 1}", "{"),
        ("{,}", "{"),
        ('{"a" 1}', '{"a" '),
        ('{"a": value}', '{"a": '),
        ('{"a": NaN}', '{"a": '),
        ('{"a": 01}', '{"a": '),
        ('{"a": 1e999}', '{"a": '),
        ('{"a": [1,]}', '{"a": [1,'),
        ('{"a": [1}', '{"a": [1'),
        ('{"a": 1,}', '{"a": 1,'),
        ('{"a": 1 2}', '{"a": 1 '),
        ('{"a": "b\nc"}', '{"a": "b'),
        ('{"a": "b\\c"}', '{"a": "b'),
        ('{"a": "\\ud83d!"}', '{"a": "'),
        ('{"a": "\\udc00"}', '{"a": "'),
        ('{"a": 1}}', '{"a": 1}'),
        ("{} and more", "{} "),
        ('{"a": ' * 101 + "1" + "}" * 101, '{"a": ' * 100),
    ],
)
def test_text_is_read_up_to_where_it_is_no_object(text: str, begins: str, size: int) -> None:
    prefix, told = _read(text, size)
    assert told == begins
    assert prefix.broken
    assert prefix.add("}") == ""


def test_input_is_told_while_it_grows() -> None:
    prefix = ObjectPrefix()
    pieces = ['{"a', '": "b', "\\", 'n c", "d": 1', "2", ', "e": t', "rue}"]
    assert [*map(prefix.add, pieces)] == ['{"a', '": "b', "", '\\n c", "d": ', "", '12, "e": ', "true}"]


_text = st.text(st.sampled_from('ab"\\\n\té😀\u2028/{}[],:0'), max_size=8)
_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(_text, inside, max_size=3),
    max_leaves=8,
)
_objects = st.builds(
    json.dumps,
    st.dictionaries(_text, _values, max_size=3),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
)


@given(_objects, st.integers(0), st.sampled_from('av"\\{}[],:0- \x02'), st.integers(0, 1), st.integers(1, 9))
def test_whole_is_what_a_parser_of_json_takes(
    text: str, place: int, typo: str, removed: int, size: int
) -> None:
    """After a typo, only a part that an incremental parser of the client accepts has been sent."""
    prefix, told = _read(text, size)
    assert told == text
    assert prefix.whole
    at = place % len(text)
    text = text[:at] + typo + text[at + removed :]
    prefix, told = _read(text, size)
    try:
        is_object = isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        is_object = False
    assert prefix.whole is is_object
    assert text.lstrip().startswith(told)
    if told:
        jiter.from_json(told.encode(), partial_mode=True)
