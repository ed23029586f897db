"""mini-swe-agent: its settings, its output, and the real one."""

from __future__ import annotations

from typing import Any

import pytest

from swe_agents.mini_swe_agent import MiniSweAgent, MiniSweAgentConfig
from swe_core.api.sandbox import Sandbox
from swe_testing.agents import Run, ScriptedModel

from .python_agents import calls, extends, settings_of
from .trials import context, parsed, trial_of

DONE = Run("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


def test_mini_swe_agent_parses_its_own_output() -> None:
    events = parsed(MiniSweAgent())
    errors = [event for event in events if event[0] == "info"]
    assert [event for event in events if event not in errors] == [
        ("reasoning", "Hm.", None, False),
        ("text", "I look.", None, False),
        ("tool_call", '{"command": "echo hi; false"}', "bash", False),
        ("tool_result", '{\n  "returncode": 1,\n  "output": "hi\\n"\n}', "bash", False),
        ("tool_call", "{}", "browse", False),
        ("error", "litellm.BadRequestError: OpenAIException - the rollout is over", None, True),
    ]
    assert ["Unknown tool 'browse'" in errors[0][1], "No tool calls found" in errors[1][1]] == [True, True]


def test_mini_swe_agents_own_limits_are_off() -> None:
    told = settings_of(MiniSweAgent())["settings"]
    assert told["agent"] == {"cost_limit": 0}
    assert told["model"]["model_name"] == "openai/org/Model-8B:high"
    assert told["model"]["model_kwargs"]["timeout"] == 86_400
    assert MiniSweAgent().env(context())["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] == "1"


def test_mini_swe_agents_settings_are_merged() -> None:
    mine: dict[str, Any] = {"agent": {"system_template": "Be brief."}, "environment": {"timeout": 7}}
    agent = MiniSweAgent(MiniSweAgentConfig(retries=2, settings=mine))
    told = settings_of(agent)["settings"]
    assert told["agent"] == {"cost_limit": 0, "system_template": "Be brief."}
    assert told["environment"] == {"timeout": 7}
    assert agent.env(context())["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] == "3"


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_mini_swe_agent_solves_a_task_in_one_linear_conversation() -> None:
    made: list[bytes] = []

    async def after(sandbox: Sandbox) -> None:
        made.append(await sandbox.read("/testbed/made.txt"))

    model = ScriptedModel(
        Run("cat data.txt > made.txt", "I copy it."),
        calls("bash", '{"command": "ech'),
        *[Run(f"echo {n}") for n in range(4)],
        DONE,
    )
    trial = await trial_of(MiniSweAgent(), model, files={"data.txt": b"data\n"}, after=after)
    assert (trial.failure, trial.exit_code, made) == (None, 0, [b"data\n"])
    assert trial.events[-1].text == "ended: Submitted"
    assert len(trial.turns) == 7
    assert extends(model)


@pytest.mark.slow
@pytest.mark.anyio
async def test_commands_of_the_real_mini_swe_agent_inherit_no_endpoint() -> None:
    trial = await trial_of(MiniSweAgent(), ScriptedModel(Run("env"), DONE))
    (shown, *_) = trial.texts("tool_result")
    assert "PATH=" in shown
    assert not [name for name in ("SWE_LLM", "OPENAI", "LITELLM", "TIKTOKEN", "/rollout/") if name in shown]


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_mini_swe_agent_ends_after_three_replies_without_a_command() -> None:
    model = ScriptedModel("One.", "", "Three.", "Four.")
    trial = await trial_of(MiniSweAgent(), model)
    assert (trial.failure, trial.exit_code, len(trial.turns)) == (None, 0, 3)
    assert trial.texts("text") == ["One.", "Three."]
    assert trial.events[-1].text == "ended: RepeatedFormatError"
