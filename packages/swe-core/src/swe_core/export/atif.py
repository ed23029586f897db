"""Rollouts as trajectories of the Agent Trajectory Interchange Format (ATIF)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atif import Agent, FinalMetrics, Metrics, Observation, ObservationResult, Step, ToolCall, Trajectory

from swe_core.api.messages import Message
from swe_core.api.records import Turn
from swe_core.export.conversations import Conversation, arguments_of, conversations, told
from swe_core.export.source import ExportedRollout

VERSION = "ATIF-v1.8"
_UNKNOWN = "unknown"


def trajectory_of(rollout: ExportedRollout) -> Trajectory | None:
    """Return the trajectory of a rollout: its last conversation, and the others as those of sub-agents.

    A rollout without recorded calls, as in black-box mode, has its transcript instead. Ids and
    log-probabilities are those that were sampled; a rollout that was told a secret has none, because ids
    spell it. Those of prompts are left out: each call would repeat all before it.

    Returns:
        None where nothing was said.

    Raises:
        UsageError: A file of the rollout is damaged.
    """
    record = rollout.record
    found = conversations(rollout.turns)
    if not found and (transcript := told(rollout.events)) is not None:
        found = [transcript]
    if not found:
        return None
    *others, last = found
    main = _trajectory(rollout, last, rollout.id)
    return main.model_copy(
        update={
            "session_id": rollout.id,
            "final_metrics": FinalMetrics(
                total_prompt_tokens=record.usage.prompt_tokens,
                total_completion_tokens=record.usage.completion_tokens,
                total_steps=len(main.steps),
            ),
            "extra": {
                "run": rollout.run.name,
                "task_id": record.task_id,
                "attempt": record.attempt,
                "group": rollout.group,
                "outcome": record.outcome,
                "reward": record.reward,
                "advantage": rollout.advantage,
                "failure": record.failure and record.failure.model_dump(),
                "auxiliary_calls": sum(turn.auxiliary is not None for turn in rollout.turns),
            },
            "subagent_trajectories": [
                _trajectory(rollout, one, f"{rollout.id}/{number}") for number, one in enumerate(others, 1)
            ]
            or None,
        }
    )


def _trajectory(rollout: ExportedRollout, conversation: Conversation, name: str) -> Trajectory:
    versions = rollout.run.facts.versions
    return Trajectory(
        schema_version=VERSION,
        trajectory_id=name,
        agent=Agent(
            name=rollout.record.agent,
            version=_UNKNOWN,  # records do not name it
            model_name=rollout.record.model,
            tool_definitions=_tools(conversation),
            extra={"sandbox": rollout.record.sandbox, "engine": rollout.record.engine, "versions": versions},
        ),
        steps=list(_steps(conversation, ids=not rollout.told_secret)),
    )


def _tools(conversation: Conversation) -> list[dict[str, Any]] | None:
    return None if conversation.tools is None else [dict(tool) for tool in conversation.tools]


def _steps(conversation: Conversation, ids: bool) -> Iterator[Step]:
    """Yield the steps; what a tool returned belongs to the step before it."""
    number, place = 1, 0
    messages = conversation.messages
    while place < len(messages):
        message, end = messages[place], place + 1
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        if message["role"] == "assistant":
            turn = conversation.replies.get(place)
            yield _spoken(number, message, messages[place + 1 : end], turn, ids)
        elif message["role"] == "tool":  # without a reply before it
            for result in messages[place:end]:
                yield Step(step_id=number, source="user", message=result["content"])
                number += 1
            number -= 1
        else:
            yield Step(step_id=number, source=message["role"], message=message["content"])
            end = place + 1
        number, place = number + 1, end


def _spoken(number: int, message: Message, results: Sequence[Message], turn: Turn | None, ids: bool) -> Step:
    calls = [_call(number, index, call) for index, call in enumerate(message.get("tool_calls", ()))]
    called = {call.tool_call_id for call in calls}
    return Step(
        step_id=number,
        source="agent",
        message=message["content"],
        reasoning_content=message.get("reasoning_content"),
        tool_calls=calls or None,
        observation=Observation(results=[_result(one, called) for one in results]) if results else None,
        timestamp=None if turn is None else turn.started_at.isoformat(),
        metrics=None if turn is None else _metrics(turn, ids),
        llm_call_count=None if turn is None else 1,
        extra=None if turn is None else {"call": turn.index, "seconds": turn.seconds},
    )


def _call(number: int, index: int, call: Mapping[str, Any]) -> ToolCall:
    arguments = arguments_of(call)
    return ToolCall(
        tool_call_id=call["id"] or f"call_{number}_{index}",
        function_name=call["function"]["name"],
        arguments=arguments or {},
        extra={"arguments": call["function"]["arguments"]} if arguments is None else None,
    )


def _result(message: Message, calls: set[str]) -> ObservationResult:
    answered = message.get("tool_call_id")
    return ObservationResult(
        source_call_id=answered if answered in calls else None, content=message["content"]
    )


def _metrics(turn: Turn, ids: bool) -> Metrics:
    counted = Metrics(prompt_tokens=turn.usage.prompt_tokens, completion_tokens=turn.usage.completion_tokens)
    tokens = turn.tokens
    if tokens is None or not ids:
        return counted
    logprobs = [one for one in tokens.logprobs if one is not None]
    return counted.model_copy(
        update={
            "completion_token_ids": tokens.completion,
            "logprobs": logprobs if len(logprobs) == len(tokens.completion) else None,
            "extra": {"versions": tokens.versions, "cause": tokens.cause, "dropped": tokens.dropped},
        }
    )
