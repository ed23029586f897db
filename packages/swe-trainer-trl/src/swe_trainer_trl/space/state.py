"""The state of a deployed run, read from its run directory."""

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
    """The reply of `/state`.

    Args:
        phase: "starting"; "serving" after the start of vLLM; "training" from the first step; then how the run
            ended.
        step: Last step of the trainer; None before the first one.
        resumed: Whether the run was resumed.
        exit_code: Exit code of `swe-core run`; None before its end.
        lines: Last lines of the output, oldest first.
    """

    phase: Phase
    step: int | None = None
    resumed: bool = False
    exit_code: int | None = None
    lines: tuple[str, ...] = ()


class Said:
    """The last lines of the output, without secrets and control characters.

    Args:
        secrets: Values to replace.
    """

    def __init__(self, secrets: Collection[str]) -> None:
        self._redactor = Redactor()
        for secret in secrets:
            self._redactor.add(secret)
        self._lines: deque[str] = deque(maxlen=_LINES)

    def add(self, text: str) -> str | None:
        """Add a line.

        Returns:
            The line in the form that may be shown; None if it is empty.
        """
        # Keep the text after the last carriage return only, as a terminal does with a progress bar.
        shown = one_line(self._redactor.text(text.rstrip("\r\n").rpartition("\r")[2]), _WIDTH)
        if not shown:
            return None
        self._lines.append(shown)
        return shown

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, oldest first."""
        return tuple(self._lines)


def phase_of(run: Path) -> tuple[Phase, int | None]:
    """Return the phase of the run in the directory `run`, and its last step."""
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
            continue  # the line is incomplete, or began before the tail
    return None
