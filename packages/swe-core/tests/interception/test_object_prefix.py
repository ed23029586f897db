"""ObjectPrefix: the beginning of a JSON object in a text that grows."""

from __future__ import annotations

import json
from pathlib import Path

import jiter
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.messages import same_arguments
from swe_core.api.object_prefix import ObjectPrefix

from .test_round_trips import values_of

TEXTS = json.loads((Path(__file__).parent / "recordings/object_prefixes.json").read_text())
"""Each with the part that is read, and whether that is a whole object, or is cut or broken off."""
DEEP = [
    ['{"a": ' * 100 + "1" + "}" * 100, '{"a": ' * 100 + "1" + "}" * 100, "whole"],
    ['{"a": ' * 101 + "1" + "}" * 101, '{"a": ' * 100, "broken"],
]


def _read(text: str, size: int) -> tuple[ObjectPrefix, str]:
    """Return the reader after `text`, which comes in pieces, and what it returned."""
    prefix = ObjectPrefix()
    return prefix, "".join([prefix.add(text[start : start + size]) for start in range(0, len(text), size)])


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_text_is_read_up_to_where_it_is_no_object(size: int) -> None:
    for text, begins, how in [*TEXTS, *DEEP]:
        prefix, told = _read(text, size)
        assert (told, prefix.whole, prefix.broken) == (begins, how == "whole", how == "broken"), text
        if prefix.broken:
            assert prefix.add("}") == ""


def test_input_is_told_while_it_grows() -> None:
    prefix = ObjectPrefix()
    pieces = ['{"a', '": "b', "\\", 'n c", "d": 1', "2", ', "e": t', "rue}"]
    assert [*map(prefix.add, pieces)] == ['{"a', '": "b', "", '\\n c", "d": ', "", '12, "e": ', "true}"]


_text = st.text(st.sampled_from('ab"\\\n\té😀\u2028/{}[],:0'), max_size=8)
_objects = st.builds(
    json.dumps,
    st.dictionaries(_text, values_of(_text), max_size=3),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
)


@given(_objects, st.integers(0), st.sampled_from('av"\\{}[],:0- \x02'), st.integers(0, 1), st.integers(1, 9))
def test_whole_is_what_a_parser_takes(text: str, place: int, typo: str, removed: int, size: int) -> None:
    """After a typo, only a part that an incremental parser of the client accepts has been sent."""
    prefix, told = _read(text, size)
    assert told == text
    assert prefix.whole
    at = place % len(text)
    text = text[:at] + typo + text[at + removed :]
    prefix, told = _read(text, size)
    try:
        is_object = isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        is_object = False
    assert prefix.whole is is_object
    if is_object:
        assert same_arguments(told) == same_arguments(text)
    elif "?" not in told and "null" not in told:  # nothing was replaced
        assert text.lstrip().startswith(told)
    closed = prefix.closed(told).encode()
    orjson.loads(closed)  # takes no NaN, as json.loads does; but reads integers from 2**64 as floats
    assert json.loads(closed) == jiter.from_json(told.encode() or b"{}", partial_mode=True)
    if told:
        jiter.from_json(told.encode(), partial_mode=True)
