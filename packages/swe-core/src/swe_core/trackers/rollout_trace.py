"""A finished rollout for a tracker: its numbers, its conversation, and where its time went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from swe_core.api.agent import AgentEvent
from swe_core.api.records import Phases, Rollout, Turn, requests_of

AGENT_PHASE = "agent"


def numbers(rollout: Rollout) -> dict[str, float]:
    """Return the numbers of one rollout, named like those of a training; without a verdict, no reward."""
    found: dict[str, float] = {
        "rollout/seconds": rollout.seconds,
        "rollout/turns": rollout.turns,
        "rollout/prompt_tokens": rollout.usage.prompt_tokens,
        "rollout/completion_tokens": rollout.usage.completion_tokens,
    }
    if rollout.reward is not None:
        found["rollout/reward"] = rollout.reward
        found["rollout/resolved"] = rollout.outcome == "resolved"
    return found


def about(rollout: Rollout) -> dict[str, Any]:
    """Return the facts that name a rollout and its result. trackio shows `status` and `duration_ms`."""
    facts = {
        "rollout": rollout.id,
        "task": rollout.task_id,
        "attempt": rollout.attempt,
        "status": rollout.outcome,
        "reward": rollout.reward,
        "unshaped_reward": None if rollout.unshaped_reward == rollout.reward else rollout.unshaped_reward,
        "error": rollout.failure and f"{rollout.failure.boundary}: {rollout.failure.message}",
        "reason": rollout.grade and rollout.grade.reason,
        "ended_by": rollout.ended_by,
        "agent": rollout.agent,
        "model": without_folder(rollout.model),
        "duration_ms": round(rollout.seconds * 1000, 3),
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def without_folder(name: str) -> str:
    """Return the last part of a model or task source that is a path of this machine, others as they are."""
    return Path(name).name if name.startswith(("/", ".", "~")) else name


def conversation(turns: Sequence[Turn], events: Sequence[AgentEvent] = ()) -> list[dict[str, Any]]:
    """Return the messages of the last answered call with its reply; without one, what the agent reported.

    Raises:
        UsageError: A turn extends one that is missing.
    """
    for turn, body in reversed(list(zip(turns, requests_of(turns), strict=True))):
        if turn.reply is not None and turn.auxiliary is None:
            return [*body["messages"], turn.reply]
    return [_message(event) for event in events]


def spans(rollout: Rollout, turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the phases of a rollout, and its LLM calls below the phase of the agent."""
    return [*_phases(rollout), *map(_call, turns)]


def _phases(rollout: Rollout) -> Iterator[dict[str, Any]]:
    # The phases of the last try follow each other, and the last one ends with the rollout.
    lasted = {name: getattr(rollout.phases, name) for name in Phases.model_fields}
    measured = {name: seconds for name, seconds in lasted.items() if seconds is not None}
    begin = rollout.started_at + timedelta(seconds=rollout.seconds - sum(measured.values()))
    for name, seconds in measured.items():
        span = {"id": name, "name": name, "kind": "span", **_time(begin, seconds)}
        if rollout.failure is not None and name == list(measured)[-1]:
            span |= {"status": "error", "error": rollout.failure.message}
        yield span
        begin += timedelta(seconds=seconds)


def _call(turn: Turn) -> dict[str, Any]:
    more = {"finish_reason": turn.finish_reason, "auxiliary": turn.auxiliary}
    return {
        "id": f"turn-{turn.index}",
        "parent_id": AGENT_PHASE,
        "name": f"turn {turn.index}",
        "kind": "generation",
        **_time(turn.started_at, turn.seconds),
        "usage": turn.usage.model_dump(),
        "metadata": {name: value for name, value in more.items() if value is not None},
        **({} if turn.error is None else {"status": "error", "error": turn.error}),
    }


def _time(begin: datetime, seconds: float) -> dict[str, Any]:
    end = begin + timedelta(seconds=seconds)
    return {
        "start_time": begin.isoformat(),
        "end_time": end.isoformat(),
        "duration_ms": round(seconds * 1000, 3),
    }


def _message(event: AgentEvent) -> dict[str, Any]:
    if event.kind == "tool_call":
        call = {"type": "function", "function": {"name": event.tool or "tool", "arguments": event.text}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    roles = {"text": "assistant", "reasoning": "assistant", "tool_result": "tool"}
    return {"role": roles.get(event.kind, "system"), "content": event.text}
