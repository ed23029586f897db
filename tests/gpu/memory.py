"""Steps of the real trainer on rows as long as its plan expects: the memory that they take, and their time.

python -m tests.gpu.memory CASE DIRECTORY [--cpu]

The models have the shapes of published ones and random weights, which are written to DIRECTORY; the rows are
random too, a group to a forward pass, which has as many tokens as the plan counts. Every id but those of the
group's prompt is trained. No server is needed. Prints one JSON object, or says in it why the case was left
out. On the CPU a tiny model tries the script itself, without memory.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, TrainerCallback

from swe_testing.tokenizer import make_tokenizer
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.planning.cards import GIB, of_this_machine
from swe_trainer_trl.planning.training_plan import TrainingPlan, plan_training
from swe_trainer_trl.trainer import cpu_attention, train
from swe_trainer_trl.trainer.arguments import lora_config
from swe_trainer_trl.trainer.ranks import joined

from .cases import CASES

sys.path.insert(0, str(Path(__file__).parents[2] / "packages/swe-trainer-trl/tests"))
from planning.models import qwen3
from two_steps import GROUPS, Transfer, Worker, job_of

STEPS, ROWS = 3, 4
"""Steps, the last of which is measured, and rows of a group."""
_NO_SERVER = "http://127.0.0.1:9"
_TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 2000}


class _Silent(Transfer):
    def send_weights(self, iterator: Iterator[Any]) -> None:
        for _ in iterator:
            pass


class _Probe(TrainerCallback):
    """Measures a pass and an optimizer's step, from the first call of the GPU to the end of the last."""

    def __init__(self) -> None:
        self.held = self.begin = self.passed = self.end = 0.0

    def on_step_begin(self, *arguments: Any, **others: Any) -> None:
        self.begin = _now()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self.held = torch.cuda.memory_allocated() / GIB

    def on_pre_optimizer_step(self, *arguments: Any, **others: Any) -> None:
        self.passed = _now()

    def on_optimizer_step(self, *arguments: Any, **others: Any) -> None:
        self.end = _now()


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def rows(tokens: int, vocabulary: int) -> list[dict[str, Any]]:
    """Return groups of rows, each of which fills a forward pass. The log-probability is that of a guess."""
    draw = np.random.default_rng(7)
    shared = tokens // 8
    own = (tokens - shared) // ROWS - 1  # a branch costs an id more
    made = []
    for group in range(GROUPS):
        prompt = draw.integers(vocabulary, size=shared)
        for row in range(ROWS):
            mask = (np.arange(shared + own) >= shared).astype(np.int64)
            made.append(
                {
                    "input_ids": np.concatenate([prompt, draw.integers(vocabulary, size=own)]),
                    "completion_mask": mask,
                    "old_log_probs": (-math.log(vocabulary) * mask).astype(np.float32),
                    "advantage": 1.0 if row % 2 else -1.0,
                    "group_id": group,
                }
            )
    return made


def make(directory: Path, name: str, *, cpu: bool) -> Path:
    """Write a model with random weights and a tokenizer."""
    model = qwen3(directory, name, **(_TINY if cpu else {}))
    with torch.device("cpu" if cpu else "cuda"):
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model), dtype=torch.bfloat16)
    made.save_pretrained(model)
    make_tokenizer(("<|end|>",), eos_token="<|end|>", pad_token="<|end|>").save_pretrained(model)
    del made
    if not cpu:
        torch.cuda.empty_cache()
    return model


def trained(model: Path, out: Path, tokens: int, config: TRLConfig) -> dict[str, Any]:
    """Train `STEPS` steps, and return what the last one took."""
    cpu_attention.install()
    vocabulary = AutoConfig.from_pretrained(model).vocab_size
    journal = Journal(out / "train.sqlite")
    job = job_of(config, out, str(model))
    probe = _Probe()
    with joined(job) if config.sharding == "fsdp" else nullcontext((job.arguments(), None)) as (arguments, _):
        trainer = train._trainer(
            job,
            arguments,
            worker=Worker(rows(tokens, vocabulary), journal),
            journal=journal,
            groups=None,
            weight_transfer=_Silent(journal),
            adapter=lora_config(config),
        )
        trainer.add_callback(probe)
        train._run(trainer, job)
        (*_, last) = [line for line in trainer.state.log_history if "loss" in line]
        forwarded, passed = last["batch/forwarded_tokens_per_step"], probe.passed - probe.begin
        found = {
            "tokens of a pass": forwarded,
            "pass, s": passed,
            "optimizer, s": probe.end - probe.passed,
            "tokens/s of a pass": forwarded / passed,
            "ratio": last["ratio"],
            "TRL's pass, s": last["perf/fwd_bwd_s"],
        }
        if "perf/mfu_fwd_bwd" in last:  # TRL does not wait for the GPU
            found["FLOPs used in a pass, %"] = last["perf/mfu_fwd_bwd"] * last["perf/fwd_bwd_s"] / passed
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            reserved, most = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
            found |= {
                "between steps, GiB": probe.held,
                "most allocated, GiB": torch.cuda.max_memory_allocated() / GIB,
                "most reserved, GiB": most / GIB,
                "used of the GPU, GiB": (total - free - reserved + most) / GIB,
            }
    journal.close()
    return found


def plan(model: Path, config: TRLConfig, *, cpu: bool) -> TrainingPlan:
    cards = of_this_machine(() if cpu else ("0",))
    return plan_training(config, str(model), cards, url=_NO_SERVER, longest=None)


def main(name: str, directory: Path, cpu: bool) -> None:
    case = CASES[name]
    tokens = 512 if cpu else case.tokens
    grpo = {
        "max_steps": STEPS,
        "token_budget": tokens,
        "per_device_train_batch_size": ROWS,
        "gradient_accumulation_steps": 1,
        "num_generations": ROWS,
        "learning_rate": 1e-6,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **case.grpo,
    }
    config = TRLConfig(grpo=grpo, weight_sync="disk", **case.settings)
    directory.mkdir(parents=True)
    planned = plan(qwen3(directory, case.model, **(_TINY if cpu else {})), config, cpu=cpu)
    parts = {part: size / GIB for part, size in planned.trainer.items()}
    total = {"planned, GiB": sum(parts.values())}
    if planned.problem is not None:
        print(json.dumps({**total, "left out": planned.problem}))
        return
    model = make(directory, case.model, cpu=cpu)
    try:
        print(json.dumps({**total, **trained(model, directory, tokens, config), "parts, GiB": parts}))
    finally:
        shutil.rmtree(model)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "--cpu" in sys.argv)
