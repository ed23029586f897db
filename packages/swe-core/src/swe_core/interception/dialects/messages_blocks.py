"""The messages of a request to Anthropic's API, lists of content blocks, in canonical form."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from swe_core.api.messages import BETWEEN, Message, dumps
from swe_core.interception.dialects.base import BadRequest
from swe_core.interception.dialects.common import AssistantParts, kind_of

Block = Mapping[str, Any]

_MEDIA = frozenset({"image", "document"})
_ROLES = ("user", "assistant", "system")
_SHORTER = 1024
"""Characters by which a client may shorten an input. One that clears it wants the room in the context."""


@dataclass(frozen=True, slots=True)
class ToldCall:
    """A call of a reply.

    Args:
        call: The call as the model sampled it, in canonical form.
        whole: Whether the client was told all of the input, an object.
    """

    call: dict[str, Any]
    whole: bool

    def is_repeated(self, name: str, given: Mapping[str, Any]) -> bool:
        """Return whether a client's call with the same id stands for this one, though not word for word.

        Claude Code adds defaults to inputs, trims lines and takes `cd DIR &&` from commands; and each client
        reads an input in its own way that is no object.
        """
        function = self.call["function"]
        shorter = len(function["arguments"]) - len(dumps(given))
        return bool(function["name"] == name) and not (self.whole and shorter > _SHORTER)


Told = dict[str, ToldCall]
"""The calls of a rollout by the ids that its client knows."""


def signature_of(reasoning: str) -> str:
    """Return the signature of a thinking block that hides its text."""
    return base64.b64encode(reasoning.encode("utf-8", "replace")).decode()


def system_text(given: object) -> str:
    """Return the text of the field `system`.

    Raises:
        BadRequest: It is malformed, or has content other than text.
    """
    return BETWEEN.join(_texts("system", given)) if given is not None else ""


class Conversation:
    """Turns the messages of one request into canonical ones.

    Places in errors have the API's notation, by which clients find the block that they should change.

    Args:
        deferred: The tools that the model sees only where a result refers to them, by name.
        told: The calls of the replies so far, which stay in the history as they were sampled.
    """

    def __init__(self, deferred: Mapping[str, Mapping[str, Any]], told: Told) -> None:
        self.messages: list[Message] = []
        self._deferred = deferred
        self._shown: set[str] = set()
        self._told = told
        self._ids: dict[str, str] = {}  # the client's → the model's
        self._turn: AssistantParts | None = None
        self._turn_ids: set[str] = set()  # the model's

    def add(self, index: int, message: object) -> None:
        """Add messages[index].

        Raises:
            BadRequest: It is malformed, or has content that the model cannot read.
        """
        at = f"messages.{index}"
        if not isinstance(message, dict):
            raise BadRequest(f"{at} is {kind_of(message)}; send an object with a 'role'")
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            self._assistant(at, content)
        elif role == "user":
            self.end_turn()
            self._user(at, content)
        elif role == "system":
            if message.get("clear_at") not in (None, "never"):
                raise BadRequest(f"{at}.clear_at: messages are not cleared here; leave it out")
            if text := BETWEEN.join(_texts(at, content)):  # one without text only has options
                self.end_turn()
                self.messages.append({"role": "system", "content": text})
        else:
            raise BadRequest(f"{at}.role is {role!r}; send one of {', '.join(_ROLES)}")

    def end_turn(self) -> None:
        """Add the message of the assistant's turn, which consecutive messages share."""
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None
            self._turn_ids = set()

    def _assistant(self, at: str, content: object) -> None:
        turn = self._turn = self._turn or AssistantParts()
        for place, kind, block in _blocks(at, content):
            if kind == "text":
                turn.texts.append(_string(place, block, "text"))
            elif kind == "thinking":
                turn.thoughts.append(_string(place, block, "thinking") or _signed(block.get("signature")))
            elif kind == "tool_use":
                turn.calls.append(self._call(place, block))
            elif kind != "redacted_thinking":
                raise _unsupported(place, kind, "text, thinking and tool_use")

    def _call(self, at: str, block: Block) -> dict[str, Any]:
        call_id, name = _string(at, block, "id"), _string(at, block, "name")
        given = block.get("input")
        if not isinstance(given, dict):
            raise BadRequest(f"{at}.input is {kind_of(given)}; send an object")
        told = self._told.get(call_id) if call_id not in self._ids else None  # each only once
        if told is not None and told.is_repeated(name, given):
            call = told.call
        else:
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": dumps(given)}}
        if call["id"] in self._turn_ids:  # a model's ids may be equal, and results are sorted by them
            call = {**call, "id": call_id}
        self._turn_ids.add(call["id"])
        self._ids[call_id] = call["id"]
        return call

    def _user(self, at: str, content: object) -> None:
        """Add the results and texts of a message, in their order. Texts in a row are one message."""
        texts: list[str] = []
        answers = False
        for place, kind, block in _blocks(at, content):
            if kind == "text":
                texts.append(_string(place, block, "text"))
            elif kind == "tool_result":
                answers = True
                self._say(texts)
                self.messages.append(self._result(place, block))
            else:
                raise _unsupported(place, kind, "text and tool_result")
        self._say(texts if texts or answers else [""])

    def _say(self, texts: list[str]) -> None:
        """Add texts of the user as one message, and forget them."""
        if texts:
            self.messages.append({"role": "user", "content": BETWEEN.join(texts)})
            texts.clear()

    def _result(self, at: str, block: Block) -> Message:
        call_id = _string(at, block, "tool_use_id")
        if call_id not in self._ids:
            raise BadRequest(
                f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}; "
                "send the message with its `tool_use` block before it"
            )
        content = block.get("content")
        text = BETWEEN.join(self._result_texts(f"{at}.tool_result", content)) if content is not None else ""
        if block.get("is_error"):  # a template has no other place for it
            text = f"Error: {text}"
        return {"role": "tool", "content": text, "tool_call_id": self._ids[call_id]}

    def _result_texts(self, at: str, content: object) -> Iterator[str]:
        for place, kind, block in _blocks(at, content):
            if kind == "text":
                yield _string(place, block, "text")
            elif kind == "tool_reference":
                yield self._definition(place, _string(place, block, "tool_name"))
            else:
                raise _unsupported(place, kind, "text")

    def _definition(self, at: str, name: str) -> str:
        """Return the definition of a deferred tool, which the model sees from here on.

        Later references are its name, so that a small request has no huge prompt.
        """
        tool = self._deferred.get(name)
        if tool is None:
            raise BadRequest(f"{at}: no tool {name!r} has `defer_loading`; send it in `tools`")
        if name in self._shown:
            return name
        self._shown.add(name)
        return f"<functions>\n<function>{dumps(tool)}</function>\n</functions>"


