"""ReplayEngine: the k-th call of a rollout gets the k-th reply that was recorded for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from swe_core.api.deltas import cut
from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Usage
from swe_core.api.shell_call import shell_call
from swe_core.builtin.replay import ReplayConfig
from swe_core.errors import ConfigError, EngineRefused
from swe_core.rollout.recording import RecordedReply, RecordedRollout, read_recording

_PIECE = 24
"""Characters of a streamed piece, about what models send."""
_SHELL = "bash"
"""The tool of recordings that is called by the agent's own name for it."""


class ReplayEngine(Engine):
    """Answers from `config.file`.

    Raises:
        ConfigError: There is no file, or it is not a recording.
    """

    model = "replay"

    def __init__(self, config: ReplayConfig) -> None:
        if config.file is None:
            raise ConfigError("the engine 'replay' needs a recording to answer from: pass --recording FILE")
        self._file = config.file.expanduser()
        self._rollouts = read_recording(self._file)
        self._sessions: dict[str, Iterator[RecordedReply]] = {}

    def notes(self) -> Sequence[str]:
        own = dict.fromkeys(line.note for line in self._rollouts if line.note)
        return (f"The model's replies are a recording ({self._file.name}): no model was called.", *own)

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        if request.auxiliary is not None:
            return Completion({"role": "assistant", "content": request.auxiliary}, model=self.model)
        reply = _for_tools(self._next(session), request.tools)
        if emit is not None:
            for delta in cut(reply.message, _PIECE):
                await emit(delta)
        return Completion(
            message=reply.message,
            finish_reason=reply.finish_reason,
            usage=reply.usage or Usage(),
            model=self.model,
        )

    async def end(self, session: EngineSession) -> None:
        self._sessions.pop(session.rollout_id, None)

    def _next(self, session: EngineSession) -> RecordedReply:
        replies = self._sessions.get(session.rollout_id)
        if replies is None:
            replies = self._sessions[session.rollout_id] = iter(self._line(session).replies)
        reply = next(replies, None)
        if reply is None:
            raise EngineRefused(
                f"the recording {str(self._file)!r} has no more replies for the task {session.task_id!r}: "
                "the agent made more calls than were recorded; record the task anew with --record"
            )
        return reply

    def _line(self, session: EngineSession) -> RecordedRollout:
        """Return the line that matches this rollout most exactly; of several, the last."""
        fitting = [
            line
            for line in self._rollouts
            if line.task_id == session.task_id
            and line.attempt in (None, session.attempt)
            and line.agent in (None, session.agent)
        ]
        if not fitting:
            raise EngineRefused(
                f"the recording {str(self._file)!r} has no replies for the task {session.task_id!r} "
                f"(attempt {session.attempt}, agent {session.agent!r}): choose the tasks that it holds, or "
                "record this one with --record"
            )
        return max(reversed(fitting), key=lambda line: (line.agent is not None, line.attempt is not None))


def _for_tools(reply: RecordedReply, tools: Sequence[Mapping[str, Any]] | None) -> RecordedReply:
    """Return `reply` with calls of `bash` as calls of the agent's own shell tool, where its name differs."""
    calls = reply.message.get("tool_calls") or ()
    names = {tool["function"]["name"] for tool in tools or () if isinstance(tool.get("function"), Mapping)}
    if _SHELL in names or not any(call["function"]["name"] == _SHELL for call in calls):
        return reply
    own = [_own(call, tools) if call["function"]["name"] == _SHELL else call for call in calls]
    return reply.model_copy(update={"message": {**reply.message, "tool_calls": own}})


def _own(call: dict[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    command = orjson.loads(call["function"]["arguments"])["command"]
    found = shell_call(tools, command)
    if found is None:
        return call
    return {**call, "function": {"name": found[0], "arguments": found[1]}}
