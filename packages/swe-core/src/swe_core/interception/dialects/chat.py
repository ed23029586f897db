"""The dialect of OpenAI's chat completions: requests in, replies, event streams and errors out."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import uuid4

import orjson

from swe_core.deltas import whole
from swe_core.engine import Completion, Delta, Usage

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


class BadRequest(ValueError):
    """The body is not a chat-completions request; the sentence says why."""


def parse(raw: bytes) -> dict[str, Any]:
    """The body of a request, validated as far as this program relies on it.

    Raises:
        BadRequest: It is not JSON, or not a chat-completions request for one choice.
    """
    body = _load(raw)
    if not isinstance(body, dict):
        raise BadRequest(f"the request body is {_kind(body)}; send a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"'messages' is {_kind(messages)}; send a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"messages[{index}] is {_kind(message)}; send an object with a 'role'")
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{index}].role is {_kind(message.get('role'))}; send a string")
    if not isinstance(body.get("stream", False), bool | None):
        raise BadRequest(f"'stream' is {_kind(body['stream'])}; send true or false")
    if not isinstance(body.get("stream_options"), dict | None):
        raise BadRequest(f"'stream_options' is {_kind(body['stream_options'])}; send an object")
    if body.get("n") not in (None, 1):
        raise BadRequest(f"'n' is {body['n']!r}; this endpoint gives one choice a request")
    return body


def error_body(message: str, kind: str, code: str | None = None) -> dict[str, Any]:
    """An error in the shape that OpenAI's SDKs show."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def models_body(model: str) -> dict[str, Any]:
    """The reply of `GET /models`: the one model there is."""
    return {
        "object": "list",
        "data": [{"id": model, "object": "model", "created": 0, "owned_by": "swe-core"}],
    }


class Reply:
    """The reply to one request, whole or as a stream of events."""

    def __init__(self, body: dict[str, Any], model: str) -> None:
        self._id = f"chatcmpl-{uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._begun = False

    def body(self, completion: Completion) -> dict[str, Any]:
        """The whole reply of a request that asked for no stream."""
        choice = {
            "index": 0,
            "message": completion.message,
            "logprobs": None,
            "finish_reason": completion.finish_reason,
        }
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": completion.model or self._model,
            "choices": [choice],
            "usage": _usage(completion.usage),
        }

    def delta(self, delta: Delta) -> bytes:
        """The event of one piece; the first one names the role."""
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **delta}
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def end(self, completion: Completion) -> bytes:
        """The events after the last piece: the message itself if no piece was sent, why it ended, the
        usage if the request asked for it."""
        events = [] if self._begun else [self.delta(whole(completion.message))]
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": completion.finish_reason}
        events.append(self._chunk([last]))
        if self._with_usage:
            events.append(self._chunk([], usage=_usage(completion.usage)))
        return b"".join([*events, DONE])

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event(
            {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": self._created,
                "model": self._model,
                "choices": choices,
                **more,
            }
        )


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _load(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        problem = str(error)
    # JavaScript cuts strings between the halves of a surrogate pair and sends a lone half as an escape,
    # which is JSON but no text. Replace the half instead of refusing the agent's honest request.
    try:
        text = json.dumps(json.loads(raw), ensure_ascii=False)
        return orjson.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise BadRequest(f"the request body is not JSON: {problem}") from None


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "missing or null"
    if value == []:
        return "an empty list"
    return names.get(type(value), "a number")
