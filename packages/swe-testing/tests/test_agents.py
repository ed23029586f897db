"""Trials of agents, tried on the agent `mini`."""

from __future__ import annotations

import pytest

from swe_core.api.limits import Budgets
from swe_core.api.sandbox import Sandbox
from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.builtin.mini import MiniConfig
from swe_core.builtin.mini.spec import Mini
from swe_core.errors import AgentError, RequestRefused
from swe_testing.agents import Run, ScriptedModel, run_once

OBSTACLE = why_not(find_bwrap())
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))]


async def test_trial_runs_the_agent_with_the_script() -> None:
    made: list[bytes] = []

    async def after(sandbox: Sandbox) -> None:
        made.append(await sandbox.read("/testbed/made.txt"))

    model = ScriptedModel(Run("cat data.txt > made.txt", "I copy it."), "Copied.")
    trial = await run_once(Mini(MiniConfig()), model, files={"data.txt": b"data\n"}, after=after)
    assert (trial.failure, trial.exit_code, made) == (None, 0, [b"data\n"])
    assert [turn.dialect for turn in trial.turns] == ["chat", "chat"]
    assert "I copy it." in trial.texts("text")
    assert "made.txt" in "".join(trial.texts("tool_call"))


async def test_trial_says_why_the_agent_failed() -> None:
    trial = await run_once(Mini(MiniConfig()), ScriptedModel(RequestRefused("the test refuses")))
    assert isinstance(trial.failure, AgentError)
    assert "the test refuses" in str(trial.failure)
    assert trial.exit_code != 0


async def test_trial_names_the_budget_that_ended_the_agent() -> None:
    script = [Run("true")] * 3
    trial = await run_once(Mini(MiniConfig()), ScriptedModel(*script), budget=Budgets(turns=1))
    assert (trial.failure, trial.ended_by, trial.exit_code, len(trial.turns)) == (None, "turns", 0, 1)
