"""What a step costs the trainer's process: python _training_step.py CONFIG.json

It trains the same rows in turns with TRL's trainer alone, whose queue holds them all from the start, and with
ours beside a process in which agents talk, whose journal holds them from the start. Measured is the processor
time of this process, all threads, from the end of the first step to the end of the last. The last line is
JSON.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _training_worker_ours import JOURNAL, NEVER_STALE, RUN, light_worker
from datasets import Dataset
from transformers import TrainerCallback

from swe_core.api.chain import Chain
from swe_trainer_trl import compat
from swe_trainer_trl.journal.groups import Member, assess
from swe_trainer_trl.journal.journal import Journal, ReadyGroup
from swe_trainer_trl.trainer import cpu_attention
from swe_trainer_trl.trainer.trainer import Trainer
from swe_trainer_trl.trainer.worker import TRLRolloutWorker

STEP_ROWS, ROW, SAMPLED = 8, 512, 128
"""Rows of a step, ids of a row, and how many of these are trained."""
START_SECONDS = 120.0


class NoTransfer:
    """Sends weights to nobody."""

    def init_weight_transfer(self) -> None:
        """Nothing to open."""

    def pause(self) -> None:
        """Nothing to pause."""

    def send_weights(self, iterator: Iterator[Any]) -> None:
        """They are not looked at."""

    def resume(self) -> None:
        """Nothing was paused."""

    def destroy(self) -> None:
        """Nothing was opened."""


class Ready:
    """A worker that does nothing: all rows are in its queue."""

    def __init__(self, groups: list[ReadyGroup]) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        for group in groups:
            for _, row in group.rows:
                sample = compat.make_sample(
                    prompt=[],
                    completion=[],
                    input_ids=row.input_ids,
                    completion_mask=row.completion_mask,
                    old_log_probs=row.old_log_probs,
                    advantage=row.advantage,
                    model_version=row.update,
                    group_id=group.id,
                    metrics={"sample/reward": row.reward},
                    enqueued_at=time.time(),
                )
                self.rollout_buffer.put(sample)

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def update_model_version(self, model_version: int) -> None:
        """Nobody asks for it."""

    def check_health(self, stale_after_s: float) -> None:
        """Asked when the queue was empty for a while."""
        raise RuntimeError("the trainer wants more rows than there are")


class Clock(TrainerCallback):
    """Measures, from the end of the first step on."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append((time.process_time(), time.monotonic()))

    def a_step(self) -> tuple[float, float]:
        """Processor time and wall time, seconds."""
        first, last = self.times[0], self.times[-1]
        return (last[0] - first[0]) / (len(self.times) - 1), (last[1] - first[1]) / (len(self.times) - 1)


class Talking(TrainerCallback):
    """Holds up the first step until all agents talk."""

    def __init__(self, worker: TRLRolloutWorker, directory: Path, agents: int) -> None:
        self._worker = worker
        self._directory = directory
        self._agents = agents

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        until = time.monotonic() + START_SECONDS
        while len(list(self._directory.glob("rollouts/*/turns.jsonl"))) < self._agents:
            self._worker.check_health(START_SECONDS)
            if time.monotonic() > until:
                raise RuntimeError(f"fewer than {self._agents} agents talk after {START_SECONDS:g} s")
            time.sleep(0.1)


def fill(journal: Journal, config: dict[str, Any]) -> int:
    """Put the rows of all steps into the journal, and of two more, since a step is loaded ahead.

    Returns:
        How many groups they are.
    """
    draw, size = np.random.default_rng(0), config["group_size"]
    groups = -(-(config["steps"] + 3) * STEP_ROWS // size)
    mask = np.arange(ROW) >= ROW - SAMPLED
    for _ in range(groups):
        number = journal.open_group("statement-0", size)
        members = [
            Member(
                f"before-{number}-{attempt}",
                attempt,
                float(attempt % 2),
                (
                    Chain(
                        (0,),
                        draw.integers(0, 1000, ROW, np.int32),
                        mask,
                        np.where(mask, np.float32(-7), np.float32(0)),
                        np.where(mask, np.int32(1), np.int32(-1)),
                        "start",
                    ),
                ),
                1,
                1,
            )
            for attempt in range(size)
        ]
        for member in members:
            journal.add_member(number, member)
        rules = {"update": 1, "max_staleness": NEVER_STALE, "min_scored": 2, "keep_without_spread": False}
        journal.close_group(number, assess(members, **rules))
    return groups


def arguments(config: dict[str, Any], folder: Path) -> Any:
    """Of a training on the CPU."""
    return compat.AsyncGRPOConfig(
        output_dir=str(folder / "checkpoints"),
        max_steps=config["steps"] + 1,
        per_device_train_batch_size=STEP_ROWS,
        gradient_accumulation_steps=1,
        weight_sync_steps=1,
        max_staleness=NEVER_STALE,
        token_budget=0,
        num_generations=config["group_size"],
        heartbeat_stale_after_s=START_SECONDS,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )


def train(config: dict[str, Any], folder: Path, agents: int) -> tuple[float, float]:
    """One training; processor time and wall time of a step. Without agents it is TRL's trainer alone."""
    folder.mkdir()
    journal = Journal(folder / JOURNAL)
    groups = fill(journal, config)
    clock = Clock()
    common = {
        "model": config["model_directory"],
        "args": arguments(config, folder),
        "train_dataset": Dataset.from_list([{"prompt": "none"}] * groups),
        "weight_transfer": NoTransfer(),
        "callbacks": [clock],
    }
    if agents:
        worker = light_worker(
            folder,
            journal,
            {**config, "concurrency": agents},
            calls=config["calls"],
            pause=config["pause"],
            queue_rows=2 * groups * config["group_size"],
            groups_ahead=groups + agents // config["group_size"],
        )
        metrics = folder / "metrics.jsonl"
        trainer = Trainer(worker=worker, journal=journal, metrics=metrics, groups=None, **common)
        trainer.add_callback(Talking(worker, folder / RUN, agents))
    else:
        trainer = compat.AsyncGRPOTrainer(rollout_worker=Ready(journal.ready(limit=groups)), **common)
    try:
        trainer.train()
    finally:
        trainer.rollout_worker.stop()
        journal.close()
    return clock.a_step()


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_bytes())
    torch.set_num_threads(1)  # idle threads of torch spin, which counts as processor time
    cpu_attention.install()
    sides: dict[str, list[tuple[float, float]]] = {"alone": [], "agents": []}
    for round_ in range(config["rounds"]):
        order = list(sides) if round_ % 2 == 0 else list(sides)[::-1]
        for side in order:
            folder = Path(config["folder"], f"{side}-{round_}")
            sides[side].append(train(config, folder, config["agents"] if side == "agents" else 0))
    print(json.dumps(sides))


if __name__ == "__main__":
    main()
