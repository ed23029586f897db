"""One command trains in two processes with two vLLM servers, all of which it starts itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from swe_testing.serving.start import obstacle

from .training import check_records, toy_options, train
from .warm import Warm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.usefixtures("local_sandbox")]

GROUP = 4
STEPS = 6


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_processes_and_replicas_of_one_command(
    sharding: str, tmp_path: Path, tiny_model: Path, warm_trainer: Warm
) -> None:
    if (why := obstacle()) is not None:
        pytest.skip(f"vLLM cannot run here: {why}")
    grpo = {
        "max_steps": STEPS,
        "num_generations": GROUP,
        "per_device_train_batch_size": GROUP // 2,
        "learning_rate": 1e-3,
        "save_steps": 1,
        "save_total_limit": STEPS,
    }
    options = toy_options(tiny_model, None, grpo, tokens=8, letters=3)
    options += ["--set", "worker.trl.processes=2", "--set", f"worker.trl.sharding={sharding}"]
    options += ["--set", "worker.trl.server.replicas=2", "--set", "worker.trl.server.max_model_len=2048"]
    done = train(tmp_path / "run", *options, warm=warm_trainer)
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr

    def load(directory: Path) -> PreTrainedModel:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(directory, dtype="float32")

    checkpoints = [done.out / "checkpoints" / f"checkpoint-{step}" for step in range(1, STEPS)]
    rows = check_records(done.out, [load(tiny_model), *map(load, checkpoints)])
    assert [row.step for row in rows] == [step for step in range(1, STEPS + 1) for _ in range(GROUP)]
    assert {row.version for row in rows} >= {1, 2}
    assert done.announced() == STEPS + 1
    assert done.summary["tokens"]["unaccounted"] == 0
    assert done.report()["ledger"]["balanced"]
    for log in ("vllm.log", "vllm-2.log"):
        said = (done.out / log).read_text()
        assert said.count('"POST /v1/completions HTTP/1.1" 200') > 2, log
