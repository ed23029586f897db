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
    """Texts of two kinds, whole texts and those around a call stay apart."""
    whole, call = {"kind": "text", "text": "whole"}, {"kind": "tool_call", "text": "{}", "tool": "bash"}
    before = piece("hm", "reasoning"), piece("I "), piece("look."), whole, whole
    assert transcript(tmp_path, *before, call, piece("Do"), piece("ne.")) == [
        ("reasoning", "hm"), ("text", "I look."), ("text", "whole"), ("text", "whole"),
        ("tool_call", "{}"), ("text", "Done."),
    ]  # fmt: skip


def test_agent_output_holds_no_endless_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_output, "MAX_LINE", 70)
    shown = transcript(tmp_path, *[piece("x" * 30)] * 5)
    assert [len(text) for _, text in shown] == [90, 60]
