"""The answers of a provider, parsed strictly: completions, streams, and errors as one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from swe_core.api.deltas import Joiner
from swe_core.api.engine import Completion, Delta, Emit, Usage
from swe_core.builtin.http_engine import ErrorTranslator, Transient, is_html
from swe_core.errors import EngineProtocolError, EngineUnavailable


class _Usage(BaseModel):
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)

    def known(self) -> Usage:
        return Usage(prompt_tokens=self.prompt_tokens or 0, completion_tokens=self.completion_tokens or 0)


class _Message(BaseModel):
    content: str | list[Any] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(BaseModel):
    message: dict[str, Any]
    finish_reason: str | None = None


class _Reply(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None
    model: str | None = None


class _Piece(BaseModel):
    index: int = 0
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Chunk(BaseModel):
    choices: list[_Piece] = Field(default_factory=list)
    usage: _Usage | None = None
    model: str | None = None


class _Models(BaseModel):
    class Model(BaseModel):
        id: str

    data: list[Model]


def parse_reply(
    content: bytes, headers: Mapping[str, str], url: str, refusals: ErrorTranslator
) -> Completion:
    """Return the completion in the `content` of a response with status 200.

    Raises:
        EngineProtocolError: The content is something else.
        Transient | EngineError: The content is an error, which some providers send with status 200.
    """
    body = _json(content, headers, url)
    if isinstance(body, dict) and body.get("error"):
        raise refusals.in_reply(body)
    try:
        reply = _Reply.model_validate(body)
        choice = reply.choices[0]
        _Message.model_validate(choice.message)
    except ValidationError as error:
        raise EngineProtocolError(
            f"the provider at {url!r} answered no chat completion ({_first(error)}): check that the URL is "
            "that of an OpenAI-compatible API"
        ) from None
    message = {key: value for key, value in choice.message.items() if value is not None}
    message = {"role": "assistant", "content": None, **message}
    return _completion(message, choice.finish_reason, reply.usage, reply.model)


def parse_models(content: bytes, headers: Mapping[str, str], url: str) -> list[str]:
    """Return the model names of a `GET /models` reply; empty where its shape is not OpenAI's.

    Raises:
        EngineProtocolError: It is not JSON.
    """
    try:
        return [model.id for model in _Models.model_validate(_json(content, headers, url)).data]
    except ValidationError:
        return []


class StreamedReply:
    """One streamed reply: forwards its pieces as they arrive, and collects them.

    Attributes:
        emitted: Whether a piece was forwarded; from then on the call cannot be repeated.
    """

    def __init__(self, url: str, emit: Emit | None, refusals: ErrorTranslator) -> None:
        self.emitted = False
        self._url = url
        self._emit = emit
        self._refusals = refusals
        self._joiner = Joiner()
        self._finish: str | None = None
        self._usage: _Usage | None = None
        self._model: str | None = None
        self._done = False

    async def add(self, data: bytes) -> bool:
        """Add the data of one event. Returns whether it was the last.

        Raises:
            EngineProtocolError: It is no chunk of a chat completion.
            Transient | EngineError: It is an error of the provider.
        """
        if data.strip() == b"[DONE]":
            self._done = True
            return True
        try:
            body = orjson.loads(data)
            if isinstance(body, dict) and body.get("error"):
                raise self._broken(self._refusals.in_reply(body))
            chunk = _Chunk.model_validate(body)
            for piece in chunk.choices:
                if piece.index == 0:
                    await self._take(piece)
        except orjson.JSONDecodeError:
            raise self._no_chunk("invalid JSON") from None
        except ValidationError as error:
            raise self._no_chunk(_first(error)) from None
        self._usage = chunk.usage or self._usage
        self._model = chunk.model or self._model
        return False

    def completion(self) -> Completion:
        """Return the whole reply, after the last event.

        Raises:
            Transient | EngineUnavailable: The stream ended before the reply did.
        """
        if not self._done and self._finish is None:
            raise self._broken(Transient(f"the stream of the provider at {self._url!r} ended early"))
        return _completion(self._joiner.message(), self._finish, self._usage, self._model)

    async def _take(self, piece: _Piece) -> None:
        self._finish = piece.finish_reason or self._finish
        delta = {key: value for key, value in (piece.delta or {}).items() if value is not None}
        try:
            self._joiner.add(delta)
        except ValueError as error:
            raise self._no_chunk(str(error)) from None
        if self._emit is not None and _says_something(delta):
            self.emitted = True
            await self._emit(delta)

    def _no_chunk(self, why: str) -> EngineProtocolError:
        return EngineProtocolError(f"the provider at {self._url!r} streamed no chat completion ({why})")

    def _broken(self, error: Exception) -> Exception:
        if self.emitted and isinstance(error, Transient):
            return EngineUnavailable(f"{error}, in the middle of a reply")
        return error


def _json(content: bytes, headers: Mapping[str, str], url: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        what = "an HTML page" if is_html(headers, content) else "something that is not JSON"
        raise EngineProtocolError(
            f"the provider at {url!r} answered {what}: check that the URL is the API's base, most often "
            "ending in /v1"
        ) from None


def _completion(
    message: dict[str, Any], finish: str | None, usage: _Usage | None, model: str | None
) -> Completion:
    if finish is None:  # some providers leave it out, and agents cannot do without
        finish = "tool_calls" if message.get("tool_calls") else "stop"
    return Completion(
        message=message,
        finish_reason=finish,
        usage=usage.known() if usage else Usage(),
        model=model or "",
    )


def _says_something(delta: Delta) -> bool:
    return any(value for key, value in delta.items() if key != "role")


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'body'}: {first['msg']}"
