"""Transcripts: what each call added, results beside their calls, and long texts that are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swe_core.api.agent import AgentEvent
from swe_core.api.records import Turn
from swe_core.errors import UsageError
from swe_core.view.excerpts import FOLDED, LEAST, WIDTH, Excerpt, Excerpts, tail_of
from swe_core.view.transcript import gist, read_events, readable, shown_turns
from swe_testing.records import make_turn

ASKED = {"role": "user", "content": "Fix it."}


def call(key: str, arguments: str = '{"command": "ls"}', name: str = "bash") -> dict[str, Any]:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}


def reply(text: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


def result(key: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": key, "content": text}


def conversation() -> list[Turn]:
    said = reply("I look.", call("a"), call("b", '{"path": "x.py"}', "read"))
    more = [said, result("b", "x = 1"), result("a", "x.py")]
    return [
        make_turn(0, messages=[ASKED], reply=said),
        make_turn(1, kept=1, messages=more, reply=reply("Done.")),
    ]


def test_results_stand_beside_their_calls() -> None:
    first, second = shown_turns(conversation(), None, Excerpts())
    assert [(one.tool, one.title, one.result and one.result.shown) for one in first.calls] == [
        ("bash", "ls", "x.py"),
        ("read", "x.py", "x = 1"),
    ]
    assert [one.role for one in first.messages] == ["user"]
    assert second.messages == []  # the reply and its results are there already
    assert second.text.shown == "Done."
    assert (first.note, second.note) == ("", "")


def test_changed_history_is_named_and_its_messages_are_kept() -> None:
    changed = make_turn(2, kept=1, messages=[reply("A summary."), result("a", "x.py")], reply=reply("On."))
    last = shown_turns([*conversation(), changed], None, Excerpts())[-1]
    assert last.note == "changes its history: keeps 1 of the 4 messages of turn 1"
    assert last.repeats
    assert [one.role for one in last.messages] == ["assistant", "tool"]


def test_other_conversations_are_named() -> None:
    turns = [
        *conversation(),
        make_turn(2, kept=0, messages=[ASKED], reply=reply("A sub-agent.")),
        make_turn(3, after=1, kept=4, messages=[ASKED], reply=reply("On.")),
    ]
    shown = shown_turns(turns, None, Excerpts())
    assert shown[2].note == "begins another conversation"
    assert shown[3].note == "continues turn 1"


def test_odd_messages_are_shown() -> None:
    for message in (
        {},
        {"role": "assistant", "content": 7, "tool_calls": "no list"},
        {"role": "tool", "content": [{"type": "image"}, "text", {"type": "text", "text": "said"}]},
        {"role": ["odd"], "content": {"deep": [1]}, "tool_calls": [{"function": None}, 3]},
        {"role": "assistant", "content": None, "tool_calls": [call("", "not json"), call("", "[1]")]},
    ):
        shown = shown_turns([make_turn(0, messages=[message], reply=message)], None, Excerpts())
        assert len(shown[0].messages) == 1


def test_reasoning_and_arguments_are_readable() -> None:
    said = {**reply("", call("a", '{"path": "x.py", "text": "a\\nb", "n": 3}')), "reasoning_content": "Hm."}
    shown = shown_turns([make_turn(0, reply=said)], None, Excerpts())[0]
    assert shown.reasoning.shown == "Hm."
    assert shown.calls[0].arguments.shown == "path: x.py\ntext:\na\nb\nn: 3"
    deep = '{"a":' + "[" * 300 + "]" * 300 + "}"
    assert readable(deep) == deep
    assert deep.startswith(gist(deep))


def test_text_is_cut_and_escaped() -> None:
    found = Excerpts().cut("x" * 10_000_000, "turns.jsonl")
    assert (len(found.shown), len(found.folded), len(found)) == (WIDTH, FOLDED, 10_000_000)
    assert "9,956,000 more characters, in turns.jsonl" in found.__html__()
    assert len(found.__html__()) < 50_000
    excerpts = Excerpts(total=10_000)
    assert [len(excerpts.cut("x" * 20_000, "").shown) for _ in range(2)] == [WIDTH, LEAST], "a page's limit"
    assert Excerpt("<b>\x1b[31m\u202e").__html__() == "<pre>&lt;b&gt;&lt;U+202E&gt;</pre>"


def test_events_of_a_long_transcript_are_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "transcript.jsonl"
    line = AgentEvent(kind="text", text="said").model_dump_json() + "\n"
    path.write_text(line * 10 + line[:20])
    events, unread = read_events(path, tmp_path)
    assert (len(events), unread) == (10, 0)  # the torn line may still be written
    monkeypatch.setattr("swe_core.view.transcript.MAX_EVENTS", len(line) * 2 + 5)
    events, unread = read_events(path, tmp_path)
    assert (len(events), unread) == (2, len(line) * 8 + 20)
    assert read_events(tmp_path / "none", tmp_path) == ([], 0)
    path.write_text('{"kind": "odd"}\n')
    with pytest.raises(UsageError, match="is damaged: a line is not an agent's event"):
        read_events(path, tmp_path)


def test_tail_begins_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\nsecond\nthird \xff\n")
    tail = tail_of(path, tmp_path, 12)
    assert tail is not None
    assert (tail.text, tail.left_out) == ("third \ufffd\n", 13)
    assert tail_of(tmp_path / "none", tmp_path, 10) is None
