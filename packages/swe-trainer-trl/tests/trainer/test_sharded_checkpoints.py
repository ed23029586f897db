"""Checkpoints of sharded trainings, and of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.errors import ConfigError
from swe_trainer_trl.trainer.sharded_checkpoints import check_sharding, refuse_stateless, unsharded

PLAIN = ["config.json", "model.safetensors", "optimizer.pt"]
SHARDED = [*PLAIN, "pytorch_model_fsdp.bin"]


def checkpoint(path: Path, names: list[str]) -> Path:
    for name in names:
        (path / name).write_text(name)
    return path


@pytest.mark.parametrize(("names", "sharded", "was"), [(PLAIN, True, "none"), (SHARDED, False, "fsdp")])
def test_checkpoint_of_another_sharding_is_refused(names, sharded, was, tmp_path):
    path = checkpoint(tmp_path, names)
    check_sharding(path, not sharded)
    said = f"with worker.trl.sharding = '{was}', which a resume cannot change"
    with pytest.raises(ConfigError, match=said):
        check_sharding(path, sharded)


def test_one_process_reads_the_whole_weights_of_a_sharded_checkpoint(tmp_path):
    with unsharded(checkpoint(tmp_path, SHARDED)) as view:
        assert sorted(path.name for path in view.iterdir()) == PLAIN
        assert (view / "model.safetensors").read_text() == "model.safetensors"


def test_optimizer_that_cannot_be_resumed_is_refused():
    refuse_stateless({}, True)
    refuse_stateless({"optim": "sgd"}, False)
    refuse_stateless({"optim": "sgd", "optim_args": "momentum=0.5"}, True)
    with pytest.raises(ConfigError, match=r"could not be resumed: set worker\.trl\.grpo\.optim_args to"):
        refuse_stateless({"optim": "sgd"}, True)
