"""The output items of the Responses API while they are sampled, and their events."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import orjson

from swe_core.api.messages import same_arguments
from swe_core.interception.dialects.responses_custom import InputReader, custom_arguments
from swe_core.interception.dialects.responses_items import Origin, item_id, origin_of, seal
from swe_core.interception.dialects.responses_memory import Memory

Event = tuple[str, dict[str, Any]]
"""Type and data of an event; the reply adds which item it is about."""


class OutputItem(ABC):
    """One item.

    Attributes:
        prefix: Beginning of its id.
        id: Empty until the item begins.
    """

    prefix: str

    def __init__(self) -> None:
        self.id = ""
        self._waiting: list[str] = []

    def add(self, text: str) -> None:
        """Add sampled text."""
        self._waiting.append(text)

    def may_begin(self) -> bool:
        """Return whether what the first event tells is known."""
        return True

    def is_whole(self) -> bool:
        """Return whether no more text can come, now that another item follows."""
        return True

    def begin(self, response: str, index: int) -> Iterator[Event]:
        """Begin the item with the place `index` in a response."""
        self.id = item_id(self.prefix, response, index)
        yield "response.output_item.added", {"item": self.shown("in_progress")}

    @abstractmethod
    def news(self) -> Iterator[Event]:
        """Return the events of the text that was added since."""

    @abstractmethod
    def end(self) -> Iterator[Event]:
        """Return the events that end the item's text."""

    @abstractmethod
    def shown(self, status: str) -> dict[str, Any]:
        """Return the item with its text so far."""

    def _taken(self) -> str:
        text = "".join(self._waiting)
        self._waiting.clear()
        return text


class TextItem(OutputItem):
    """An item with one part of text.

    Attributes:
        kind: Type of the part, and of the events with its text.
        part: Further fields of the part.
        event: Further fields of the events with its text.
    """

    kind: ClassVar[str]
    part: ClassVar[Mapping[str, Any]] = {}
    event: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self._written: list[str] = []

    def begin(self, response: str, index: int) -> Iterator[Event]:
        yield from super().begin(response, index)
        yield "response.content_part.added", {"content_index": 0, "part": self._part("")}

    def news(self) -> Iterator[Event]:
        if text := self._taken():
            self._written.append(text)
            yield f"response.{self.kind}.delta", {"content_index": 0, "delta": text, **self.event}

    def end(self) -> Iterator[Event]:
        text = "".join(self._written)
        yield f"response.{self.kind}.done", {"content_index": 0, "text": text, **self.event}
        yield "response.content_part.done", {"content_index": 0, "part": self._part(text)}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": self.kind, "text": text, **self.part}

    def _content(self, status: str) -> list[dict[str, Any]]:
        return [] if status == "in_progress" else [self._part("".join(self._written))]


class MessageItem(TextItem):
    """The text of the reply."""

    prefix = "msg"
    kind = "output_text"
    part: ClassVar[Mapping[str, Any]] = {"annotations": [], "logprobs": []}
    event: ClassVar[Mapping[str, Any]] = {"logprobs": []}

    def shown(self, status: str) -> dict[str, Any]:
        content = self._content(status)
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}


class ReasoningItem(TextItem):
    """The reasoning.

    Args:
        sealed: Whether the client wants `encrypted_content`.
    """

    prefix = "rs"
    kind = "reasoning_text"

    def __init__(self, sealed: bool) -> None:
        super().__init__()
        self._sealed = sealed

    def shown(self, status: str) -> dict[str, Any]:
        content = self._content(status)
        item = {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}
        if self._sealed and content:
            item["encrypted_content"] = seal(content[0]["text"])
        return item


class CallItem(OutputItem):
    """A call of a function, or of a custom tool.

    Args:
        origins: The client's tools, by the names that the model sees.
        memory: Keeps sampled arguments that the client cannot send back.
        call_id: The call's id where the engine gives none.
    """

    def __init__(self, origins: Mapping[str, Origin], memory: Memory, call_id: str) -> None:
        super().__init__()
        self._origins = origins
        self._memory = memory
        self._call_id = call_id
        self._tool: Origin | None = None
        self._sampled: list[str] = []
        self._written: list[str] = []
        self._reader = InputReader()

    def add_piece(self, piece: Mapping[str, Any]) -> None:
        """Add a piece of the call in chat-completions form."""
        function = piece.get("function") or {}
        if self._tool is None and function.get("name"):
            self._tool = origin_of(self._origins, function["name"])
        if piece.get("id") and not self.id:
            self._call_id = piece["id"]
        if arguments := function.get("arguments"):
            self._sampled.append(arguments)
            self.add(arguments)

    def may_begin(self) -> bool:
        return self._tool is not None

    def is_whole(self) -> bool:
        text = "".join(self._sampled)
        with suppress(orjson.JSONDecodeError):
            orjson.loads(text)
            return True
        with suppress(ValueError, RecursionError):  # with numbers beyond floats, or halves of surrogate pairs
            json.loads(text)
            return True
        return False

    def begin(self, response: str, index: int) -> Iterator[Event]:
        self._tool = self._tool or Origin("")
        self.prefix = "ctc" if self._tool.is_custom else "fc"
        return super().begin(response, index)

    def news(self) -> Iterator[Event]:
        text = self._taken()
        return self._delta(self._reader.add(text) if self._is_custom else text)

    def end(self) -> Iterator[Event]:
        if self._is_custom:
            yield from self._delta(self._reader.end())
            text, sampled = "".join(self._written), "".join(self._sampled)
            if same_arguments(custom_arguments(text)) != same_arguments(sampled):
                self._memory.keep_arguments(self._call_id, text, sampled)
        yield f"response.{self._kind}_{self._field}.done", {self._field: "".join(self._written)}

    def shown(self, status: str) -> dict[str, Any]:
        tool = self._tool or Origin("")
        item = {"id": self.id, "type": self._kind, "status": status, "call_id": self._call_id}
        item |= {"name": tool.name, self._field: "".join(self._written)}
        return {**item, "namespace": tool.namespace} if tool.namespace else item

    @property
    def _is_custom(self) -> bool:
        return self._tool is not None and self._tool.is_custom

    @property
    def _kind(self) -> str:
        return "custom_tool_call" if self._is_custom else "function_call"

    @property
    def _field(self) -> str:
        return "input" if self._is_custom else "arguments"

    def _delta(self, text: str) -> Iterator[Event]:
        if text:
            self._written.append(text)
            yield f"response.{self._kind}_{self._field}.delta", {"delta": text}
