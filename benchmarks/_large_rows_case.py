"""The memory of one step: python _large_rows_case.py MODEL ROWS TOKENS PART

Trains ROWS rows of TOKENS ids, half of them trained, in one micro-batch (PART is `step`), or only plans and
packs that micro-batch (`pack`). The rows share a prompt of a quarter of their ids, as the attempts of a group
do. The last line is JSON: `peak_mb`, what the process took beyond what it had before.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _training_step import NoTransfer
from datasets import Dataset
from transformers import AutoConfig

from swe_trainer_trl import compat
from swe_trainer_trl.journal.groups import Assessed, Row
from swe_trainer_trl.journal.journal import JOURNAL, Journal
from swe_trainer_trl.rollouts.messages import FeedOptions
from swe_trainer_trl.trainer import cpu_attention
from swe_trainer_trl.trainer.trainer import Trainer
from swe_trainer_trl.trainer.worker import TRLRolloutWorker

MB = 1 << 20


class Worker(TRLRolloutWorker):
    """Ours, without a process: all rows are in its journal, and reach the trainer as they always do."""

    def start(self) -> None:
        self._pump()

    def stop(self) -> None:
        """Nothing to stop."""

    def check_health(self, stale_after_s: float) -> None:
        raise RuntimeError("the trainer wants more rows than there are")


def rows(number: int, tokens: int, vocabulary: int) -> tuple[Row, ...]:
    """Rows of one group; no id is one of the special ones."""
    draw = np.random.default_rng(5)
    prompt = draw.integers(300, vocabulary - 50, tokens // 4)
    made = []
    for place in range(number):
        ids = np.concatenate([prompt, draw.integers(300, vocabulary - 50, tokens - len(prompt))])
        mask = (np.arange(tokens) >= tokens // 2).astype(np.int64)
        logprobs = np.where(mask, -6.0, 0.0).astype(np.float32)
        made.append(Row(f"r{place}", ids, mask, logprobs, (-1.0) ** place, 1, 1.0, 0, "start"))
    return tuple(made)


def memory(name: str) -> float:
    """`VmRSS` or `VmHWM` of this process, MB."""
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1024


def main(model: str, number: int, tokens: int, part: str) -> None:
    """See the module."""
    cpu_attention.install()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        journal = Journal(run / JOURNAL)
        made = rows(number, tokens, AutoConfig.from_pretrained(model).vocab_size)
        journal.raise_version(1, 0)
        journal.close_group(journal.open_group("task", number), Assessed(made, None, (), 1, 0.0, 1.0))
        del made
        options = FeedOptions(
            group_size=number,
            max_staleness=9,
            min_scored=1,
            keep_without_spread=True,
            give_up_after=4,
            groups_ahead=2,
            shuffle=False,
            seed=0,
            groups=1,
        )
        settings: Any = None  # it starts no rollouts
        worker = Worker(settings, run, journal, run / JOURNAL, options, 0, lambda: None, lambda: None)
        arguments = compat.AsyncGRPOConfig(
            output_dir=str(run / "checkpoints"),
            per_device_train_batch_size=number,
            gradient_accumulation_steps=1,
            token_budget=0,
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            vllm_server_base_url="http://127.0.0.1:9",
        )
        trainer = Trainer(
            worker=worker,
            journal=journal,
            metrics=run / "metrics.jsonl",
            groups=1,
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "?"}]),
            weight_transfer=NoTransfer(),
        )
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
        before, began = memory("VmRSS"), time.monotonic()
        if part == "step":
            trainer.train()
        else:
            packed(trainer)
        print(json.dumps({"peak_mb": memory("VmHWM") - before, "seconds": time.monotonic() - began}))
        journal.close()


def packed(trainer: Trainer) -> Any:
    """The micro-batch, from the journal to tensors."""
    trainer.state.max_steps = 1
    trainer.rollout_worker.start()
    loader = trainer.get_train_dataloader()
    return [loader.collate_fn([one]) for one in loader.dataset]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
