"""Reverse a unified diff without the files that it changes.

Git cannot: `git apply -R` applies a reversed diff but prints none, and `git diff -R` needs both trees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

_HUNK = re.compile(r"(@@ -(\d+(?:,(\d+))?) \+(\d+(?:,(\d+))?) @@)(.*)", re.DOTALL)
_FILE = re.compile(r"^(?:diff --git |--- .*\n\+\+\+ )", re.MULTILINE)
_BLOCK = r"((?:literal|delta) \d+\n(?:.+\n)+\n)"
_HEADERS: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]] = (
    (r"^old mode (.+)\nnew mode (.+)$", r"old mode \2\nnew mode \1"),
    (r"^(?:(new)|deleted) file mode ", lambda found: f"{'deleted' if found[1] else 'new'} file mode "),
    (
        r'^diff --git .+\n((?:(?!diff ).+\n)*?)rename from ("?)(.+)\nrename to ("?)(.+)$',
        r"diff --git \4a/\5 \2b/\3\n\1rename from \4\5\nrename to \2\3",
    ),
    (r"^index ([0-9a-f]+)\.\.([0-9a-f]+)", r"index \2..\1"),
    (r"^--- (.+)\n\+\+\+ (.+)$", r"--- \2\n+++ \1"),
    (r'^--- ("?)b/', r"--- \1a/"),
    (r'^\+\+\+ ("?)a/', r"+++ \1b/"),
    (rf"^GIT binary patch\n{_BLOCK}{_BLOCK}", r"GIT binary patch\n\2\1"),
)
"""What stands between hunks, and its reverse."""
_IRREVERSIBLE = (
    (r"^@@ ", "the head of a hunk is malformed"),
    (r"^copy from ", "it copies a file"),
    (r"^Binary files ", "it changes a binary file without saying how"),
    (rf"^GIT binary patch\n(?!{_BLOCK}{_BLOCK})", "it holds one direction of a binary change only"),
)
_SIGNS = {"+": "-", "-": "+"}


class NotReversible(ValueError):
    """The diff is malformed, or does not hold what its reverse needs."""


def reversed_diff(diff: str) -> str:
    """Return the diff that takes `diff` back. Text that belongs to no file is left out.

    Raises:
        NotReversible: A hunk is malformed, or the diff copies a file, or it changes a binary file without
            both contents.
    """
    # "\ No newline at end of file" stays with the line before it, and a carriage return with its own.
    lines = iter(re.split(r"\n(?!\\)", diff.removesuffix("\n")))
    reverse, header = "", ""
    for line in lines:
        if head := _HUNK.fullmatch(line):
            reverse += _header(header) + f"@@ -{head[4]} +{head[2]} @@{head[6]}\n" + _body(head, lines)
            header = ""
        else:
            header += f"{line}\n"
    return reverse + _header(header)


def _header(text: str) -> str:
    for pattern, why in _IRREVERSIBLE:
        if re.search(pattern, text, re.MULTILINE):
            raise NotReversible(why)
    first = _FILE.search(text)
    text = text[first.start() :] if first else ""
    for pattern, reverse in _HEADERS:
        text = re.sub(pattern, reverse, text, flags=re.MULTILINE)
    return text


def _body(head: re.Match[str], lines: Iterator[str]) -> str:
    left = {"-": int(head[3] or 1), "+": int(head[5] or 1)}
    found = []
    while max(left.values()) > 0:
        line = next(lines, "@") or " "  # some tools strip the blank of an empty context line
        if line[0] not in "+- ":
            break
        for side in "-+" if line[0] == " " else line[0]:
            left[side] -= 1
        found.append(f"{_SIGNS.get(line[0], ' ')}{line[1:]}\n")
    if any(left.values()):
        raise NotReversible(f"the hunk {head[1]!r} does not have the lines that its head counts")
    runs = (run for _, run in groupby(found, key=lambda line: line[0] == " "))
    # In each run of changed lines, a diff removes before it adds.
    return "".join(line for run in runs for line in sorted(run, key=lambda line: line[0] == "+"))