def _texts(at: str, content: object) -> Iterator[str]:
    for place, kind, block in _blocks(at, content):
        if kind != "text":
            raise _unsupported(place, kind, "text")
        yield _string(place, block, "text")


def _blocks(at: str, content: object) -> Iterator[tuple[str, str, Block]]:
    """Return the blocks of a content: place, type, block. A string is one block of text."""
    if isinstance(content, str):
        yield f"{at}.content", "text", {"text": content}
        return
    if not isinstance(content, list):
        raise BadRequest(f"{at}.content is {kind_of(content)}; send a string or a list of blocks")
    for index, block in enumerate(content):
        place = f"{at}.content.{index}"
        if not isinstance(block, dict):
            raise BadRequest(f"{place} is {kind_of(block)}; send an object with a 'type'")
        yield place, _string(place, block, "type"), block


def _string(at: str, block: Block, key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise BadRequest(f"{at}.{key} is {kind_of(value)}; send a string")
    return value


def _unsupported(at: str, kind: str, supported: str) -> BadRequest:
    if kind in _MEDIA:  # Claude Code looks for this place, and sends the request without the block
        return BadRequest(f"{at}.{kind}: this endpoint's model reads text only; send text")
    return BadRequest(f"{at}.type is {kind!r}, which is not supported here; send {supported}")


def _signed(signature: object) -> str:
    """Return the text that the signature of a thinking block holds; "" in one of another server."""
    try:
        return base64.b64decode(str(signature), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
