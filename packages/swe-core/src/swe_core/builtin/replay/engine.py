"""ReplayEngine: the k-th call of a rollout gets the k-th reply that was recorded for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from swe_core.api.deltas import cut
from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Usage
from swe_core.builtin.replay import ReplayConfig
from swe_core.errors import ConfigError, EngineRefused
from swe_core.rollout.recording import RecordedReply, RecordedRollout, read_recording

_PIECE = 24
"""Characters of a streamed piece, about what models send."""


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
        reply = self._next(session)
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
