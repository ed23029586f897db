"""Conversations for fine-tuning, formatted by TRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swe_core.rollout.run_directory import RunDirectory
from swe_testing.records import make_turn
from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

from ..hub.runs import add, error, rollout
from .conftest import Export, invoke
from .test_rows import loaded

TEMPLATE = (
    "{% for tool in tools %}{{ tool.function | tojson }};{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %} {{ key }}={{ value }}{% endfor %}</tool_call>"
    "{% endfor %}<|im_end|>{% endfor %}"
)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


@pytest.fixture
def rows(run: RunDirectory, exported: Export, tmp_path: Path) -> Any:
    """Two conversations, whose tools have different arguments, as `datasets` loads them."""
    add(run, rollout("a-0"))
    add(run, rollout("b-0"))
    path = run.path / "rollouts" / "b-0" / "turns.jsonl"
    path.write_bytes(path.read_bytes().replace(b"bash", b"read").replace(b"command", b"path"))
    folder = exported(run, "sft")
    found = loaded(folder, tmp_path / "cache")
    assert found == lines(folder)
    return found


def test_datasets_keeps_each_tool_as_it_is(rows: Any) -> None:
    calls = [row["messages"][1]["tool_calls"][0]["function"] for row in rows]
    assert [call["name"] for call in calls] == ["bash", "read"]
    assert [call["arguments"] for call in calls] == [{"command": "ls"}, {"path": "ls"}]


@pytest.mark.slow  # it imports TRL, with torch
def test_trl_formats_what_datasets_loads(rows: Any) -> None:
    from trl.data_utils import apply_chat_template, is_conversational

    tokenizer = make_tokenizer(QWEN3_TOKENS, chat_template=TEMPLATE, eos_token="<|im_end|>")
    for row, call in zip(rows, (("bash", "command"), ("read", "path")), strict=True):
        assert is_conversational(row)
        formatted = apply_chat_template({"messages": row["messages"]}, tokenizer, tools=row["tools"])
        tool = f'{{"name": "{call[0]}", "parameters": {{"type": "object"}}}}'
        assert formatted["text"] == (
            f"{tool};<|im_start|>user:look<|im_end|><|im_start|>assistant:<tool_call>{call[0]} {call[1]}=ls"
            "</tool_call><|im_end|><|im_start|>tool:a.py<|im_end|><|im_start|>assistant:Done.<|im_end|>"
        )


def test_only_resolved_rollouts_by_default(run: RunDirectory, exported: Export) -> None:
    add(run, rollout("a-0"))
    add(run, rollout("a-1", outcome="unresolved", reward=0.0))
    add(run, error("a-2", "gone"))
    assert [row["rollout_id"] for row in lines(exported(run, "sft"))] == ["a-0"]
    every = exported(run, "sft", "--outcome", "resolved", "--outcome", "unresolved")
    assert [row["outcome"] for row in lines(every)] == ["resolved", "unresolved"]


def test_each_conversation_of_a_rollout_is_a_line(training: RunDirectory, exported: Export) -> None:
    rows = lines(exported(training, "sft"))
    compacted = [row["messages"] for row in rows if row["rollout_id"] == "moto-7365-g0-0"]
    begins = [messages[1]["content"].partition(":")[0] for messages in compacted]
    assert begins == ["Fix moto-7365", "Summary so far"]
    titled = [row for row in rows if row["rollout_id"] == "moto-7365-g0-2"]
    assert len(titled) == 1  # without the call for a title
    assert "title" not in titled[0]["messages"][-1]["content"]


def test_unusable_conversations_are_left_out(run: RunDirectory, tmp_path: Path) -> None:
    add(run, rollout("a-0"))
    add(run, rollout("b-0"))
    path = run.path / "rollouts" / "b-0" / "turns.jsonl"
    path.write_bytes(path.read_bytes().replace(rb"{\"command\":\"ls\"}", b"ls"))
    asked = {"role": "user", "content": "a"}
    first, cut = ({"role": "assistant", "content": text} for text in ("b", "I th"))
    for name in ("c-0", "d-0"):  # a reply that is cut, and one after a whole one
        folder = run.folder(name)
        if name == "d-0":
            folder.add_turn(make_turn(messages=[asked], reply=first))
        more = [asked] if name == "c-0" else [first, asked]
        kept = len(more) - 1
        folder.add_turn(make_turn(kept, kept=kept, messages=more, reply=cut, finish_reason="length"))
        folder.close()
        run.append(rollout(name))
    done = invoke(run.path, "--format", "sft", "--out", tmp_path / "out")
    assert "2 conversations of 4 rollouts" in done.output
    assert lines(tmp_path / "out")[1]["messages"] == [asked, first]
    assert "left out: 2 conversations without a whole reply, or with a tool call" in done.output
