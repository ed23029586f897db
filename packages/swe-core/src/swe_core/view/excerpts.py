"""Excerpts: long texts cut for a page, so that no text of an agent makes it slow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from markupsafe import escape

from swe_core.system.files import open_below
from swe_core.system.printable import printable

WIDTH = 4_000
"""Characters shown of one text."""
FOLDED = 40_000
"""Characters of one text that a reader can unfold."""
TOTAL = 2_000_000
"""Characters of all texts of a page; beyond them, each text is cut to `LEAST`."""
LEAST = 300


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A text as a page shows it.

    Args:
        shown: Its beginning.
        folded: What follows it, for a reader who asks.
        left_out: Characters after that, which the page does not have.
        file: Name of the file that has all of it.
    """

    shown: str
    folded: str = ""
    left_out: int = 0
    file: str = ""

    def __len__(self) -> int:
        """Return the length of the whole text, characters."""
        return len(self.shown) + len(self.folded) + self.left_out

    def __html__(self) -> str:
        """Return it for a template."""
        parts = [f"<pre>{escape(printable(self.shown))}</pre>"]
        if self.folded:
            parts.append(
                f'<details class="more"><summary>{len(self.folded):,} more characters</summary>'
                f"<pre>{escape(printable(self.folded))}</pre></details>"
            )
        if self.left_out:
            parts.append(f'<p class="dim">… {self.left_out:,} more characters, in {escape(self.file)}</p>')
        return "".join(parts)


class Excerpts:
    """Cuts the texts of one page.

    Args:
        total: Characters that the page may have of all texts.
    """

    def __init__(self, total: int = TOTAL) -> None:
        self._left = total

    def cut(self, text: str, file: str, width: int = WIDTH, folded: int = FOLDED) -> Excerpt:
        """Return the excerpt of a text of a file: `width` characters, and `folded` more."""
        if self._left <= 0:
            width, folded = min(width, LEAST), 0
        rest = max(0, len(text) - width - folded)
        found = Excerpt(text[:width], text[width : width + folded], rest, file)
        self._left -= len(found.shown) + len(found.folded)
        return found


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file: its text, and the bytes before it."""

    text: str
    left_out: int


def tail_of(path: Path, run: Path, size: int) -> Tail | None:
    """Return the last `size` bytes of a file of a run, from a line's start; None if it is absent."""
    try:
        with open_below(path, run) as file:
            whole = os.fstat(file.fileno()).st_size
            start = max(0, whole - size)
            file.seek(start)
            data = file.read(size)
    except OSError:
        return None
    if start:
        line = data.find(b"\n") + 1
        data, start = data[line:], start + line
    return Tail(data.decode(errors="replace"), start)
