"""The replies of Anthropic's Messages API: a message, or the events of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal
from uuid import uuid4

import orjson

from swe_core.api.deltas import Indices, whole
from swe_core.api.engine import Completion, Delta, Usage
from swe_core.api.messages import text_of
from swe_core.api.object_prefix import ObjectPrefix
from swe_core.interception.dialects.base import Problem, Reply
from swe_core.interception.dialects.common import event
from swe_core.interception.dialects.messages_blocks import Told, ToldCall, signature_of

Thoughts = Literal["hidden", "shown", "signed"]
"""How a reply shows reasoning: not at all, as text, or only in a signature, which the client sends back."""

_SIGNATURE = signature_of("swe-core")
"""Signature of a thinking block with text. Nothing reads it; clients drop a block without one."""
_MOST_TOLD = 50_000
"""Calls that a rollout keeps: each repeated request, which no budget limits, adds its reply's again."""
_REASONS = {"length": "max_tokens", "content_filter": "refusal"}
_NO_END = {"stop_reason": None, "stop_sequence": None}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesReply(Reply):
    """A reply in one piece, or as events. A block ends when the next one begins.

    Args:
        told: Where the calls of the reply are kept.
    """

    def __init__(self, model: str, thoughts: Thoughts, told: Told) -> None:
        self._id = f"msg_{uuid4().hex}"
        self._model = model
        self._thoughts = thoughts
        self._told = told
        self._begun = False
        self._count = 0
        self._block: str | _Call | None = None  # the one that is open
        self._reasoning: list[str] = []  # what the open block hides
        self._calls: dict[int, _Call] = {}
        self._ended = 0  # the calls whose block is complete
        self._indices = Indices()

    def body(self, completion: Completion) -> bytes:
        message = completion.message
        content: list[dict[str, Any]] = []
        if thought := self._thought(message):
            hides = self._thoughts == "signed"
            signature = signature_of(thought) if hides else _SIGNATURE
            content.append({"type": "thinking", "thinking": "" if hides else thought, "signature": signature})
        if text := text_of(message.get("content") or message.get("refusal")):
            content.append({"type": "text", "text": text})
        for piece in whole(message).get("tool_calls") or ():
            call = _Call(piece)
            call.add(piece)
            content.append({**call.block(), "input": orjson.Fragment(call.closed(call.read()))})
            self._keep(call)
        return orjson.dumps(self._message(content, _end(completion), completion.usage, completion.model))

    def delta(self, delta: Delta) -> bytes:
        return b"".join(self._events(delta))

    def end(self, completion: Completion) -> bytes:
        events = [] if self._begun else [self.delta(whole(completion.message))]
        events += self._tell_calls(ended=True)
        events += self._close()
        for call in self._calls.values():
            self._keep(call)
        events.append(_event("message_delta", delta=_end(completion), usage=_usage(completion.usage)))
        events.append(_event("message_stop"))
        return b"".join(events)

    def failed(self, problem: Problem) -> bytes:
        return event(error_of(problem), "error")

    def _events(self, delta: Delta) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            yield _event("message_start", message=self._message([], _NO_END, Usage()))
        if thought := self._thought(delta):
            yield from self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            if self._thoughts == "signed":
                self._reasoning.append(thought)
            else:
                yield self._piece("thinking_delta", "thinking", thought)
        if text := text_of(delta.get("content") or delta.get("refusal")):
            yield from self._open("text", {"type": "text", "text": ""})
            yield self._piece("text_delta", "text", text)
        for piece in delta.get("tool_calls") or ():
            index = self._indices.of(piece)
            if index not in self._calls:
                self._calls[index] = _Call(piece)
            self._calls[index].add(piece)
            yield from self._tell_calls()

    def _thought(self, message: Mapping[str, Any]) -> str:
        if self._thoughts == "hidden":
            return ""
        return text_of(message.get("reasoning_content") or message.get("reasoning"))

    def _tell_calls(self, *, ended: bool = False) -> Iterator[bytes]:
        """Tell what is new of the calls. Blocks follow each other, so a call waits for the one before it."""
        calls = list(self._calls.values())
        for call in calls[self._ended :]:
            if not call.name and not ended:
                return
            yield from self._open(call, {**call.block(), "input": {}})
            if text := call.read():
                yield self._piece("input_json_delta", "partial_json", text)
            if not ended and (call is calls[-1] or not call.settled):
                return
            self._ended += 1

    def _open(self, block: str | _Call, start: dict[str, Any]) -> Iterator[bytes]:
        """Begin a block, unless it is open."""
        if block == self._block:
            return
        if isinstance(block, str):
            yield from self._tell_calls(ended=True)
        yield from self._close()
        self._block = block
        yield _event("content_block_start", index=self._count, content_block=start)

    def _close(self) -> Iterator[bytes]:
        """End the open block."""
        if self._block is None:
            return
        if self._block == "thinking":
            signature = signature_of("".join(self._reasoning)) if self._reasoning else _SIGNATURE
            self._reasoning = []
            yield self._piece("signature_delta", "signature", signature)
        yield _event("content_block_stop", index=self._count)
        self._block = None
        self._count += 1

    def _piece(self, kind: str, key: str, text: str) -> bytes:
        return _event("content_block_delta", index=self._count, delta={"type": kind, key: text})

    def _keep(self, call: _Call) -> None:
        """Keep what the model sampled, for the history that the client sends."""
        function = {"name": call.name, "arguments": call.sampled}
        made = {"id": call.given_id or call.id, "type": "function", "function": function}
        self._told[call.id] = ToldCall(made, call.whole)
        if len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]

    def _message(
        self, content: list[dict[str, Any]], end: Mapping[str, Any], usage: Usage, model: str = ""
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": model or self._model,
            "content": content,
            **end,
            "usage": _usage(usage),
        }


