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
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,4}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?")
_WORD = re.compile(r"[-+.\w]+")
_CONSTANTS = frozenset(("true", "false", "null"))
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_DEEP = 100
"""Levels of objects and lists. The client's next request repeats them inside others."""
_START = ("{",)
_FIRST_KEY, _KEY = ('"', "}"), ('"',)
_FIRST_VALUE, _VALUE = ("value", "]"), ("value",)
_AFTER = {"{": (",", "}"), "[": (",", "]")}


class ObjectPrefix:
    """Reads a text that grows, up to where it stops being the beginning of a JSON object.

    What is read is JSON for every client: a number beyond 64-bit floats becomes null, and a lone half of a
    surrogate pair "?", as in what JavaScript makes of them.

    Attributes:
        whole: Whether the text is a complete object.
        broken: Whether the text is not the beginning of an object.
    """

    def __init__(self) -> None:
        self.broken = False
        self._held = ""  # a token that is not complete
        self._instead = ""  # of the token that was read last
        self._length = self._safe = 0  # characters read, and those of them after which it can be closed
        self._settled = False  # whether the token that was read last moved the latter
        self._inside = False  # a string
        self._open: list[str] = []
        self._next: tuple[str, ...] = _START  # what may follow: characters, or any value

    @property
    def whole(self) -> bool:
        return not (self.broken or self._held or self._next)

    def add(self, text: str) -> str:
        """Return what `text` adds to the beginning of an object. A token that is not complete waits."""
        if self.broken:
            return ""
        text = self._held + text
        if self._next is _START:  # the SDKs fail on an input of white space alone
            text = text.lstrip(_SPACES)
        read, start, at = "", 0, 0
        while at < len(text):
            end = self._string(text, at) if self._inside else self._token(text, at)
            if end <= at:
                self.broken = end < 0
                break
            if self._instead:
                read += text[start:at] + self._instead
                start, self._instead = end, ""
            at = end
            if self._settled and not self._inside:
                self._safe = self._length + len(read) + at - start
                self._settled = False
        self._held = "" if self.broken else text[at:]
        read += text[start:at]
        self._length += len(read)
        return read

    def closed(self, read: str) -> str:
        """Return all that was read as an object, without a value that is not complete, as SDKs read it."""
        ends = "".join("}" if one == "{" else "]" for one in reversed(self._open))
        return read[: self._safe] + ends or "{}"

    def _string(self, text: str, at: int) -> int:
        """Return the end of what is at `at`; `at` where it is not complete, -1 where it may not be there."""
        if text[at] == '"':
            self._inside = False
            return at + 1
        characters = _CHARACTERS.match(text, at)
        if characters is not None:
            return characters.end()
        if _CUT_ESCAPE.fullmatch(text, at):
            return at
        half = _HALF.match(text, at)
        if half is None:
            return -1
        self._instead = "?"
        return half.end()

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
        if word is None:
            return -1
        if word.end() == len(text):
            return at
        if not _is_scalar(word.group()):
            return -1
        if word.group() not in _CONSTANTS and not math.isfinite(float(word.group())):
            self._instead = "null"
        self._ended()
        return word.end()

    def _take(self, first: str) -> bool:
        """Take a token of one character, or the beginning of a string; return whether it is not too deep."""
        if first in "{[":
            if len(self._open) == _DEEP:
                return False
            self._open.append(first)
            self._next = _FIRST_KEY if first == "{" else _FIRST_VALUE
            self._settled = True
        elif first in "}]":
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
        self._settled = True


def _is_scalar(word: str) -> bool:
    """Return whether `word` is a constant or a number."""
    return word in _CONSTANTS or _NUMBER.fullmatch(word) is not None
