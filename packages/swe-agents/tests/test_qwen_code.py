"""Qwen Code: its files, its command and its output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swe_agents.qwen_code import OTHER_TOOLS, TOKEN, TOOLS, QwenCode, QwenCodeConfig
from swe_core import AgentEvent, AgentExit
from swe_testing.agents import Run, ScriptedModel

from . import trials
from .trials import context, parsed, trial_of

LOOPED = "Loop detection halted the run (consecutive_identical_tool_calls: the model repeated the same call)"


def settings(**config: Any) -> Any:
    return json.loads(QwenCode(QwenCodeConfig(**config)).files(context())["/tmp/swe-home/settings.json"])


def test_qwen_code_parses_its_own_output() -> None:
    browse = 'Tool "browse" not found in registry. Tools must use the exact names that are registered.'
    events = parsed(QwenCode())
    assert [(kind, tool) for kind, _, tool, _ in events] == [
        ("reasoning", None),
        ("text", None),
        ("tool_call", "run_shell_command"),
        ("tool_result", None),
        ("tool_call", "browse"),
        ("tool_result", None),
        ("text", None),
        ("text", None),
        ("error", None),
        ("text", None),
        ("error", None),
    ]
    assert [events[0][1], events[1][1], events[2][1]] == [
        "Let me think.", "I look.", '{"command": "echo hi; exit 3"}',
    ]  # fmt: skip
    assert "Exit Code: 3" in events[3][1]
    assert events[5][1].startswith(browse)
    assert events[8] == ("error", "[API Error: 410 gone]", None, True)
    assert events[10] == ("error", "[API Error: Model stream ended with empty response text.]", None, False)


def test_qwen_code_writes_no_token_and_merges_the_users_settings() -> None:
    mine = settings(tools=("glob", "skill"), max_tokens=9, settings={"model": {"reasoningEffort": "low"}})
    (model,) = mine["modelProviders"]["openai"]
    assert (model["id"], model["envKey"]) == ("org/Model-8B:high", TOKEN)
    assert model["generationConfig"]["samplingParams"] == {"max_tokens": 9}
    assert mine["permissions"] == {"allow": ["glob", "skill"]}
    assert {*mine["tools"]["disabled"]} == {*TOOLS, *OTHER_TOOLS} - {"glob", "skill"}
    assert mine["model"] == {"reasoningEffort": "low"}
    assert trials.TOKEN not in json.dumps(mine)


def test_qwen_code_speaks_the_agent_client_protocol_where_asked() -> None:
    assert QwenCode(acp=True).command(context())[-1] == "--acp"
    assert QwenCode().command(context())[-4:] == [
        "--model", "org/Model-8B:high", "--output-format", "stream-json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "error", "failure"),
    [
        (0, None, None),
        (1, AgentEvent(kind="error", text=LOOPED), None),
        (1, AgentEvent(kind="error", text="410 gone", fatal=True), "Qwen Code ended with an error: 410 gone"),
        (1, None, "Qwen Code exited with code 1: no such model"),
    ],
)
def test_qwen_code_failure_is_read_from_its_last_error(
    code: int, error: AgentEvent | None, failure: str | None
) -> None:
    assert QwenCode().failure(AgentExit(code, error, "no such model")) == failure


@pytest.mark.slow
@pytest.mark.anyio
async def test_qwen_code_that_is_stopped_in_a_loop_is_graded() -> None:
    trial = await trial_of(QwenCode(), ScriptedModel(*[Run("true")] * 9))
    assert (trial.failure, trial.exit_code, len(trial.turns)) == (None, 1, 5)
    assert LOOPED[:30] in trial.texts("error")[-1]


@pytest.mark.slow
@pytest.mark.anyio
async def test_qwen_code_loses_no_output() -> None:
    """It does with its default settings."""
    model = ScriptedModel(*(Run(f"expr 1000 + {number}") for number in range(40)))
    trial = await trial_of(QwenCode(), model)
    assert trial.failure is None
    assert trial.texts("tool_result") == [f"{1000 + number}" for number in range(40)]
