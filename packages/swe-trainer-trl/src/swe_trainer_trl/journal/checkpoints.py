"""Finds complete checkpoints of a training."""

from __future__ import annotations

from pathlib import Path

import orjson

CHECKPOINTS = "checkpoints"
MODEL = "model"
METRICS_FILE = "metrics.jsonl"
"""Names in the run directory. The last file has the trainer's log, one object per line."""

_PREFIX = "checkpoint-"
"""transformers' `PREFIX_CHECKPOINT_DIR` and a hyphen."""


def last_checkpoint(directory: Path) -> tuple[Path | None, int]:
    """Return the last complete checkpoint in `directory` and its step; None and 0 without one.

    The trainer writes `trainer_state.json` last, so a checkpoint without it is incomplete.
    """
    step, path = max(checkpoints(directory), default=(0, None))
    return path, step


def checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Return step and directory of each complete checkpoint."""
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
