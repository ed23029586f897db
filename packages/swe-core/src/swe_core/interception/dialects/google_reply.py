"""Replies of Google's API: streams of events, streams of one array, and errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar
from uuid import uuid4

import orjson

from swe_core.api.engine import Completion, Delta, Usage
from swe_core.api.messages import text_of
from swe_core.api.object_prefix import ObjectPrefix
from swe_core.interception.dialects.base import BadRequest, Problem, Reply
from swe_core.interception.dialects.common import load

_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""U+2028, U+2029 and U+0085 → their escapes. Google's SDKs take these characters for the end of a line."""
_ARGS_DEPTH = 100
"""Levels of objects and lists in the arguments of a call, which later requests have inside others."""


class _GoogleReply(Reply):
    """A reply; a subclass says how the pieces of a stream follow each other."""

    def __init__(self, model: str, with_thoughts: bool) -> None:
        self._id = uuid4().hex
        self._model = model
        self._with_thoughts = with_thoughts
        self._begun = False

    def body(self, completion: Completion) -> bytes:
        parts = [*self._texts(completion.message), *_call_parts(completion.message)]
        return orjson.dumps(self._last(parts, completion))

    def delta(self, delta: Delta) -> bytes:
        # Calls follow at the end: this API has no pieces of arguments.
        parts = self._texts(delta)
        if not parts:
            return b""
        self._begun = True
        return self._event(self._response({"content": {"parts": parts, "role": "model"}, "index": 0}))

    def end(self, completion: Completion) -> bytes:
        parts = [] if self._begun else self._texts(completion.message)
        return self._event(self._last([*parts, *_call_parts(completion.message)], completion))

    def failed(self, problem: Problem) -> bytes:
        return self._event(error_of(problem))

    @abstractmethod
    def _event(self, data: dict[str, Any]) -> bytes:
        """Return one piece of the stream."""

    def _texts(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the parts of a message, or of a piece of one, that are text."""
        parts: list[dict[str, Any]] = []
        thought = message.get("reasoning_content") or message.get("reasoning")
        if self._with_thoughts and thought and isinstance(thought, str):
            parts.append({"text": thought, "thought": True})
        if text := text_of(message.get("content") or message.get("refusal")):
            parts.append({"text": text})
        return parts

    def _last(self, parts: list[dict[str, Any]], completion: Completion) -> dict[str, Any]:
        # The chats of the SDKs forget a turn in which one event has no part.
        candidate = {
            "content": {"parts": parts or [{"text": ""}], "role": "model"},
            "finishReason": _REASONS.get(completion.finish_reason, "STOP"),
            "index": 0,
        }
        return {**self._response(candidate, completion.model), "usageMetadata": _usage(completion.usage)}

    def _response(self, candidate: dict[str, Any], model: str = "") -> dict[str, Any]:
        return {"candidates": [candidate], "modelVersion": model or self._model, "responseId": self._id}


class EventsReply(_GoogleReply):
    """A stream of server-sent events."""

    def failed(self, problem: Problem) -> bytes:
        # No event: the JavaScript SDK finds an error in a stream only as a line of its own.
        return orjson.dumps(error_of(problem)) + b"\n\n"

    def _event(self, data: dict[str, Any]) -> bytes:
        line = orjson.dumps(data)
        for character, escape in _LINE_ENDS:
            line = line.replace(character, escape)
        return b"data: %b\n\n" % line


class ArrayReply(_GoogleReply):
    """A stream that is one JSON array, as the API sends it without `alt=sse`; and a reply in one piece."""

    content_type: ClassVar[str] = "application/json"

    def __init__(self, model: str, with_thoughts: bool) -> None:
        super().__init__(model, with_thoughts)
        self._separator = b"["

    def end(self, completion: Completion) -> bytes:
        return super().end(completion) + b"]"

    def failed(self, problem: Problem) -> bytes:
        return super().failed(problem) + b"]"

    def _event(self, data: dict[str, Any]) -> bytes:
        separator, self._separator = self._separator, b",\n"
        return separator + orjson.dumps(data)


def _call_parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the parts of a message that are calls."""
    for call in message.get("tool_calls") or ():
        function = call["function"]
        named = {"name": function["name"], "args": _args(function["arguments"])}
        yield {"functionCall": {"id": call["id"], **named} if call.get("id") else named}


def _args(text: str) -> dict[str, Any]:
    """Return sampled arguments as an object, which is all that this API can express."""
    with suppress(BadRequest):
        return load(text.encode(), _ARGS_DEPTH)
    prefix = ObjectPrefix()
    read = prefix.add(text)  # without numbers that only JavaScript reads
    with suppress(BadRequest):
        return load(read.encode(), _ARGS_DEPTH) if prefix.whole else {}
    return {}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }


def error_of(problem: Problem) -> dict[str, Any]:
    status, message = problem.status, problem.message
    if problem.overflow is not None:  # the API's own words, which clients look for
        message = (
            f"The input token count ({problem.overflow.prompt_tokens}) exceeds the maximum number of tokens "
            f"allowed ({problem.overflow.limit})."
        )
    name = _STATUSES.get(status, "FAILED_PRECONDITION" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}
