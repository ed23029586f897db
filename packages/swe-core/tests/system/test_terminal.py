"""Text from a sandbox has no effect on the terminal that shows it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from swe_core.api.records import Failure
from swe_core.cli.progress import LiveProgress, PlainProgress
from swe_core.system.printable import one_line, printable
from swe_testing.records import make_rollout

_NASTY = st.text(st.sampled_from("\x1b\x9b\x9d\x90\x9c\x07\x00\x08\r\n\t[]0;31mPX^_\\a\u202e\u2066 "))


@given(st.one_of(st.text(), _NASTY))
def test_printable_text_has_no_terminal_controls(text: str) -> None:
    left = printable(text)
    assert [char for char in left if unicodedata.category(char) == "Cc" and char not in "\n\t"] == []
    assert not set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c") & set(left)
    assert printable(left) == left


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert printable(f"{text}\n\t{text}") == f"{text}\n\t{text}"


def test_escape_sequences_are_removed() -> None:
    for text, left in (
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b2Jgone", "gone"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1bP1$r0m\x1b\\after", "after"),
        ("\x1b]0;never ended\nnext line", "\nnext line"),
        ("\x1bcreset\x1b(B", "reset"),
        ("one\r\ntwo\rthree\r\r\nfour", "one\ntwo\nthree\nfour"),
        ("a\x08b\x00c\x7f", "abc"),
        ("\x1b\x1b[31m[32m", "[32m"),
        ("if a:\u202e } \u2066", "if a:<U+202E> } <U+2066>"),
    ):
        assert printable(text) == left


def test_progress_shows_failures_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure(boundary="sandbox", type="SandboxError", message="it said\n\x1b[2J\x07no")
    rollout = make_rollout(outcome="error", failure=failure)
    console = Console(force_terminal=True, width=200, color_system=None)
    PlainProgress([]).finished(rollout)
    LiveProgress([], console).finished(rollout)
    shown = capsys.readouterr()
    assert "t-0: error (sandbox: it said no), 0 turns" in shown.err
    assert "t-0  0 turns, 1.0 s sandbox: it said no" in shown.out
    assert "\x1b[2J" not in shown.err + shown.out


def test_one_line_joins_lines() -> None:
    assert one_line("a\n\x1b[1m b\t c\r\n") == "a b c"
    assert one_line("x" * 400) == "x" * 299 + "…"
