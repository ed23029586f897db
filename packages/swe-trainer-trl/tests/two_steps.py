"""Train two steps on the CPU with the TRL that is first on the path:

    python two_steps.py MODEL OUT [--hide-vllm]

Prints one JSON object: what the trainer asked of a worker and of a weight transfer, what it logged, and which
rows the journal says were trained.
"""

import dataclasses
import inspect
import json
import queue
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

if "--hide-vllm" in sys.argv:
    sys.modules["vllm"] = None  # importlib's way to say that it is not there

from swe_core.rollout.training_records import read_trained
from swe_trainer_trl import compat
from swe_trainer_trl.journal.groups import Assessed, Row
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.normalization import Part
from swe_trainer_trl.trainer import cpu_attention
from swe_trainer_trl.trainer.row_queue import Item, RowBuffer
from swe_trainer_trl.trainer.trainer import Trainer

STEPS, ROWS = 2, 4
GROUP = 2  # rows with one prompt
GROUPS = (STEPS + 1) * ROWS // GROUP  # accelerate takes the rows of one step ahead


def rows(model: str) -> list[dict]:
    """Rows of several lengths, with shared prompts, and with the log-probabilities that a plain forward of
    each row alone gives them."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    draw = np.random.default_rng(7)
    made = []
    for group in range(GROUPS):
        prompt = draw.integers(300, 700, 5 + group)
        for row in range(GROUP):
            ids = np.concatenate([prompt, draw.integers(300, 700, 6 + 3 * row)])
            mask = (np.arange(len(ids)) >= len(prompt)).astype(np.int64)
            mask[len(prompt) + 2] = 0  # as a tool's reply between two turns is
            with torch.no_grad():
                logits = network(torch.from_numpy(ids)[None]).logits[0, :-1]
            logprobs = logits.log_softmax(-1).gather(1, torch.from_numpy(ids)[1:, None])[:, 0].numpy()
            sampled = np.concatenate([[0.0], logprobs]).astype(np.float32) * mask.astype(np.float32)
            arrays = {"input_ids": ids, "completion_mask": mask, "old_log_probs": sampled}
            made.append({**arrays, "advantage": 1.0 - 1.5 * row, "group_id": group})
    return made


class Worker:
    """Has every row in its buffer from the start, and in the journal."""

    def __init__(self, made: list[dict], journal: Journal) -> None:
        self.version = 0
        self.rollout_buffer = RowBuffer(0, lambda: self.version, 4, lambda item: None, lambda group: None)
        self.metrics_queue: queue.Queue = queue.Queue()
        self.metrics_queue.put({"rollouts/running": 3.0})
        self.calls: list = []
        for number in range(GROUPS):
            group = journal.open_group("task", GROUP)
            of_group = [row for row in made if row["group_id"] == number]
            kept = [
                Row(f"r{place}", *(row[key] for key in _ROW), 1, row["advantage"], place, "start")
                for place, row in enumerate(of_group)
            ]
            journal.close_group(group, Assessed(tuple(kept), None, (), 1, 0.0, 1.0))
        for ready in journal.ready(limit=GROUPS):
            of_group = [row for row in made if row["group_id"] == ready.id]
            rows = zip(ready.rows, of_group, strict=True)
            items = [item(ready.id, row_id, stored, row) for (row_id, stored), row in rows]
            self.rollout_buffer.put_group(items, 0)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def update_model_version(self, model_version: int) -> None:
        self.version = model_version
        self.calls.append(model_version)

    def check_health(self, stale_after_s: float) -> None:
        raise AssertionError("the queue was never empty for long")


_ROW = ("input_ids", "completion_mask", "old_log_probs", "advantage")


def item(group: int, row_id: int, stored: Row, row: dict) -> Item:
    """A row on its way to the trainer."""
    sample = compat.make_sample(
        **row,
        prompt=[{"role": "user", "content": "?"}],
        completion=[{"role": "assistant", "content": "!"}],
        model_version=1,
        metrics={"reward": row["advantage"]},
        enqueued_at=time.time(),
    )
    tokens = int(row["completion_mask"].sum())
    part = Part(f"r{row_id}", tokens, tokens)
    return Item(row_id, group, part, 1, sample, stored.chain, stored.cause, stored.advantage)


class Transfer:
    """Takes the weights, and looks at them."""

    def __init__(self, journal: Journal) -> None:
        self.calls: list[str] = []
        self.names: list[list[str]] = []
        self.versions: list[int] = []
        self._journal = journal

    def init_weight_transfer(self) -> None:
        self.calls.append("init")

    def pause(self) -> None:
        self.calls.append("pause")

    def send_weights(self, iterator) -> None:
        self.calls.append("send")
        self.versions.append(self._journal.version)
        self.names.append(sorted(name for name, tensor in iterator if tensor.isfinite().all()))

    def resume(self) -> None:
        self.calls.append("resume")

    def destroy(self) -> None:
        self.calls.append("destroy")


def trainer_of(
    worker: Worker, journal: Journal, model: str, out: Path, groups: int | None, **given
) -> Trainer:
    """A trainer on the CPU that takes the rows of this worker; further arguments are of AsyncGRPOConfig."""
    cpu_attention.install()
    settings = {"bf16": False, "use_cpu": True, "num_generations": GROUP, "learning_rate": 1e-3}
    settings |= {
        "report_to": "none",
        "output_dir": str(out / "checkpoints"),
        "vllm_server_base_url": "http://127.0.0.1:9",
    }
    return Trainer(
        worker=worker,
        journal=journal,
        metrics=out / "metrics.jsonl",
        groups=groups,
        model=model,
        args=compat.AsyncGRPOConfig(**settings | given),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}]}] * GROUPS),
        weight_transfer=Transfer(journal),
    )


def job_of(config, out: Path, model: str, step: int = 0, processes: int = 1):
    """A training of these rows in `out`, from the checkpoint of a step on."""
    from swe_trainer_trl.trainer.ranks import RankJob  # old versions of TRL train in one process alone

    return RankJob(
        config=config,
        directory=out,
        output_dir=out / "checkpoints",
        group_size=None,
        defaults={},
        over=False,
        model=model,
        tasks=[f"task-{number}" for number in range(GROUPS)],
        processes=processes,
        checkpoint=out / f"checkpoints/checkpoint-{step}" if step else None,
    )


def members(protocol: type) -> dict[str, list[str]]:
    """The methods of a protocol with the names of their parameters."""
    methods = inspect.getmembers(protocol, lambda one: inspect.isfunction(one) and one.__name__[0] != "_")
    return {name: list(inspect.signature(method).parameters) for name, method in methods}


def main(model: str, out: str) -> None:
    cpu_attention.install()  # and again, which does nothing
    made = rows(model)
    journal = Journal(Path(out) / "train.sqlite")
    worker = Worker(made, journal)
    settings = {"max_steps": STEPS, "per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 1}
    settings |= {"weight_sync_steps": 1, "max_staleness": 4, "token_budget": 0, "temperature": 1.0}
    settings |= {"epsilon": 0.2, "epsilon_high": 0.28, "max_completion_length": 64, "queue_maxsize": 64}
    settings |= {"heartbeat_stale_after_s": 60.0, "vllm_server_timeout": 1.0, "request_timeout": 10}
    settings |= {"lr_scheduler_type": "constant", "logging_steps": 1, "save_steps": STEPS, "seed": 0}
    trainer = trainer_of(worker, journal, model, Path(out), None, disable_tqdm=True, **settings)
    transfer = trainer.weight_transfer
    trainer.train()
    journal.close()
    with closing(sqlite3.connect(Path(out) / "train.sqlite")) as database:
        steps = [step for (step,) in database.execute("SELECT step FROM rows ORDER BY id")]
    network = AutoModelForCausalLM.from_pretrained(model)
    answer = {
        "version": compat.TRL_VERSION,
        "lora": compat.LORA,
        "worker": members(compat.RolloutWorkerProtocol),
        "transfer": members(compat.WeightTransferProtocol),
        "sample": [field.name for field in dataclasses.fields(compat.RolloutSample)],
        "worker_calls": worker.calls,
        "transfer_calls": transfer.calls,
        "names_sent": transfer.names,
        "versions_kept": transfer.versions,
        "names": sorted(name for name, _ in network.named_parameters()),
        "logs": trainer.state.log_history,
        "kept": [json.loads(line)["values"] for line in Path(out, "metrics.jsonl").read_text().splitlines()],
        "steps": steps,
        "trained": [row.model_dump() for row in read_trained(Path(out))],
        "sampled": {
            f"r{number}": row["old_log_probs"][row["completion_mask"] != 0].tolist()
            for number, row in enumerate(made, 1)
        },
        "checkpoints": sorted(path.name for path in Path(out).glob("checkpoints/checkpoint-*")),
        # Where the ratio is 1, the loss is the mean of minus the advantage over the rollouts, of a row each.
        "first_loss": -sum(row["advantage"] for row in made[:ROWS]) / ROWS,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:3])
