"""The input of a tool's call while it is sampled: as much of its text as begins a JSON object."""

from __future__ import annotations

import math
import re

_SPACES = " \t\n\r"
_WHITE = re.compile(f"[{_SPACES}]+")
_SURROGATES = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_CHARACTERS = re.compile(
    r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|(?!u[dD][89a-fA-F])u[0-9a-fA-F]{4}|' + _SURROGATES + r"))++"
)
"""Characters of a string. A lone half of a surrogate pair is none: clients that decode UTF-8 fail on it."""
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,4}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?")
_WORD = re.compile(r"[-+.\w]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_DEEP = 100
"""Levels of objects and lists. The client's next request repeats them inside others."""
_START = ("{",)
_FIRST_KEY, _KEY = ('"', "}"), ('"',)
_FIRST_VALUE, _VALUE = ("value", "]"), ("value",)
_AFTER = {"{": (",", "}"), "[": (",", "]")}


class ObjectPrefix:
    """Reads a text that grows, up to where it stops being the beginning of a JSON object.

    Attributes:
        whole: Whether the text is a complete object.
        broken: Whether the text is not the beginning of an object.
    """

    def __init__(self) -> None:
        self.broken = False
        self._held = ""  # a token that is not complete
        self._inside = False  # a string
        self._open: list[str] = []
        self._next: tuple[str, ...] = _START  # what may follow: characters, or any value

    @property
    def whole(self) -> bool:
        return not (self.broken or self._held or self._next)

    def add(self, text: str) -> str:
        """Return what `text` adds to the beginning of an object. A token that is not complete waits."""
        text = self._held + text
        if self._next is _START:  # the SDKs fail on an input of white space alone
            text = text.lstrip(_SPACES)
        at = 0
        while at < len(text) and not self.broken:
            end = self._string(text, at) if self._inside else self._token(text, at)
            if end == at:
                break
            self.broken = end < 0
            at = max(at, end)
        self._held = "" if self.broken else text[at:]
        return text[:at]

    def _string(self, text: str, at: int) -> int:
        """Return the end of what is at `at`; `at` where it is not complete, -1 where it may not be there."""
        if text[at] == '"':
            self._inside = False
            return at + 1
        characters = _CHARACTERS.match(text, at)
        if characters is not None:
            return characters.end()
        return at if _CUT_ESCAPE.fullmatch(text, at) else -1

    def _token(self, text: str, at: int) -> int:
        """Return the end of the token at `at`, as `_string` does."""
        white = _WHITE.match(text, at)
        if white is not None:
            return white.end()
        first = text[at]
        if first in self._next:
            return at + 1 if self._take(first) else -1
        if "value" not in self._next:
            return -1
        if first in '{["':
            return at + 1 if self._take(first) else -1
        word = _WORD.match(text, at)
        if word is None or (word.end() < len(text) and not _is_scalar(word.group())):
            return -1
        if word.end() == len(text):
            return at
        self._ended()
        return word.end()

    def _take(self, first: str) -> bool:
        """Take a token of one character, or the beginning of a string; return whether it is not too deep."""
        if first in "{[":
            self._open.append(first)
            self._next = _FIRST_KEY if first == "{" else _FIRST_VALUE
            return len(self._open) <= _DEEP
        if first in "}]":
            self._open.pop()
            self._ended()
        elif first == '"':
            self._inside = True
            if "value" in self._next:
                self._ended()
            else:
                self._next = (":",)
        elif first == ":":
            self._next = _VALUE
        else:
            self._next = _KEY if self._open[-1] == "{" else _VALUE
        return True

    def _ended(self) -> None:
        """Note the end of a value."""
        self._next = _AFTER[self._open[-1]] if self._open else ()


def _is_scalar(word: str) -> bool:
    """Return whether `word` is a constant, or a number that clients do not turn into infinity."""
    if word in ("true", "false", "null"):
        return True
    return _NUMBER.fullmatch(word) is not None and math.isfinite(float(word))
