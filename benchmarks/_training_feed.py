"""Feeds one side's rows to the consumer that both share: python _training_feed.py swe_core|trl CONFIG.json

It is the trainer's process of one measurement. It starts the side's worker, takes rows as a trainer does, and
once `warm` groups have come measures until `groups` more have: wall time, the processor time of this process,
which is the trainer's share, and that of the processes that the worker has started. The last line that it
prints is JSON.
"""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

STALE_AFTER = 300.0


def make_swe_core(config: dict[str, Any]) -> Any:
    """Our worker."""
    from _training_worker_ours import JOURNAL, light_worker

    from swe_trainer_trl.journal.journal import Journal

    folder = Path(config["folder"])
    return light_worker(
        folder,
        Journal(folder / JOURNAL),
        config,
        calls=1,
        pause=0.0,
        queue_rows=config["queue_rows"],
        groups_ahead=(config["concurrency"] + config["queue_rows"]) // config["group_size"],
    )


def make_trl(config: dict[str, Any]) -> Any:
    """TRL's own worker, as its trainer makes it."""
    from _light_rollouts import Statements, StatementsConfig
    from accelerate import PartialState
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker

    from swe_core.rollout.agent_run import build_prompt

    PartialState()  # its log wants it, and a trainer has it
    tokenizer = AutoTokenizer.from_pretrained(config["model_directory"])
    tasks = Statements(StatementsConfig(file=config["statements"])).tasks()
    prompts = [{"prompt": [{"role": "user", "content": build_prompt(task)}]} for task in tasks]
    return AsyncRolloutWorker(
        model_name=config["model"],
        dataset=Dataset.from_list(prompts),
        reward_funcs=[coin],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=config["group_size"],
        max_inflight_tasks=config["concurrency"],
        queue_maxsize=config["queue_rows"],
        vllm_server_url=config["upstream"],
        max_tokens=1024,
    )


def coin(completions: Sequence[Any], **_: Any) -> list[float]:
    """The reward of TRL's side; its worker pickles it by name."""
    return [float(random.random() < 0.5) for _ in completions]


class Consumer:
    """What a trainer does with a worker besides training."""

    def __init__(self, worker: Any, group_size: int) -> None:
        self._worker = worker
        self._group_size = group_size
        self.ids = self.trained = self.rows = 0

    def take(self, groups: int) -> None:
        """Take the rows of so many groups."""
        for _ in range(groups * self._group_size):
            while True:
                try:
                    sample = self._worker.rollout_buffer.get(timeout=5.0)
                except queue.Empty:
                    self._worker.check_health(STALE_AFTER)
                else:
                    break
            self.rows += 1
            self.ids += len(sample.input_ids)
            self.trained += int(sample.completion_mask.sum())
            with suppress(queue.Empty):
                while True:
                    self._worker.metrics_queue.get_nowait()


def stop(worker: Any) -> None:
    """Stop it, and take what still comes: TRL's waits for its queue to be read."""
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    while stopping.is_alive():
        with suppress(queue.Empty):
            worker.rollout_buffer.get(timeout=0.1)


def processor_clocks(parent: int) -> Callable[[], float]:
    """The processor time so far of all descendants of `parent` that live now, seconds, to the nanosecond."""
    import psutil
    from _proxies import processor_clock

    clocks = [processor_clock(child.pid) for child in psutil.Process(parent).children(recursive=True)]
    return lambda: sum(time.clock_gettime(clock) for clock in clocks)


def main() -> None:
    side, config = sys.argv[1], json.loads(Path(sys.argv[2]).read_bytes())
    worker = {"swe_core": make_swe_core, "trl": make_trl}[side](config)
    consumer = Consumer(worker, config["group_size"])
    began = time.monotonic()
    worker.update_model_version(1)
    worker.start()
    try:
        consumer.take(1)
        first = time.monotonic() - began
        consumer.take(config["warm"])
        consumer.ids = consumer.trained = consumer.rows = 0
        children = processor_clocks(os.getpid())
        before = time.monotonic(), time.process_time(), children()
        consumer.take(config["groups"])
        after = time.monotonic(), time.process_time(), children()
    finally:
        stop(worker)
    wall, trainer, worker_cpu = (
        (end - start) / config["groups"] for start, end in zip(before, after, strict=True)
    )
    print(
        json.dumps(
            {
                "wall": wall,
                "trainer": trainer,
                "worker": worker_cpu,
                "first": first,
                "ids": consumer.ids / consumer.rows,
                "trained": consumer.trained / consumer.rows,
            }
        )
    )


if __name__ == "__main__":
    main()
