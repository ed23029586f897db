"""SweEnv, the typed client, at real servers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from swe_openenv.client import Exec, Read, RunAgent, Submit, SweEnv, Write
from swe_openenv.models import SweObservation, SweState

from .serving import Served


def test_client_gets_typed_results_and_state(served: Served) -> None:
    with SweEnv(served.url).sync() as env:
        first = env.reset(index=2, episode_id="typed")
        assert isinstance(first.observation, SweObservation)
        assert (first.done, first.observation.done, first.observation.status) == (False, False, "ready")
        last = env.step(RunAgent())
        assert (last.reward, last.done) == (last.observation.reward, last.observation.done) == (1.0, True)
        assert last.observation.outcome == "resolved"
        state = env.state()
    assert isinstance(state, SweState)
    assert (state.episode_id, state.step_count, state.status) == ("typed", 1, "finished")


def test_client_acts_in_the_sandbox(interactive: Served) -> None:
    with SweEnv(interactive.url).sync() as env:
        env.reset(index=0)
        env.step(Write(path="note.txt", content="a note\n"))
        assert env.step(Read(path="note.txt")).observation.output == "a note\n"
        listed = env.step(Exec(command="cat note.txt; exit 3", timeout_s=30)).observation
        assert (listed.output, listed.exit_code) == ("a note\n", 3)
        assert env.step(Submit()).reward == 0.0


def test_action_without_what_it_needs_is_refused() -> None:
    with pytest.raises(ValidationError, match="command"):
        Exec(command=None)
