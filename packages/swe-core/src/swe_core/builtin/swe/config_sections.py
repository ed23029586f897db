"""The test runner's sections of a file that others use too: setup.cfg, tox.ini, pyproject.toml.

The agent's file stays the same, byte for byte, except for these sections: they are cut out, and those of the
reference are appended. The sections of other tools (metadata, dependencies, linters) are the agent's.

- TOML: tomlkit, which preserves the rest of the file.
- INI: iniconfig, with which pytest itself reads setup.cfg and tox.ini. It gives the first line of each
  section, so sections are cut as lines.

Other parsers, and other versions of these, could find a section where ours finds none. So the result is
parsed again, and a file is edited only if it is unambiguous: it parses, it has no character that only some
parsers take for a line end, its protected sections equal the reference's, the others equal the agent's, and
no line of the rest looks like the head of a protected section. Otherwise the result is None, and the caller
restores the file.
"""

from __future__ import annotations

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from typing import Any, Final

import iniconfig
import tomlkit
from tomlkit.exceptions import TOMLKitError

MAX_BYTES: Final = 64 * 1024
"""Larger files are not edited."""

WITH_SECTIONS: Final = frozenset(("tox", "hatch", "pdm", "poe", "pixi"))
"""Programs that read how to run tests from sections of pyproject.toml, tox of the others too."""

_ODD = re.compile("[\x00\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ufeff]|\r(?!\n)")
"""Line ends to some parsers only, NUL, and the byte order mark."""
_NESTED = re.compile(r"^[^\n.]*+(?:\.[^\n.]*+){64}", re.MULTILINE)
"""A line that may be a key of so many parts that parsers of TOML take minutes."""
_HEAD = re.compile(r"^[ \t]*\[", re.MULTILINE)
_DOTTED = re.compile(r"^[^\n=#\[{(,]*\.[^\n=]*=", re.MULTILINE)
_MAX_HEADS = 300
"""With more heads of sections than these, or more dotted keys, tomlkit takes seconds."""


def with_sections_of(
    reference: bytes, model: bytes, base: bytes, *, name: str, programs: Set[str] = frozenset()
) -> bytes | None:
    """Return `model` with the test runner's sections of `reference` instead of its own.

    Args:
        reference: Content of the file with the right sections; empty without a file.
        model: Content of the file with the rest; empty without a file.
        base: Content of the file before the agent. If `model` differs from it only in protected sections, the
            result is that for `base`.
        name: The file's base name, which says what it is: TOML (`….toml`), else INI.
        programs: Those of `WITH_SECTIONS` that run the tests, whose sections are then protected too.

    Returns:
        The new content: `model` itself if its sections are the reference's. None if the sections of a file
        are ambiguous.
    """
    form = _Toml(programs) if name.endswith(".toml") else _Ini(programs)
    try:
        right, ours, before = _text(reference), _text(model), _text(base)
        mine, bases = form.read(ours), form.read(before)
        if form.rest(mine) == form.rest(bases) and form.protected(mine) != form.protected(bases):
            ours = before
        return form.edit(ours, right).encode()
    except _NotPlain:
        return None


class _NotPlain(Exception):
    """The file may mean different things to different parsers."""


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _NotPlain from None
    if len(data) > MAX_BYTES or _ODD.search(text) or _NESTED.search(text):
        raise _NotPlain
    if any(sum(1 for _ in many.finditer(text)) > _MAX_HEADS for many in (_HEAD, _DOTTED)):
        raise _NotPlain
    return text


_Read = Mapping[str, Mapping[str, Any]]


class _Form(ABC):
    """A syntax: its protected sections, and how to read and cut a file."""

    def __init__(self, names: str) -> None:
        self._name = re.compile(names)
        self._head = re.compile(
            rf"^[ \t]*\[[\[ \t\"']*(?:tool[ \t\"'.]*\.[ \t\"']*)?(?:{names})", re.M | re.I
        )

    @abstractmethod
    def read(self, text: str) -> _Read:
        """Section → what it holds; for TOML the tables in `tool` are the sections, all else is one more."""

    @abstractmethod
    def cut(self, text: str, *, protected: bool) -> str:
        """Return the text of the protected sections, or that of all others."""

    def protected(self, read: _Read) -> _Read:
        """Return the sections that the test runner reads."""
        return {name: held for name, held in read.items() if self.is_protected(name)}

    def is_protected(self, section: str) -> bool:
        """Return whether the test runner reads this section."""
        return self._name.match(section) is not None

    def rest(self, read: _Read) -> _Read:
        """Return the sections that are not protected."""
        return {name: held for name, held in read.items() if not self.is_protected(name)}

    def edit(self, text: str, right: str) -> str:
        """`text` with the protected sections of `right`."""
        ours, wanted = self.read(text), self.protected(self.read(right))
        same_heads = sorted(self._head.findall(text)) == sorted(self._head.findall(right))
        if same_heads and self.protected(ours) == wanted:
            return text
        kept = self.cut(text, protected=False)
        if self._head.search(kept):
            raise _NotPlain
        if wanted:
            kept = f"{kept.rstrip()}\n\n" if kept.strip() else ""
            kept += self.cut(right, protected=True)
        if self.read(kept) != {**self.rest(ours), **wanted}:
            raise _NotPlain
        return kept


class _Ini(_Form):
    def __init__(self, programs: Set[str]) -> None:
        super().__init__(
            r"pytest|tool:pytest|coverage:|nosetests" + (r"|tox|testenv" if "tox" in programs else "")
        )

    def read(self, text: str) -> _Read:
        return {name: dict(held) for name, held in self._parsed(text).sections.items()}

    def cut(self, text: str, *, protected: bool) -> str:
        parsed = self._parsed(text)
        starts = {parsed.lineof(name): self.is_protected(name) for name in parsed.sections}
        kept: list[str] = []
        inside = False
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            inside = starts.get(number, inside)
            if inside == protected:
                kept.append(line)
        return "".join(kept)

    @staticmethod
    def _parsed(text: str) -> iniconfig.IniConfig:
        try:
            return iniconfig.IniConfig("", text)
        except iniconfig.ParseError:
            raise _NotPlain from None


class _Toml(_Form):
    def __init__(self, programs: Set[str]) -> None:
        super().__init__("|".join(("pytest", "coverage", *sorted(programs))))

    def read(self, text: str) -> _Read:
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError):  # also a number of thousands of digits
            raise _NotPlain from None
        tables = data.pop("tool", {})
        if not isinstance(tables, dict):
            raise _NotPlain
        return {**tables, "": data}

    def cut(self, text: str, *, protected: bool) -> str:
        try:
            document = tomlkit.parse(text)
            tables = document.get("tool", {})
            if protected:
                mine = {name: tables[name].unwrap() for name in tables if self.is_protected(name)}
                return tomlkit.dumps({"tool": mine})
            for name in [name for name in tables if self.is_protected(name)]:
                del tables[name]
            return tomlkit.dumps(document)
        except (TOMLKitError, RecursionError, ValueError, TypeError, AttributeError, LookupError):
            raise _NotPlain from None  # tomlkit cannot edit tables that are defined in pieces, and says so so
