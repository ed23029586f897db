"""Guard: special tokens that are typed in messages stay text."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from swe_core.api.messages import Message
from swe_core.tokens.renderer import Tools

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_BREAK = "\ufdd0"
"""Breaks a typed mark while the conversation is rendered: a noncharacter of Unicode, which no text has."""
_ESCAPED = "\\ufdd0"
_EDGE = "\ufdd1"
_LONE = re.compile(f"(?<!{_BREAK}){_BREAK}(?!{_BREAK})")
_MARK = re.compile(r"\s*[<\[{(〈\]].*[>\]})〉\[]\s*", re.DOTALL)
"""The shape of a mark, which distinguishes it from added words and runs of blanks."""
_THINKING = frozenset({"<think>", "</think>"})
"""Marks that a reply's text may have: clients send reasoning back inside it."""


class Guard:
    """Keeps typed marks apart from those that a chat format prints.

    Without it a tool's output that contains `<|im_start|>system` opens a message of its own. Messages are
    guarded before they are rendered; ids of the rendered text are made such that guarded marks are text.

    Args:
        active: False reads typed marks as special tokens, as vLLM's chat API does.
        source: The chat template. Tokens that are not special, as Gemma's for HTML, are marks if it has them.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, active: bool = True, source: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        marks = {str(token) for token in added if token.special and str(token).strip()}
        plain = (str(token) for token in added if not token.special)
        marks |= {mark for mark in plain if _MARK.fullmatch(mark) and (source is None or mark in source)}
        self._marks = re.compile(_any_of(marks))
        self._active = active
        own = [_BREAK, _ESCAPED]  # a typed break is broken itself, before others are made
        self._typed = _by_beginning([*own, *marks]) if active else []
        self._in_reply = _by_beginning([*own, *(marks - _THINKING)]) if active else []

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages with broken marks."""
        return [self._message(message) for message in messages]

    def tools(self, tools: Tools) -> Tools:
        """Return the tools with broken marks."""
        text = orjson.dumps(tools, default=str).decode().replace('\\"', '"')
        return self._broken(tools) if any(pattern.search(text) for pattern in self._typed) else tools

    def ids(self, text: str) -> list[int] | None:
        """Return the ids of a rendered text with guarded marks; None for one without."""
        if not self._active:
            return None
        if _ESCAPED in text:
            text = text.replace(_ESCAPED, _BREAK)
        if _BREAK not in text:
            return None
        if not self._tokenizer.is_fast:
            parts = [part.replace(_BREAK * 2, _BREAK) for part in _LONE.split(text)]
            return [id_ for part in parts for id_ in self._tokenizer.encode(part, add_special_tokens=False)]
        backend, names, ids = self._renamed
        renamed = self._marks.sub(lambda mark: names[mark[0]], text)
        renamed = re.sub(f"{_BREAK}({_BREAK}?)", r"\1", renamed)
        found = backend.encode(renamed, add_special_tokens=False).ids
        return [ids.get(id_, id_) for id_ in found]

    @cached_property
    def _renamed(self) -> tuple[Tokenizer, dict[str, str], dict[int, int]]:
        """Return a tokenizer whose marks have other names, the name of each, and the id of each one's id."""
        state = json.loads(self._tokenizer.backend_tokenizer.to_str())
        names, ids = {}, {}
        secret = secrets.token_hex(8)  # a name that is typed is text
        for token in state["added_tokens"]:
            name = token["content"]
            if self._marks.fullmatch(name):
                names[name] = token["content"] = f"{_EDGE}{secret}{token['id']}{_EDGE}"
            ids[token["content"]] = token["id"]
        state["post_processor"] = None  # it may name marks, and adds none here
        backend = type(self._tokenizer.backend_tokenizer).from_str(json.dumps(state))
        return backend, names, {backend.token_to_id(name): id_ for name, id_ in ids.items()}

    def _message(self, message: Message) -> Message:
        typed = self._in_reply if message["role"] == "assistant" else self._typed
        broken = {"content": _break(typed, message["content"])}
        for key in ("reasoning_content", "tool_calls"):
            if message.get(key):
                broken[key] = self._broken(message[key])
        return {**message, **broken}

    def _broken(self, value: Any) -> Any:
        if isinstance(value, str):
            return _break(self._typed, value)
        if isinstance(value, Mapping):
            return {self._broken(key): self._broken(item) for key, item in value.items()}
        return [self._broken(item) for item in value] if isinstance(value, list | tuple) else value


def _any_of(marks: Collection[str]) -> str:
    return "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) if marks else r"(?!)"


def _by_beginning(marks: Sequence[str]) -> list[re.Pattern[str]]:
    """Return a pattern for each first character: searches with a fixed beginning take a tenth of the time."""
    firsts = dict.fromkeys(mark[0] for mark in marks)
    rests = {first: [mark[1:] for mark in marks if mark[0] == first] for first in firsts}
    return [re.compile(f"{re.escape(first)}(?:{_any_of(rests[first])})") for first in firsts]


def _break(marks: Sequence[re.Pattern[str]], text: str) -> str:
    for pattern in marks:
        text = pattern.sub(lambda mark: f"{mark[0][0]}{_BREAK}{mark[0][1:]}", text)
    return text
