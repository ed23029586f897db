"""Checkpoints of sharded trainings.

Besides the model's files, accelerate writes the weights and the state of the optimizer in a form of its own.
A training resumes from that, so it must shard its weights as the checkpoint does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from swe_core.errors import ConfigError

_SHARDED = "pytorch_model_fsdp"
"""accelerate's `FSDP_MODEL_NAME`, with which its files begin."""


def check_sharding(checkpoint: Path, sharded: bool) -> None:
    """Refuse to resume from a checkpoint that is sharded otherwise.

    Raises:
        ConfigError: Only one of checkpoint and training is sharded.
    """
    was = any(checkpoint.glob(f"{_SHARDED}*"))
    if was != sharded:
        raise ConfigError(
            f"the checkpoint {str(checkpoint)!r} is of a training with worker.trl.sharding = "
            f"{'fsdp' if was else 'none'!r}, which a resume cannot change: set it to that"
        )


def refuse_stateless(grpo: Mapping[str, Any], sharded: bool) -> None:
    """Refuse a sharded optimizer without a state: torch fails to load one, so no resume would be possible.

    Args:
        grpo: `[worker.trl.grpo]`.

    Raises:
        ConfigError: The training is sharded, and its optimizer is SGD without momentum.
    """
    if sharded and grpo.get("optim") == "sgd" and "momentum" not in str(grpo.get("optim_args")):
        raise ConfigError(
            "a training with worker.trl.sharding = 'fsdp' and worker.trl.grpo.optim = 'sgd' could not be "
            "resumed: set worker.trl.grpo.optim_args to 'momentum=0.9', or choose another optimizer"
        )


@contextmanager
def unsharded(checkpoint: Path) -> Iterator[Path]:
    """Yield a directory with those files of `checkpoint` that one process reads; others are refused."""
    with TemporaryDirectory() as view:
        for path in checkpoint.absolute().iterdir():
            if not path.name.startswith(_SHARDED):
                (Path(view) / path.name).symlink_to(path)
        yield Path(view)
