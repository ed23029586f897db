"""AgentOutput: pieces of a text become one event of the transcript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.agent import AgentEvent
from swe_core.builtin.agents import Nop
from swe_core.rollout import agent_output
from swe_core.rollout.agent_output import AgentOutput
from swe_core.rollout.run_directory import RolloutFolder
from swe_core.system.redaction import Redactor


def transcript(folder: Path, *events: dict[str, Any]) -> list[tuple[str, str]]:
    record = RolloutFolder(folder / "record", Redactor())
    output = AgentOutput(Nop(), record)
    for event in events:
        output.add(AgentEvent.model_validate(event))
    output.close()
    record.close()
    lines = [json.loads(line) for line in (folder / "record" / "transcript.jsonl").read_text().splitlines()]
    assert not any("partial" in line for line in lines)
    return [(line["kind"], line["text"]) for line in lines]


def piece(text: str, kind: str = "text") -> dict[str, Any]:
    return {"kind": kind, "text": text, "partial": True}


def test_agent_output_joins_the_pieces_of_a_text(tmp_path: Path) -> None:
    call = {"kind": "tool_call", "text": "{}", "tool": "bash"}
    events = (piece("I "), piece("look."), call, piece("Do"), piece("ne."))
    assert transcript(tmp_path, *events) == [("text", "I look."), ("tool_call", "{}"), ("text", "Done.")]


def test_agent_output_keeps_texts_of_two_kinds_and_whole_texts_apart(tmp_path: Path) -> None:
    whole = {"kind": "text", "text": "whole"}
    events = (piece("hm", "reasoning"), piece("I"), whole, whole)
    assert transcript(tmp_path, *events) == [
        ("reasoning", "hm"), ("text", "I"), ("text", "whole"), ("text", "whole"),
    ]  # fmt: skip


def test_agent_output_holds_no_endless_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_output, "MAX_LINE", 70)
    shown = transcript(tmp_path, *[piece("x" * 30)] * 5)
    assert [len(text) for _, text in shown] == [90, 60]
