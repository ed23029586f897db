"""Recordings: an engine's replies, one line per rollout, from which a later run is answered.

`RecordingEngine` writes a recording with any engine; the engine `replay` reads it with `read_recording`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from swe_core.api.contracts import complete
from swe_core.api.engine import (
    ChatRequest,
    Completion,
    Emit,
    Engine,
    EngineSession,
    TokenTable,
    Usage,
)
from swe_core.errors import ConfigError, EngineError
from swe_core.system.redaction import Redactor


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RecordedReply(_Line):
    """One reply: an OpenAI assistant message, its finish reason, and its tokens."""

    message: dict[str, Any]
    finish_reason: str = "stop"
    usage: Usage | None = None

    @field_validator("message")
    @classmethod
    def _from_the_assistant(cls, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("role") != "assistant":
            raise ValueError(f"a reply's role is 'assistant', not {message.get('role')!r}")
        return message


class RecordedRollout(_Line):
    """One line of a recording: the replies to a rollout's calls, in the order of the calls.

    `attempt` and `agent` restrict the line to some rollouts; null matches any.
    """

    task_id: str
    attempt: int | None = Field(default=None, ge=0)
    agent: str | None = None
    note: str | None = None
    replies: list[RecordedReply]


def read_recording(file: Path) -> list[RecordedRollout]:
    """Return all lines of a recording.

    Raises:
        ConfigError: `file` cannot be read, or a line is not a `RecordedRollout`; the sentence names it.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"the recording {str(file)!r} cannot be read ({error.strerror}): name an existing .jsonl file"
        ) from None
    return [_parse(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _parse(file: Path, number: int, line: bytes) -> RecordedRollout:
    try:
        return RecordedRollout.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"line {number} of the recording {str(file)!r} is not a recorded rollout: "
            f"{where + ': ' if where else ''}{first['msg']}"
        ) from None


class RecordingEngine(Engine):
    """An engine that passes each call to `inner` and appends a session's replies to `file` at its end.

    A line is written by one `write` and synced; a session without a reply writes none. Replies stand in the
    order in which the calls began, the order in which `replay` returns them.
    """

    def __init__(self, inner: Engine, file: Path, redactor: Redactor) -> None:
        self.model = inner.model
        self.limits_context = inner.limits_context
        self.sampling = inner.sampling
        self._inner = inner
        self._file = file.expanduser()
        self._redactor = redactor
        self._sessions: dict[str, list[RecordedReply | None]] = {}
        self._writing = anyio.Lock()

    async def __aenter__(self) -> RecordingEngine:
        try:
            self._file.open("ab").close()
        except OSError as error:
            raise ConfigError(
                f"the recording {str(self._file)!r} cannot be written ({error.strerror}): "
                "name a file in a writable directory"
            ) from None
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._inner.__aexit__(*exc)

    @property
    def context(self) -> int | None:
        return self._inner.context

    @property
    def unfit(self) -> str | None:  # type: ignore[override]  # read only
        return self._inner.unfit

    @property
    def without_calls(self) -> str | None:  # type: ignore[override]  # read only
        return self._inner.without_calls

    async def check(self) -> None:
        await self._inner.check()

    def vocabulary(self) -> TokenTable | None:
        return self._inner.vocabulary()

    def notes(self) -> Sequence[str]:
        return self._inner.notes()

    def set_policy_version(self, version: int) -> None:
        self._inner.set_policy_version(version)

    def take_out(self, url: str) -> Collection[str]:
        return self._inner.take_out(url)

    def put_in(self, url: str) -> None:
        self._inner.put_in(url)

    async def count_tokens(self, request: ChatRequest, session: EngineSession) -> int | None:
        return await self._inner.count_tokens(request, session)

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        replies = self._sessions.setdefault(session.rollout_id, [])
        place = len(replies)
        replies.append(None)  # reserves the place of this call; a failed call leaves it empty
        completion = await complete(self._inner, request, session, emit)
        replies[place] = RecordedReply(
            message=completion.message, finish_reason=completion.finish_reason, usage=completion.usage
        )
        return completion

    async def end(self, session: EngineSession) -> None:
        replies = [reply for reply in self._sessions.pop(session.rollout_id, ()) if reply is not None]
        await self._inner.end(session)
        if not replies:
            return
        rollout = RecordedRollout(
            task_id=session.task_id, attempt=session.attempt, agent=session.agent, replies=replies
        )
        line = orjson.dumps(
            self._redactor.value(rollout.model_dump(mode="json")), option=orjson.OPT_APPEND_NEWLINE
        )
        async with self._writing:
            try:
                await anyio.to_thread.run_sync(_append, self._file, line)
            except OSError as error:
                raise EngineError(
                    f"the recording {str(self._file)!r} could not be written: {error.strerror}"
                ) from None


def _append(file: Path, line: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        written = os.write(descriptor, line)
        if written != len(line):  # a full disk: remove the partial line, which would make the file invalid
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(28, f"only {written} of {len(line)} bytes could be written")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
