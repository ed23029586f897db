"""Make text from tasks, agents and models safe to print and to put into pages and tables."""

from __future__ import annotations

import re

# ECMA-48: CSI; the strings OSC, DCS, SOS, PM and APC up to their end; all other escapes. ESC may also be
# spelt as one C1 character.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
)
_LINE_END = re.compile(r"\r+\n|\r+")
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_UNSEENS = r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f"
"""Characters that change text direction, break lines invisibly or have no width, except the two joiners of
letters and emojis."""
_UNSEEN = re.compile(f"[{_UNSEENS}]")
_CLEAN = re.compile(f"[^{_CONTROLS}{_UNSEENS}]*+")
"""Text that is printable as it is: found in a thirtieth of the time that it takes to change it."""


def printable(text: str) -> str:
    """Return `text` without escape sequences and control characters except newline and tab.

    The result cannot move the cursor, change colours, or set the clipboard or title. Invisible characters
    (https://trojansource.codes) are spelt out.
    """
    if text.isascii() and text.isprintable():
        return text
    if _CLEAN.fullmatch(text):
        return text
    text = _LINE_END.sub("\n", _SEQUENCE.sub("", text))
    return _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", _CONTROL.sub("", text))


def one_line(text: str, width: int = 300) -> str:
    """Return `text` on one printable line of at most `width` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
