"""Train two steps on the CPU with several trainer processes: python rank_steps.py MODEL OUT OPTIONS

OPTIONS is a JSON object: processes, sharding, normalize, lora, loss, resume (the step of a checkpoint in
OUT), ends (the number of rows after which an epoch ends), and further keys of AsyncGRPOConfig in `grpo`.
Prints one JSON object: what was logged, and what the journal says of the rows. The trained model lies in
OUT/model. Without `ends` it waits for more rows after all.
"""

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from two_steps import GROUP, GROUPS, ROWS, STEPS, Transfer, Worker, job_of, rows

from swe_core.rollout.training_records import read_trained
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.trainer import cpu_attention, train
from swe_trainer_trl.trainer.arguments import lora_config
from swe_trainer_trl.trainer.ranks import joined

GRPO = {
    "max_steps": STEPS,
    "gradient_accumulation_steps": 2,
    "token_budget": 0,
    "epsilon_high": 0.28,
    # Each step changes the weights by its gradient, whose length is as it is.
    "optim": "sgd",
    "learning_rate": 0.5,
    "max_grad_norm": 1e9,
    "num_generations": GROUP,
    "save_steps": 1,
    "save_total_limit": 5,
    "report_to": "none",
    "disable_tqdm": True,
}


class Patient(Worker):
    """Has no more rows, and lets the trainer wait for them until another process has ended."""

    check_others: Callable[[], None]
    waits: Path
    """File that is there once the trainer waits."""

    def check_health(self, stale_after_s: float) -> None:
        self.waits.touch()
        self.check_others()


def main(model: str, out: str, given: str) -> None:
    cpu_attention.install()
    options = json.loads(given)
    processes = options["processes"]
    made = rows(model)
    for number, row in enumerate(made):  # sampled by another policy: ratios on both sides of the clip
        row["old_log_probs"] += row["completion_mask"] * (0.4 if number % 3 else -0.4)
    ends, step = options.get("ends"), options.get("resume", 0)
    made = made[step * ROWS : ends]
    journal = Journal(Path(out) / "train.sqlite")
    worker, transfer = Patient(made, journal), Transfer(journal)
    worker.waits = Path(out) / "waits"
    if ends is not None:
        worker.rollout_buffer.end()
    grpo = {**GRPO, "per_device_train_batch_size": ROWS // 2 // processes, **options.get("grpo", {})}
    config = TRLConfig(
        grpo=grpo,
        processes=processes,
        sharding=options["sharding"],
        normalize=options["normalize"],
        lora=options.get("lora"),
        loss=options.get("loss", {}),
        weight_sync="disk",
    )
    job = job_of(config, Path(out), model, step, processes)
    with joined(job) as (arguments, worker.check_others):
        trainer = train._trainer(
            job,
            arguments,
            worker=worker,
            journal=journal,
            groups=None if ends is None else GROUPS,
            weight_transfer=transfer,
            adapter=lora_config(config),
        )
        train._run(trainer, job)
        trainer.save_model(str(Path(out) / "model"))
    journal.close()
    with closing(sqlite3.connect(Path(out) / "train.sqlite")) as database:
        fates = database.execute("SELECT step, dropped FROM rows ORDER BY id").fetchall()
    answer = {
        "calls": transfer.calls,
        "logs": [line for line in trainer.state.log_history if "loss" in line],
        "steps": [step for step, _ in fates],
        "dropped": [dropped for _, dropped in fates],
        "trained": [row.model_dump() for row in read_trained(Path(out))],
        "names_sent": transfer.names,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
