"""What agents that print JSON lines are parsed with."""

from __future__ import annotations

from typing import Any

import pytest

from swe_core.api.event_lines import (
    as_mapping,
    as_mappings,
    as_text,
    json_line,
    make_event,
    text_of_blocks,
)

JSON = [None, 0, 1.5, True, "text", "\ud83d", [], [[]], {}, {"text": 1}, [{"type": []}, 1, {"text": None}]]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ('  {"a": "\\ud83d"}\n', {"a": "\ud83d"}),
        ("", None),
        ("plain text", None),
        ("[1]", None),
        ("{", None),
        ('{"a": ' + "[" * 100_000, None),
        ("{" + "1" * 10_000, None),
    ],
    ids=["object", "half a pair", "empty", "text", "list", "cut", "deep", "digits"],
)
def test_line_is_an_object_or_nothing(line: str, found: dict[str, Any] | None) -> None:
    assert json_line(line) == found


def test_event_is_valid_unicode() -> None:
    event = make_event("tool_result", "cut \ud83d", tool="\udc00", fatal=True)
    assert (event.kind, event.text, event.tool, event.fatal) == ("tool_result", "cut \ufffd", "\ufffd", True)
    assert make_event("text", "\ud83d\ude00").text == "\U0001f600", "two halves are one character"
    assert make_event("text", "").tool is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "Read"}, {"type": "image", "data": "AAAA"}], "Read\n[image]"),
        ([{"type": "text"}, {"text": 1}, "no block"], "[text]\n[]"),
        (None, ""),
        ({}, ""),
    ],
)
def test_content_becomes_text(content: object, text: str) -> None:
    assert text_of_blocks(content) == text


@pytest.mark.parametrize("value", JSON, ids=repr)
def test_nothing_raises_for_any_json(value: object) -> None:
    assert isinstance(text_of_blocks(value), str)
    assert isinstance(as_text(value), str)
    assert all(isinstance(item, dict) for item in [as_mapping(value), *as_mappings(value)])
