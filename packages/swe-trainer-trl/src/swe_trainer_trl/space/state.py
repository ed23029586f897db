"""What a deployed run says of itself: read from its run directory, where each step is a line."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import orjson

from swe_core.api.records import Record
from swe_core.system.printable import one_line
from swe_core.system.redaction import Redactor
from swe_trainer_trl.journal.checkpoints import METRICS_FILE
from swe_trainer_trl.launch import SERVER_LOG

Phase = Literal["starting", "serving", "training", "done", "failed", "stopped"]

_TAIL = 65_536
_LINES = 50
_WIDTH = 2000


class State(Record):
    """`/state`.

    Args:
        phase: "starting"; "serving" once vLLM is started; "training" from the first step; then how it ended.
        step: The trainer's, None before the first.
        resumed: Whether it went on with what was there.
        exit_code: Of `swe-core run`, once it has ended.
        lines: What it said last, oldest first.
    """

    phase: Phase
    step: int | None = None
    resumed: bool = False
    exit_code: int | None = None
    lines: tuple[str, ...] = ()


class Said:
    """The last lines that were said, without secrets and control characters.

    Args:
        secrets: What is replaced.
    """

    def __init__(self, secrets: Collection[str]) -> None:
        self._redactor = Redactor()
        for secret in secrets:
            self._redactor.add(secret)
        self._lines: deque[str] = deque(maxlen=_LINES)

    def add(self, text: str) -> str | None:
        """One line more.

        Returns:
            It as it may be shown; None where there is nothing to show.
        """
        # What a carriage return had overwritten, a progress bar's earlier states, is gone on a terminal too.
        shown = one_line(self._redactor.text(text.rstrip("\r\n").rpartition("\r")[2]), _WIDTH)
        if not shown:
            return None
        self._lines.append(shown)
        return shown

    @property
    def lines(self) -> tuple[str, ...]:
        """Oldest first."""
        return tuple(self._lines)


def phase_of(run: Path) -> tuple[Phase, int | None]:
    """How far the run in the directory `run` has come, and its last step."""
    step = _last_step(run / METRICS_FILE)
    if step:
        return "training", step
    return ("serving" if (run / SERVER_LOG).exists() else "starting"), None


def _last_step(file: Path) -> int | None:
    try:
        with file.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - _TAIL))
            tail = lines.read()
    except FileNotFoundError:
        return None
    for line in reversed(tail.splitlines()):
        try:
            return int(orjson.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue  # it is being written, or began before the tail
    return None
