"""`swe-core drift`: every format of a recorded conversation, the table, JSON, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from swe_core.api.records import TurnTokens
from swe_core.cli import drift as command
from swe_core.cli.drift import drift
from swe_core.drift.readers import read
from swe_testing.records import make_rollout, make_run, make_turn
from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

pytest.importorskip("trl", reason="the chat templates are in TRL")
TOOL = {"name": "bash", "description": "Run.", "parameters": {"type": "object", "properties": {}}}
FUNCTION = {"name": "bash", "arguments": '{"command": "ls"}'}
CALLED = {"tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}]}
CHAT = [
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "I look.", "reasoning_content": "Where?", **CALLED},
    {"role": "tool", "tool_call_id": "c", "content": "one.py"},
    {"role": "assistant", "content": "Done.", "reasoning_content": "Easy."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]
SAID = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    for text in ("I look.", "Done.", "Yes.")
]
ITEMS = [
    {"type": "message", "role": "user", "content": "Fix it."},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Where?"}]},
    SAID[0],
    {"type": "function_call", "call_id": "c", **FUNCTION},
    {"type": "function_call_output", "call_id": "c", "output": "one.py"},
    SAID[1],
    {"type": "message", "role": "user", "content": "Sure?"},
    SAID[2],
]
USE = {"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "ls"}}
ANTHROPIC = {
    "system": "You fix bugs.",
    "messages": [
        {"role": "user", "content": "Fix it."},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "one.py"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ],
    "tools": [{"name": "bash", "input_schema": TOOL["parameters"]}],
}
FILES: dict[str, Any] = {
    "openai": {"messages": CHAT, "tools": [{"type": "function", "function": TOOL}]},
    "responses": {"input": ITEMS[:-1], "output": ITEMS[-1:], "tools": [{"type": "function", **TOOL}]},
    "anthropic": ANTHROPIC,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = (files("trl") / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(QWEN3_TOKENS, chat_template=source, eos_token="<|im_end|>").save_pretrained(path)
    return str(path)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def save(value: Any, lines: bool = False) -> Path:
        (tmp_path / "trace.json").write_text("\n".join(map(json.dumps, value if lines else [value])))
        return tmp_path / "trace.json"

    return save


def ran(*args: object) -> Result:
    return CliRunner().invoke(drift, [*map(str, args)], env={"COLUMNS": "200"})


@pytest.mark.parametrize("name", FILES)
def test_reader_gives_each_reply_with_all_before_it(name: str, saved: Callable[..., Path]) -> None:
    (found,) = read(saved(FILES[name]))
    replies = [turn.reply for turn in found.turns]
    assert [reply["content"].strip() for reply in replies] == ["I look.", "Done.", "Yes."]
    (call,) = replies[0]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"command": "ls"}
    assert found.turns[1].messages[-1] == {"role": "tool", "content": "one.py", "tool_call_id": "c"}
    assert [len(turn.messages) for turn in found.turns] == ([2, 4, 6] if name == "anthropic" else [1, 3, 5])
    assert found.turns[0].tools
    if name in ("openai", "responses"):
        assert replies[0]["reasoning_content"] == "Where?"


AN_OBJECT = [{"messages": CHAT}] * 3


@pytest.mark.parametrize(
    ("value", "lines", "conversations"),
    [(CHAT, False, 1), (CHAT, True, 1), ([CHAT, CHAT[:4]], True, 2), (AN_OBJECT, True, 3), (ITEMS, False, 1)],
    ids=["a list", "a message a line", "a list a line", "an object a line", "items"],
)
def test_reader_takes_lines(value: Any, lines: bool, conversations: int, saved: Callable[..., Path]) -> None:
    found = read(saved(value, lines))
    assert len(found) == conversations
    assert found[0].turns[-1].reply["content"] == "Yes."


def test_reader_of_a_run_has_its_sampled_ids(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1)
    folder = run.folder("t-0")
    tokens = TurnTokens(
        base=None, prompt=[1], completion=[2, 3], logprobs=[-1.0, -1.0], versions=[(0, 2)],
        rendered="full", cause="start",
    )  # fmt: skip
    reply = {"role": "assistant", "content": "hi"}
    kinds = ({"reply": reply, "tokens": tokens}, {"reply": reply, "auxiliary": "title"}, {"error": "failed"})
    for index, fields in enumerate(kinds):
        folder.add_turn(make_turn(index, messages=CHAT[:1], **fields))
    folder.close()
    run.append(make_rollout("t", 0))
    (found,) = read(tmp_path / "run")
    assert found.name == "t-0"
    assert [(turn.sampled, turn.dropped) for turn in found.turns] == [([2, 3], None), (None, "title")]


def test_drift_prints_what_rendering_anew_loses(tokenizer: str, saved: Callable[..., Path]) -> None:
    done = ran(saved(FILES["openai"]), "--tokenizer", tokenizer)
    assert done.exit_code == 0, done.output
    assert "the prompt of turn 2 differs in message 1 (assistant)" in done.output
    assert "with our prompts 0." in done.output


def test_drift_prints_json(tokenizer: str, saved: Callable[..., Path]) -> None:
    done = ran(saved([FILES["openai"]] * 2, lines=True), "--tokenizer", tokenizer, "--json")
    found = json.loads(done.stdout)
    one, other = found["conversations"]
    assert (one["ours"]["rows"], one["ours"]["causes"], one["ours"]["lost"]) == (1, {}, 0)
    assert (one["anew"]["rows"], one["anew"]["causes"]) == (2, {"template": 1})
    assert one["anew"]["lost"] > 0
    assert other["turns"] == 3
    assert found["total"]["turns"] == 6


def test_drift_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert "pip install 'swe-core[vllm]'" in str(ran("x", "--tokenizer", "y").exception)
