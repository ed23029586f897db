"""What agents that print JSON lines are parsed with."""

from __future__ import annotations

from typing import Any

from swe_core.api.event_lines import (
    as_mapping,
    as_mappings,
    as_text,
    events_of_blocks,
    json_line,
    make_event,
    odd_line,
    text_of_blocks,
)


def test_line_is_an_object_or_nothing() -> None:
    assert json_line('{"a": 1}') == {"a": 1}
    assert json_line('  {"a": "\\ud83d"}\n') == {"a": "\ud83d"}
    for line in ("", "plain text", "[1]", "{", '{"a": ' + "[" * 100_000, "{" + "1" * 10_000):
        assert json_line(line) is None


def test_event_is_valid_unicode() -> None:
    event = make_event("tool_result", "cut \ud83d", tool="\udc00", fatal=True)
    assert (event.kind, event.text, event.tool, event.fatal) == ("tool_result", "cut \ufffd", "\ufffd", True)
    assert make_event("text", "\ud83d\ude00").text == "\U0001f600", "two halves are one character"
    assert make_event("text", "").tool is None


def test_event_shows_other_values_than_text_as_json() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    texts = [make_event("tool_call", value).text for value in ({"é": [1, None]}, 0, False, None, deep)]
    assert texts == ['{"é": [1, null]}', "0", "false", "", "[nested too deeply]"]
    assert make_event("tool_call", "x", {"no": "name"}).tool is None
    assert make_event("text", "x", partial=True).partial


def test_odd_line_is_shown_in_part() -> None:
    assert odd_line(" \r\n") == ()
    (event,) = odd_line("\ud83d" + "x" * 10_000)
    assert (event.kind, event.text) == ("info", "\ufffd" + "x" * 1999)


def test_blocks_become_events() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}},
        {"type": "tool_result", "content": [{"type": "text", "text": "a.py"}, {"type": "image"}]},
        {"type": "redacted_thinking", "data": "AAAA"},
    ]
    assert [(event.kind, event.text, event.tool) for event in events_of_blocks(blocks, text="info")] == [
        ("reasoning", "Hm.", None),
        ("info", "I look.", None),
        ("tool_call", '{"command": "ls"}', "Bash"),
        ("tool_result", "a.py\n[image]", None),
    ]
    assert list(events_of_blocks("text")) == []


def test_content_becomes_text() -> None:
    assert text_of_blocks("plain") == "plain"
    blocks = [{"type": "text", "text": "Read"}, {"type": "image", "data": "AAAA"}]
    assert text_of_blocks(blocks) == "Read\n[image]"
    assert text_of_blocks([{"type": "text"}, {"text": 1}, "no block"]) == "[text]\n[]"
    assert text_of_blocks(None) == text_of_blocks({}) == ""


def test_nothing_raises_for_any_json() -> None:
    for value in (None, 1.5, "\ud83d", [[]], {"text": 1}, [{"type": []}, 1, {"text": None}]):
        assert isinstance(text_of_blocks(value), str)
        assert isinstance(as_text(value), str)
        assert isinstance(make_event("text", value, value).text, str)
        assert list(events_of_blocks([{"type": "tool_use", "input": value, "name": value}]))
        assert all(isinstance(item, dict) for item in [as_mapping(value), *as_mappings(value)])
