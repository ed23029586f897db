"""Two steps of the real trainer on this machine's GPU, against the same in 32 bits on the CPU.

python -m tests.gpu.steps MODEL DIRECTORY [--cpu]

No server is needed: the rows are made by packages/swe-trainer-trl/tests/trainer/rank_steps.py, which takes
plain gradient steps, so a weight moves by its gradients. Prints one JSON object: for each of `KINDS`, by how
much what was trained differs (the largest of all weights, relative to the change of that weight; of an
adapter, to the weight), and the largest difference of a trained id's log-probability.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from swe_testing.serving.start import FRUGAL

SCRIPT = Path(__file__).parents[2] / "packages/swe-trainer-trl/tests/trainer/rank_steps.py"
KINDS: Mapping[str, Mapping[str, Any]] = {
    "32 bits": {},
    "FSDP2": {"sharding": "fsdp"},
    "KL term": {"loss": {"beta": 0.1}},
    "adapter": {"lora": {"r": 4, "target_modules": "all-linear"}},
    "16 bits": {"grpo": {"bf16": True, "max_steps": 1}},
    "resumed": {"grpo": {"optim_args": "momentum=0.9"}},
    "FSDP2 resumed": {"sharding": "fsdp", "grpo": {"optim_args": "momentum=0.9"}},
}
"""Name → options of the script. In 16 bits other ratios are clipped after the first step. What is resumed is
the second step, from the checkpoint of the first, with an optimizer that has a state."""
_USUAL = {"processes": 1, "sharding": "none", "normalize": "rollout"}
_EXACT = {"bf16": False}


class Trained(NamedTuple):
    """What two steps changed, and what they computed.

    Args:
        moved: Name → change of a weight, or the weight itself if it is an adapter's.
        logprobs: Of every trained id, in order.
    """

    moved: Mapping[str, np.ndarray]
    logprobs: np.ndarray


def train(model: Path, out: Path, options: Mapping[str, Any], *, cpu: bool) -> Trained:
    """Run the script in a process of its own.

    Raises:
        RuntimeError: It failed; the message ends with what it said.
    """
    from safetensors.numpy import load_file

    out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(model), str(out), json.dumps(options)],
        env={**os.environ, **({**FRUGAL, "CUDA_VISIBLE_DEVICES": ""} if cpu else {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    (out / "stderr").write_text(done.stderr)
    if done.returncode != 0:
        raise RuntimeError(f"{json.dumps(options)}: {done.stderr[-3000:]}")
    rows = json.loads(done.stdout.splitlines()[-1])["trained"]
    logprobs = np.concatenate([row["logprobs"] for row in rows])
    adapter = out / "model" / "adapter_model.safetensors"
    if adapter.exists():
        return Trained(load_file(adapter), logprobs)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, out / "model"))
    return Trained({name: after[name] - before[name] for name in before}, logprobs)


def train_twice(model: Path, out: Path, options: Mapping[str, Any], *, cpu: bool) -> Trained:
    """Train, and take the last step again."""
    train(model, out, options, cpu=cpu)
    for trace in ("train.sqlite", "trained.jsonl"):
        (out / trace).unlink()
    shutil.rmtree(out / "model")
    return train(model, out, {**options, "resume": 1}, cpu=cpu)


def differences(got: Trained, expected: Trained) -> dict[str, float]:
    """Return the differences that `main` prints."""
    weights = max(
        float(np.linalg.norm(got.moved[name] - moved) / np.linalg.norm(moved))
        for name, moved in expected.moved.items()
    )
    return {
        "weights": weights,
        "logprobs": float(np.abs(got.logprobs - expected.logprobs[-len(got.logprobs) :]).max()),
    }


def main(model: Path, out: Path, cpu: bool) -> None:
    references: dict[str, Future[Trained]] = {}
    pairs = {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        for name, changed in KINDS.items():
            options = {**_USUAL, **changed, "grpo": _EXACT | changed.get("grpo", {})}
            run = train_twice if "resumed" in name else train
            got = pool.submit(run, model, out / name, options, cpu=cpu)
            exact = {**options, "sharding": "none", "grpo": options["grpo"] | _EXACT}
            text = json.dumps(exact)
            if text not in references:
                references[text] = pool.submit(train, model, out / f"{name} on the CPU", exact, cpu=True)
            pairs[name] = got, references[text]
    print(json.dumps({name: differences(got.result(), one.result()) for name, (got, one) in pairs.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--cpu" in sys.argv)
