"""Checkpoints of a training: where they lie, and which of them are whole."""

from __future__ import annotations

from pathlib import Path

import orjson

CHECKPOINTS = "checkpoints"
MODEL = "model"
METRICS_FILE = "metrics.jsonl"
"""In the run directory. The last one is what the trainer logs, an object a line."""

_PREFIX = "checkpoint-"
"""transformers' `PREFIX_CHECKPOINT_DIR` and a hyphen."""


def last_checkpoint(directory: Path) -> tuple[Path | None, int]:
    """The last checkpoint in `directory` that is whole, and its step; none is step 0.

    The trainer writes `trainer_state.json` last, so one without it was cut short by a crash.
    """
    step, path = max(checkpoints(directory), default=(0, None))
    return path, step


def checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Step and directory of each whole checkpoint."""
    return [
        (int(path.name.removeprefix(_PREFIX)), path)
        for path in directory.glob(f"{_PREFIX}*")
        if path.name.removeprefix(_PREFIX).isdecimal() and _is_whole(path / "trainer_state.json")
    ]


def _is_whole(state: Path) -> bool:
    try:
        orjson.loads(state.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    return True
