"""OpenHands: its settings, its output, and the real one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from swe_agents.openhands import OpenHands, OpenHandsConfig
from swe_core import ChatRequest
from swe_core.api.sandbox import Sandbox
from swe_testing.agents import Run, ScriptedModel

from .python_agents import calls, extends, settings_of
from .trials import context, parsed, trial_of

EDIT = '{"command": "str_replace", "path": "/testbed/a.py", "old_str": "return 1", "new_str": "return 2"}'


def test_openhands_parses_its_own_output() -> None:
    tools = ["terminal", "file_editor", "task_tracker", "finish", "think"]
    missing = f"Tool 'browse' not found. Available: {tools}"
    refused = "LLMBadRequestError: litellm.BadRequestError: OpenAIException - the rollout is over"
    assert parsed(OpenHands()) == [
        ("reasoning", "Hm.", None, False),
        ("text", "I look.", None, False),
        ("tool_call", '{"command": "echo hi; false"}', "terminal", False),
        ("tool_result", "hi\n[The command completed with exit code 1.]", "terminal", False),
        ("tool_call", "{}", "browse", False),
        ("tool_result", missing, "browse", False),
        ("error", refused, None, True),
    ]


def test_openhands_summary_is_told_apart_by_its_system_prompt() -> None:
    text = "You are maintaining a context-aware state summary for an interactive agent.\nYou will be given"
    # The role comes from a tuple, so mypy sees no literal.
    asked = [ChatRequest({}, [{"role": role, "content": text}]) for role in ("system", "user")]  # type: ignore[list-item]
    assert [OpenHands().summary(request) for request in asked] == [True, False]


def test_openhands_own_limits_are_off() -> None:
    told = settings_of(OpenHands())
    assert told["settings"]["llm"]["model"] == "openai/org/Model-8B:high"
    assert told["settings"]["llm"]["timeout"] == 86_400
    assert told["settings"]["llm"]["num_retries"] == 0
    assert told["settings"]["condense_after"] is None
    assert "LOG_LEVEL" in told["variables"]
    assert "LOG_LEVEL" not in OpenHands().env(context())


def test_openhands_settings_are_merged() -> None:
    agent = OpenHands(OpenHandsConfig(retries=2, llm={"model_canonical_name": "kimi-k2.6"}))
    llm = settings_of(agent)["settings"]["llm"]
    assert (llm["num_retries"], llm["model_canonical_name"], llm["reasoning_effort"]) == (
        2,
        "kimi-k2.6",
        None,
    )


@pytest.mark.parametrize("wrong", [{"condense_after": 1}, {"retries": -1}, {"unknown": 1}])
def test_openhands_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        OpenHandsConfig.model_validate(wrong)


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_openhands_solves_a_task_in_one_linear_conversation() -> None:
    made: list[bytes] = []

    async def after(sandbox: Sandbox) -> None:
        made.append(await sandbox.read("/testbed/a.py"))

    model = ScriptedModel(
        Run("cat a.py", "I look."),
        calls("file_editor", EDIT),
        calls("terminal", '{"command": ech'),
        *[Run(f"echo {n}") for n in range(3)],
        calls("finish", '{"message": "I fixed it."}'),
    )
    trial = await trial_of(OpenHands(), model, files={"a.py": b"def f():\n    return 1\n"}, after=after)
    assert (trial.failure, trial.exit_code, made) == (None, 0, [b"def f():\n    return 2\n"])
    assert trial.events[-1].text == "ended: finished"
    assert len(trial.turns) == 7
    assert extends(model)


@pytest.mark.slow
@pytest.mark.anyio
async def test_commands_of_the_real_openhands_inherit_no_endpoint_and_show_no_control_sequences() -> None:
    trial = await trial_of(OpenHands(), ScriptedModel(Run("env"), "Done."))
    (shown,) = trial.texts("tool_result")
    assert "PATH=" in shown
    assert "\x1b" not in shown
    secret = ("SWE_LLM", "OPENAI", "LITELLM", "TIKTOKEN", "LOG_LEVEL", "/rollout/")
    assert not [name for name in secret if name in shown]


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_openhands_is_stuck_after_three_empty_replies() -> None:
    model = ScriptedModel(*[""] * 9)
    trial = await trial_of(OpenHands(), model)
    assert (trial.failure, trial.exit_code, len(trial.turns)) == (None, 0, 3)
    assert trial.events[-1].text == "ended: stuck"


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_openhands_goes_on_after_empty_replies_if_asked_to() -> None:
    model = ScriptedModel(*[""] * 6, "Done.")
    trial = await trial_of(OpenHands(OpenHandsConfig(stuck_detection=False)), model)
    assert (trial.failure, len(trial.turns)) == (None, 7)
    assert trial.events[-1].text == "ended: finished"


@pytest.mark.slow
@pytest.mark.anyio
async def test_real_openhands_summarises_its_history_if_asked_to() -> None:
    model = ScriptedModel(*[Run(f"echo {n}") for n in range(5)], "A summary.", "Done.")
    trial = await trial_of(OpenHands(OpenHandsConfig(condense_after=10)), model)
    assert trial.failure is None
    assert "the history was summarised: A summary." in trial.texts("info")
    assert not extends(model)
