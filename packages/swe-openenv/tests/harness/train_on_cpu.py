"""Run `train` of examples/trl_harness.py on the CPU, and keep the rows that reach the trainer:

    python train_on_cpu.py EXAMPLE MODEL ROLLOUTS ARGUMENTS OUT ROWS

ROLLOUTS and ARGUMENTS are JSON: the keywords of `SweSessionFactory`, and those of `AsyncGRPOConfig`.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from swe_trainer_trl import compat
from swe_trainer_trl.trainer import cpu_attention
from swe_trainer_trl.trainer.disk_weight_transfer import DiskWeightTransfer


class Recorder:
    """A queue that keeps what is taken from it."""

    def __init__(self, inner: Any, rows: list[dict[str, Any]]) -> None:
        self._inner = inner
        self._rows = rows

    def get(self, timeout: float) -> Any:
        sample = self._inner.get(timeout=timeout)
        row = {name: getattr(sample, name) for name in ("advantage", "model_version", "group_id", "metrics")}
        arrays = {name: getattr(sample, name).tolist() for name in ("input_ids", "completion_mask")}
        logprobs = [float(value) for value in sample.old_log_probs]
        self._rows.append({**row, **arrays, "old_log_probs": logprobs, "completion": sample.completion})
        return sample

    def qsize(self) -> int:
        size: int = self._inner.qsize()
        return size


def main(example: str, model: str, rollouts: str, arguments: str, out: str, rows: str) -> None:
    from transformers import AutoConfig

    cpu_attention.install()
    taken: list[dict[str, Any]] = []
    trainer: Any = compat.AsyncGRPOTrainer
    loader = trainer.get_train_dataloader

    def recorded(self: Any) -> Any:
        self.rollout_queue = Recorder(self.rollout_queue, taken)
        return loader(self)

    trainer.get_train_dataloader = recorded
    settings = compat.AsyncGRPOConfig(**json.loads(arguments))
    folder = Path(settings.output_dir) / "weights"
    transfer = DiskWeightTransfer(settings.vllm_server_base_url, folder, AutoConfig.from_pretrained(model))
    runpy.run_path(example)["train"](model, json.loads(rollouts), settings, transfer, out)
    Path(rows).write_text(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
