"""Conversations for supervised fine-tuning, as TRL's SFTTrainer and others take them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from swe_core.api.messages import Message
from swe_core.export.conversations import Conversation, arguments_of, conversations
from swe_core.export.source import ExportedRollout, ExportedRun
from swe_core.export.writer import HELD_OUT, Reason, Writer

FILE = "train.jsonl"
NO_CALLS = Reason("rollout", "without a recorded call to a model")
UNUSABLE = Reason(
    "conversation", "without a whole reply, or with a tool call whose arguments are no JSON object"
)


class SftWriter(Writer):
    """Writes one line per conversation. Chat templates want the arguments of calls as objects."""

    def __init__(self, folder: Path, runs: Sequence[ExportedRun]) -> None:
        super().__init__(folder, runs)
        self._file = (folder / FILE).open("wb")

    def add(self, rollout: ExportedRollout) -> int:
        if rollout.record.evaluation is not None:
            self.left_out[HELD_OUT] += 1
            return 0
        found = conversations(rollout.turns)
        self.left_out[NO_CALLS] += not found
        rows = [row for one in found if (row := _row(rollout, one)) is not None]
        self.left_out[UNUSABLE] += len(found) - len(rows)
        lines = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows]
        self._file.writelines(lines)
        return len(rows)

    def close(self) -> None:
        self._file.close()

    def abort(self) -> None:
        self._file.close()


def _row(rollout: ExportedRollout, conversation: Conversation) -> dict[str, Any] | None:
    messages = [_message(one) for one in _uncut(conversation)]
    if None in messages or not messages:
        return None
    tools = conversation.tools
    return {
        "messages": messages,
        "tools": None if tools is None else list(tools),
        "run": rollout.run.name,
        "rollout_id": rollout.id,
        "task_id": rollout.record.task_id,
        "outcome": rollout.record.outcome,
    }


def _uncut(conversation: Conversation) -> Sequence[Message]:
    """Return the messages up to the last reply that was not cut at a limit: it would teach to stop there."""
    messages = conversation.messages
    last = conversation.replies.get(len(messages) - 1)
    if last is None or last.finish_reason != "length":
        return messages
    spoken = [place for place, one in enumerate(messages[:-1]) if one["role"] == "assistant"]
    return messages[: spoken[-1] + 1] if spoken else ()


def _message(message: Message) -> Message | None:
    """Return a message with the arguments of its calls as objects; None where that cannot be."""
    calls = []
    for call in message.get("tool_calls", ()):
        arguments = arguments_of(call)
        if arguments is None:
            return None
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls} if calls else message