class _Call:
    """A call while it is sampled.

    Attributes:
        id: The one that the client gets, unique in the rollout, as an engine's may not be.
        given_id: The engine's.
        settled: Whether what follows adds nothing to the input.
        whole: Whether the client was told the input, and it is the object that the model sampled.
    """

    def __init__(self, piece: Mapping[str, Any]) -> None:
        self.id = f"toolu_{uuid4().hex}"
        self.given_id = str(piece.get("id") or "")
        self.name = ""
        self._pieces: list[str] = []
        self._waiting: list[str] = []
        self._reader = ObjectPrefix()

    @property
    def settled(self) -> bool:
        return self._reader.whole or self._reader.broken

    @property
    def whole(self) -> bool:
        return self._reader.whole and not self._waiting

    @property
    def sampled(self) -> str:
        """Return the arguments as sampled."""
        return "".join(self._pieces)

    def add(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        self.name = self.name or str(function.get("name") or "")
        if arguments := function.get("arguments"):
            self._pieces.append(arguments)
            self._waiting.append(arguments)

    def read(self) -> str:
        """Return what is new of the input."""
        text = "".join(self._waiting)
        self._waiting = []
        return self._reader.add(text)

    def closed(self, told: str) -> str:
        """Return the input as an object; `told` is all of it."""
        return self._reader.closed(told)

    def block(self) -> dict[str, Any]:
        return {"type": "tool_use", "id": self.id, "name": self.name}


def error_of(problem: Problem) -> dict[str, Any]:
    """Return the body of an error."""
    message = problem.message
    if problem.overflow is not None:  # exactly the API's words: Claude Code compacts on them
        message = (
            f"prompt is too long: {problem.overflow.prompt_tokens} tokens > {problem.overflow.limit} maximum"
        )
    is_ours = problem.kind in ("engine", "server", "tool")
    kind = _TYPES.get(problem.status, "api_error" if is_ours else "invalid_request_error")
    # No `request_id`: Claude Code quotes it in the conversation, which should be the same in each run.
    return {"type": "error", "error": {"type": kind, "message": message}}


def _end(completion: Completion) -> dict[str, str | None]:
    """Return why the message ended."""
    reason, stop = _REASONS.get(completion.finish_reason), None
    if reason is None and completion.message.get("tool_calls"):
        reason = "tool_use"
    elif reason is None and completion.stopped_by is not None:
        reason, stop = "stop_sequence", completion.stopped_by
    return {"stop_reason": reason or "end_turn", "stop_sequence": stop}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
