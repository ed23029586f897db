"""Session files of Pi and of Claude Code, and trajectories: each reply with its request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swe_core.drift.readers import read

RECORDED = Path(__file__).parent / "recorded"


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / name).read_text().splitlines()]


def saved(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def entry(id: str, parent: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "message", "id": id, "parentId": parent, **more}


def reply(id: str, parent: str, text: str, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "text", "text": text}]
    return entry(id, parent, message={"role": "assistant", "content": blocks, **more})


PI = [
    {"type": "session", "id": "s"},
    entry("a", None, message={"role": "user", "content": "go"}),
    reply("b", "a", "One."),
    entry("c", "b", message={"role": "user", "content": "on"}),
]


def asked(tmp_path: Path, *more: dict[str, Any]) -> list[list[str]]:
    """Return the texts of each request of a session of Pi that goes on with more entries."""
    (found,) = read(saved(tmp_path, *PI, *more))
    return [[message["content"] for message in turn.messages] for turn in found.turns]


def test_pi_session_has_what_pi_asked() -> None:
    (found,) = read(RECORDED / "pi.jsonl")
    first, *_, last = found.turns
    assert len(found.turns) == 5
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert first.reply["reasoning_content"] == "I think about step 0."
    assert first.tools is not None
    assert first.tools[0]["function"]["name"] == "read"
    assert last.messages[:2] == first.messages
    assert last.reply["content"].startswith("All is well")


def test_pi_session_has_the_replies_of_every_branch(tmp_path: Path) -> None:
    more = [reply("d", "c", "Two."), reply("e", "a", "Other."), reply("f", "d", "Three.")]
    assert asked(tmp_path, *more) == [["go"], ["go", "One.", "on"], ["go"], ["go", "One.", "on", "Two."]]


def test_summary_of_a_pi_session_stands_for_what_it_replaced(tmp_path: Path) -> None:
    compaction = {
        "type": "compaction",
        "id": "d",
        "parentId": "c",
        "summary": "We went.",
        "firstKeptEntryId": "c",
    }
    assert asked(tmp_path, compaction, reply("e", "d", "Two.")) == [["go"], ["We went.", "on"]]
    later = {**compaction, "id": "f", "parentId": "e", "summary": "And on.", "firstKeptEntryId": "d"}
    more = [compaction, reply("e", "d", "Two."), later, reply("g", "f", "Three.")]
    assert asked(tmp_path, *more)[-1] == ["And on.", "Two."]


def test_pi_session_shows_a_message_as_it_was_edited_from_the_edit_on(tmp_path: Path) -> None:
    edit = {
        "type": "context_edit",
        "id": "e",
        "parentId": "d",
        "targetId": "a",
        "replacement": {"content": "GO"},
    }
    removal = {**edit, "id": "g", "parentId": "f", "targetId": "c", "replacement": None}
    more = [reply("d", "c", "Two."), edit, reply("f", "e", "Three."), removal, reply("h", "g", "Four.")]
    assert asked(tmp_path, *more)[1:] == [
        ["go", "One.", "on"],
        ["GO", "One.", "on", "Two."],
        ["GO", "One.", "Two.", "Three."],
    ]


def test_pi_session_has_the_tools_that_are_not_removed(tmp_path: Path) -> None:
    tools = [{"name": name, "description": name, "parameters": {}} for name in ("read", "bash")]
    rows = [
        entry("a", None, message={"role": "system", "content": "s", "toolsAdded": tools}),
        reply("b", "a", "One."),
        entry("c", "b", message={"role": "system", "content": "t", "toolsRemoved": tools[:1]}),
        reply("d", "c", "Two."),
    ]
    (found,) = read(saved(tmp_path, PI[0], *rows))
    names = [[tool["function"]["name"] for tool in turn.tools or ()] for turn in found.turns]
    assert names == [["read", "bash"], ["bash"]]


def test_pi_session_leaves_out_a_reply_that_failed(tmp_path: Path) -> None:
    more = [reply("d", "c", "", stopReason="error"), reply("e", "d", "Two.")]
    assert asked(tmp_path, *more) == [["go"], ["go", "One.", "on"]]


def test_pi_session_ends_at_an_entry_that_is_its_own_ancestor(tmp_path: Path) -> None:
    assert asked(tmp_path, reply("e", "e", "Two."), reply("b", "e", "Three.")) == [["go"], [], ["Two."]]


def test_claude_session_has_each_request_as_it_was_sent() -> None:
    (found,) = read(RECORDED / "claude.jsonl")
    first, *_, last = found.turns
    assert [message["role"] for message in first.messages] == ["system", "user", "system"]
    assert first.messages[1]["content"].startswith("<context>")
    assert first.tools is not None
    assert first.tools[0]["function"]["name"] == "Bash"
    assert [len(turn.messages) for turn in found.turns] == [3, 5, 7, 9, 11, 13]
    assert last.messages[-1]["content"] == "Now run the tests.\n"
    assert first.reply["reasoning_content"] == "I think about step 0."


def test_claude_session_with_another_system_prompt_is_another_request(tmp_path: Path) -> None:
    rows = rows_of("claude.jsonl")
    shape = next(row for row in rows if row["type"] == "api-request-shape")
    other = {**shape, "shapeHash": "x", "shape": {**shape["shape"], "system": "You are another agent."}}
    last = max(at for at, row in enumerate(rows) if row["type"] == "api-request")
    rows[last] = {**rows[last], "shapeHash": "x"}
    (found,) = read(saved(tmp_path, *rows[:last], other, *rows[last:]))
    assert [turn.messages[0]["content"] for turn in found.turns[-2:]] == [
        "You are a coding agent.",
        "You are another agent.",
    ]
    assert found.turns[-1].messages[1:-2] == found.turns[-2].messages[1:]


def test_claude_session_without_requests_is_its_transcript_since_the_compaction(tmp_path: Path) -> None:
    rows = [row for row in rows_of("claude.jsonl") if row["type"] in ("user", "assistant")]
    replies = [at for at, row in enumerate(rows) if "thinking" in str(row["message"]["content"][0])]
    boundary = {"type": "system", "subtype": "compact_boundary", "sessionId": "s"}
    summary = {"type": "user", "message": {"role": "user", "content": "So far."}, "sessionId": "s"}
    (found,) = read(saved(tmp_path, *rows[: replies[2]], boundary, summary, *rows[replies[4] :]))
    assert [len(turn.messages) for turn in found.turns] == [1, 3, 1, 3]
    assert found.turns[2].messages == [{"role": "user", "content": "So far."}]


def test_claude_session_joins_a_reply_around_its_results(tmp_path: Path) -> None:
    def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
        message = {"role": role, "content": list(blocks), **({"id": "m"} if role == "assistant" else {})}
        return {"type": role, "sessionId": "s", "message": message}

    rows = [said("user", {"type": "text", "text": "go"})]
    for id in ("c", "d"):
        rows.append(said("assistant", {"type": "tool_use", "id": id, "name": "Bash", "input": {}}))
        rows.append(said("user", {"type": "tool_result", "tool_use_id": id, "content": "1"}))
    (found,) = read(saved(tmp_path, *rows))
    (turn,) = found.turns
    assert [call["id"] for call in turn.reply["tool_calls"]] == ["c", "d"]


def test_trajectory_has_tools_sampled_ids_and_context(tmp_path: Path) -> None:
    steps = [
        {"source": "user", "message": "Fix it."},
        {"source": "agent", "message": "Copied.", "is_copied_context": True},
        {"source": "agent", "message": "By rule.", "llm_call_count": 0},
        {"source": "agent", "message": "Done.", "metrics": {"completion_token_ids": [5, 6]}},
    ]
    tools = [{"type": "function", "function": {"name": "bash"}}]
    agent = {"name": "a", "version": "1", "tool_definitions": tools}
    sub = {"agent": {"name": "b", "version": "1"}, "steps": [steps[0], {"source": "agent", "message": "Ok."}]}
    one, other = read(saved(tmp_path, {"agent": agent, "steps": steps, "subagent_trajectories": [sub]}))
    (turn,) = one.turns
    assert (turn.sampled, turn.tools, turn.reply["content"]) == ([5, 6], tools, "Done.")
    assert [message["content"] for message in turn.messages] == ["Fix it.", "Copied.", "By rule."]
    assert other.turns[0].tools is None
