"""The reply of the dialect Responses, complete or as events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson

from swe_core.api.deltas import Indices, whole
from swe_core.api.engine import Completion, Delta, Usage
from swe_core.api.messages import text_of
from swe_core.interception.dialects.base import Problem, Reply
from swe_core.interception.dialects.chat import openai_error
from swe_core.interception.dialects.common import event
from swe_core.interception.dialects.responses_items import Origin
from swe_core.interception.dialects.responses_memory import Item, Memory
from swe_core.interception.dialects.responses_output import (
    CallItem,
    Event,
    MessageItem,
    OutputItem,
    ReasoningItem,
)

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of replies that are incomplete."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reply needs of its request.

    Args:
        settings: Fields of the request that the response repeats.
        origins: The client's tools, by the names that the model sees.
        sealed: Whether the client wants `encrypted_content`.
        store: Whether later requests may name the response.
        history: The items before the reply.
    """

    settings: Mapping[str, Any]
    origins: Mapping[str, Origin]
    sealed: bool
    store: bool
    history: Sequence[Item]
    memory: Memory


class ResponsesReply(Reply):
    """Writes one item after another: clients expect that an item ends before the next one begins."""

    def __init__(self, asked: Asked, model: str) -> None:
        self._asked = asked
        self._model = model
        self._digits = uuid4().hex
        self._created = int(time.time())
        self._events: list[bytes] = []
        self._number = 0
        self._begun = self._silent = False
        self._items: list[OutputItem] = []
        self._calls: dict[int, CallItem] = {}
        self._indices = Indices()
        self._output: list[dict[str, Any]] = []
        """The items that have ended, as they were sent."""

    def body(self, completion: Completion) -> bytes:
        self._silent = True
        self._model = completion.model or self._model
        self._add(whole(completion.message))
        return orjson.dumps(self._complete(completion))

    def delta(self, delta: Delta) -> bytes:
        self._begin()
        self._add(delta)
        self._write()
        return self._sent()

    def end(self, completion: Completion) -> bytes:
        if not self._begun:
            self._begin()
            self._add(whole(completion.message))
        response = self._complete(completion)
        self._tell(f"response.{response['status']}", response=response)
        return self._sent()

    def failed(self, problem: Problem) -> bytes:
        self._begin()
        error = {"code": problem.code or "server_error", "message": problem.message}
        # OpenAI's SDK raises what is below `error`. Other clients wait for the event after it.
        self._tell("error", **error, param=None, **openai_error(problem))
        self._tell("response.failed", response=self._response("failed", error=error))
        return self._sent()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            for kind in ("created", "in_progress"):
                self._tell(f"response.{kind}", response=self._response("in_progress"))

    def _tell(self, kind: str, **data: Any) -> None:
        if not self._silent:
            self._events.append(event({"type": kind, "sequence_number": self._number, **data}, kind))
            self._number += 1

    def _sent(self) -> bytes:
        events = b"".join(self._events)
        self._events.clear()
        return events

    def _add(self, delta: Delta) -> None:
        """Add a piece of the message to the items that it belongs to."""
        if text := text_of(delta.get("reasoning_content") or delta.get("reasoning")):
            self._grow(ReasoningItem(self._asked.sealed), text)
        if text := text_of(delta.get("content") or delta.get("refusal")):
            self._grow(MessageItem(), text)
        for piece in delta.get("tool_calls") or ():
            index = self._indices.of(piece)
            if index not in self._calls:
                call_id = f"call_{self._digits}_{index}"
                self._calls[index] = CallItem(self._asked.origins, self._asked.memory, call_id)
                self._items.append(self._calls[index])
            self._calls[index].add_piece(piece)

    def _grow(self, new: OutputItem, text: str) -> None:
        """Add text to the last item, or to `new` where the last one is of another kind."""
        if not self._items or type(self._items[-1]) is not type(new):
            self._items.append(new)
        self._items[-1].add(text)

    def _write(self, *, ended: bool = False, cut: bool = False) -> None:
        """Write what was added to the item in progress, and to later ones once it is whole.

        Args:
            ended: Whether nothing more comes.
            cut: Whether the reply was cut, and its last item with it.
        """
        for index in range(len(self._output), len(self._items)):
            item, is_last = self._items[index], index == len(self._items) - 1
            if not item.id:
                if not ended and not item.may_begin():
                    return
                self._tell_all(index, item.begin(self._digits, index))
            self._tell_all(index, item.news())
            if not ended and (is_last or not item.is_whole()):
                return
            self._tell_all(index, item.end())
            self._output.append(item.shown("incomplete" if cut and is_last else "completed"))
            self._tell("response.output_item.done", output_index=index, item=self._output[index])

    def _tell_all(self, index: int, events: Iterable[Event]) -> None:
        """Write the events of the item at `index`."""
        item = self._items[index]
        for kind, data in events:
            if kind != "response.output_item.added":
                data["item_id"] = item.id
            self._tell(kind, output_index=index, **data)

    def _complete(self, completion: Completion) -> dict[str, Any]:
        """End the output, and return the complete response."""
        reason = _CUT.get(completion.finish_reason)
        cut = reason is not None
        if all(isinstance(item, ReasoningItem) for item in self._items):
            self._items.append(MessageItem())  # so that the client has a message to send back
        self._write(ended=True, cut=cut)
        response = self._response("incomplete" if cut else "completed", usage=_usage(completion.usage))
        if cut:
            response["incomplete_details"] = {"reason": reason}
        if self._asked.store:
            self._asked.memory.keep(response["id"], self._asked.history, self._output)
        return response

    def _response(self, status: str, **known: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{self._digits}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": self._output,
            "usage": None,
            **self._asked.settings,
            **known,
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
