"""Trajectories of the Agent Trajectory Interchange Format, version 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swe_core.api.messages import Message, dumps, text_of
from swe_core.drift.recorded import RecordedTurn

_SOURCES = ("user", "system", "agent")


def turns_of_atif(trajectory: Mapping[str, Any]) -> Iterator[list[RecordedTurn]]:
    """Yield the turns of a trajectory, and those of its sub-agents.

    Steps that were copied from another trajectory, and those that no model made, are context only.

    Raises:
        KeyError: A step lacks a field of the format.
        ValueError: A message has content other than text.
    """
    tools = (trajectory.get("agent") or {}).get("tool_definitions") or None
    messages: list[Message] = []
    turns: list[RecordedTurn] = []
    for step in trajectory["steps"]:
        text = text_of(step.get("message"))
        if step["source"] not in _SOURCES:
            raise ValueError(f"a step is from {step['source']!r}")
        if step["source"] != "agent":
            messages.append({"role": step["source"], "content": text})
            continue
        reply = _reply(step, text)
        if step.get("llm_call_count") != 0 and not step.get("is_copied_context"):
            sampled = (step.get("metrics") or {}).get("completion_token_ids")
            turns.append(RecordedTurn(list(messages), tools, reply, sampled))
        messages += [reply, *_results(step)]
    yield turns
    for other in trajectory.get("subagent_trajectories") or ():
        yield from turns_of_atif(other)


def _reply(step: Mapping[str, Any], text: str) -> Message:
    reply: Message = {"role": "assistant", "content": text}
    if step.get("reasoning_content"):
        reply["reasoning_content"] = step["reasoning_content"]
    calls: Sequence[Mapping[str, Any]] = step.get("tool_calls") or ()
    if calls:
        reply["tool_calls"] = [
            {
                "id": call["tool_call_id"],
                "type": "function",
                "function": {"name": call["function_name"], "arguments": dumps(call["arguments"])},
            }
            for call in calls
        ]
    return reply


def _results(step: Mapping[str, Any]) -> Iterator[Message]:
    """Yield what the agent saw after a step: results of its calls, else text like a user's."""
    for result in (step.get("observation") or {}).get("results") or ():
        text, answered = text_of(result.get("content")), result.get("source_call_id")
        if answered is None:
            yield {"role": "user", "content": text}
        else:
            yield {"role": "tool", "content": text, "tool_call_id": answered}
