"""What a tracker gets of a rollout: numbers, facts, messages and spans."""

from __future__ import annotations

from datetime import timedelta

from swe_core.api.agent import AgentEvent
from swe_core.api.engine import Usage
from swe_core.api.records import Phases, Turn
from swe_core.trackers.rollout_trace import about, conversation, numbers, spans, without_folder

from ..hub.runs import START, error, rollout

ASKED = {"role": "user", "content": "Fix it."}
ANSWER = {"role": "assistant", "content": "Done."}


def turn(index: int, **fields: object) -> Turn:
    values = {"kept": 0, "messages": [ASKED], "params": {}, "reply": ANSWER, **fields}
    return Turn.model_validate({"index": index, "started_at": START, "seconds": 2.0, **values})


def test_rollout_without_verdict_has_no_reward() -> None:
    assert numbers(rollout("t-0")) == {
        "rollout/seconds": 2.5,
        "rollout/turns": 0,
        "rollout/prompt_tokens": 7,
        "rollout/completion_tokens": 3,
        "rollout/reward": 1.0,
        "rollout/resolved": 1.0,
    }
    assert "rollout/reward" not in numbers(error("t-0", "it died"))


def test_error_is_among_the_facts() -> None:
    facts = about(error("t-3", "it died"))
    assert (facts["rollout"], facts["attempt"], facts["status"]) == ("t-3", 3, "error")
    assert facts["error"] == "sandbox: it died"
    assert "reward" not in facts


def test_model_of_this_machine_is_named_without_its_folder() -> None:
    assert without_folder("/home/me/models/tiny") == "tiny"
    assert without_folder("owner/model") == "owner/model"
    assert about(rollout("t-0", model="/home/me/tiny"))["model"] == "tiny"


def test_conversation_is_that_of_the_last_answered_call() -> None:
    first = turn(0)
    title = turn(1, after=None, messages=[{"role": "user", "content": "A title?"}], auxiliary="title")
    failed = turn(2, kept=0, reply=None, error="the engine is away")
    assert conversation([first, title, failed]) == [ASKED, ANSWER]


def test_conversation_without_calls_is_what_the_agent_reported() -> None:
    events = [
        AgentEvent(kind="text", text="I look."),
        AgentEvent(kind="tool_call", text='{"command": "ls"}', tool="bash"),
        AgentEvent(kind="tool_result", text="a.py"),
        AgentEvent(kind="error", text="out of money"),
    ]
    said, called, result, problem = conversation([], events)
    assert said == {"role": "assistant", "content": "I look."}
    assert called["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert result == {"role": "tool", "content": "a.py"}
    assert problem["role"] == "system"
    assert conversation([]) == []


def test_spans_are_the_phases_with_the_calls_below_the_agent() -> None:
    record = rollout("t-0", phases=Phases(open=0.5, prepare=0.5, agent=1.5))
    opened, prepared, agent, call = spans(record, [turn(0, usage=Usage(prompt_tokens=7))])
    assert [span["name"] for span in (opened, prepared, agent)] == ["open", "prepare", "agent"]
    assert opened["start_time"] == START.isoformat()
    assert agent["end_time"] == (START + timedelta(seconds=2.5)).isoformat()
    assert (call["parent_id"], call["kind"], call["duration_ms"]) == (agent["id"], "generation", 2000)
    assert call["usage"] == {"prompt_tokens": 7, "completion_tokens": 0}


def test_failure_is_in_the_phase_that_it_ended() -> None:
    record = error("t-0", "it died").model_copy(update={"phases": Phases(open=1.0, prepare=1.0)})
    opened, prepared, call = spans(record, [turn(0, reply=None, error="refused")])
    assert "status" not in opened
    assert (prepared["status"], prepared["error"]) == ("error", "it died")
    assert (call["status"], call["error"]) == ("error", "refused")
