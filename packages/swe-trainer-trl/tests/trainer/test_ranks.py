"""Several trainer processes compute what one computes, and end together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from swe_testing.serving.start import FRUGAL
from swe_testing.waiting import until

SCRIPT = str(Path(__file__).with_name("rank_steps.py"))
CLOSE = 1e-4
"""Relative difference of gradients: processes add up in another order."""
BOTH = [pytest.param("none", marks=pytest.mark.long), "fsdp"]


@dataclass(frozen=True)
class Trained:
    """A training of two steps: what its script says, and how far its weights went, or the whole adapter."""

    said: dict[str, Any]
    moved: dict[str, np.ndarray]


def start(model: Path, out: Path, **options: Any) -> subprocess.Popen[str]:
    out.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, SCRIPT, str(model), str(out), json.dumps(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **FRUGAL},
    )


def steps(model: Path, out: Path, **options: Any) -> Trained:
    """Train with these options."""
    from safetensors.numpy import load_file

    stdout, stderr = start(model, out, **options).communicate(timeout=600)
    logs = "".join(log.read_text() for log in out.glob("trainer-*.log"))
    assert stdout.splitlines(), f"{stderr}\n{logs}"
    adapter = out / "model" / "adapter_model.safetensors"
    if adapter.exists():
        moved = load_file(adapter)
    else:
        before, after = (load_file(folder / "model.safetensors") for folder in (model, out / "model"))
        moved = {name: after[name] - before[name] for name in before}
    return Trained(json.loads(stdout.splitlines()[-1]), moved)


@pytest.fixture(scope="module", params=["rollout", pytest.param("token", marks=pytest.mark.long)])
def alone(request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: Any) -> tuple[str, Trained]:
    """What one process computes, for each way to weigh ids."""
    out = tmp_path_factory.mktemp("alone")
    return request.param, steps(tiny_model, out, processes=1, sharding="none", normalize=request.param)


def check_equal(one: Trained, other: Trained) -> None:
    """Both trained the same rows with the same weights, and went the same way."""
    assert other.said["steps"] == one.said["steps"] == [1] * 4 + [2] * 4 + [None] * 4
    assert other.said["calls"] == one.said["calls"]
    assert other.said["names_sent"] == one.said["names_sent"]
    assert other.moved.keys() == one.moved.keys()
    for name, moved in one.moved.items():
        size = np.linalg.norm(moved)
        assert size > 0, name
        assert np.linalg.norm(other.moved[name] - moved) < CLOSE * size, name
    for given, expected in zip(other.said["logs"], one.said["logs"], strict=True):
        for name in ("loss", "grad_norm", "ratio", "entropy", "clip_ratio/region_mean"):
            assert given[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), name
        for name in ("batch/rollouts_per_step", "batch/rollout_weight_max", "batch/trained_tokens_per_step"):
            assert given[name] == expected[name]
    assert len(other.said["trained"]) == 8
    for row, same in zip(other.said["trained"], one.said["trained"], strict=True):
        logprobs, wanted = row.pop("logprobs"), same["logprobs"]
        assert row == {name: value for name, value in same.items() if name != "logprobs"}
        assert logprobs == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("sharding", ["none", pytest.param("fsdp", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_gradient_of_two_processes_is_that_of_one(alone, sharding, tiny_model, tmp_path):
    normalize, expected = alone
    options = {"processes": 2, "sharding": sharding, "normalize": normalize}
    check_equal(expected, steps(tiny_model, tmp_path / "two", **options))


@pytest.mark.slow
def test_rows_of_unequal_lengths_are_dealt_by_tokens(alone, tiny_model, tmp_path):
    """With a token budget the number of rows differs between processes and steps."""
    normalize, _ = alone
    grpo = {"token_budget": 40, "gradient_accumulation_steps": 1}
    made = {
        processes: steps(
            tiny_model,
            tmp_path / str(processes),
            processes=processes,
            sharding="none",
            normalize=normalize,
            grpo={**grpo, "token_budget": grpo["token_budget"] * 2 // processes, "max_steps": 1},
        )
        for processes in (1, 2)
    }
    ranks = {processes: one.said["steps"].count(1) for processes, one in made.items()}
    assert ranks[1] > 1
    assert ranks[2] > 1
    assert np.isfinite(made[2].said["logs"][0]["grad_norm"])


@pytest.mark.slow
@pytest.mark.parametrize("sharding", BOTH)
def test_resumed_training_goes_on_where_it_was(sharding: str, tiny_model: Path, tmp_path: Path) -> None:
    """From the checkpoint of its first step, a training of two processes takes the second step again."""
    grpo = {"optim_args": "momentum=0.9"}  # so the optimizer has a state
    options = {"processes": 2, "sharding": sharding, "normalize": "rollout", "grpo": grpo}
    whole = steps(tiny_model, tmp_path, **options)
    (tmp_path / "train.sqlite").unlink()
    shutil.rmtree(tmp_path / "model")
    again = steps(tiny_model, tmp_path, **options, resume=1)
    for name, moved in whole.moved.items():
        assert np.linalg.norm(again.moved[name] - moved) < CLOSE * np.linalg.norm(moved), name


@pytest.mark.slow
@pytest.mark.parametrize("sharding", BOTH)
def test_adapter_is_trained_by_two_processes(sharding: str, tiny_model: Path, tmp_path: Path) -> None:
    """The adapter of two processes is that of one."""
    options = {"normalize": "rollout", "lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]}}
    one = steps(tiny_model, tmp_path / "1", processes=1, sharding="none", **options)
    two = steps(tiny_model, tmp_path / "2", processes=2, sharding=sharding, **options)
    assert two.said["logs"][1]["grad_norm"] == pytest.approx(one.said["logs"][1]["grad_norm"], rel=1e-3)
    for name, weights in one.moved.items():
        assert np.linalg.norm(two.moved[name] - weights) < CLOSE * np.linalg.norm(weights), name


@pytest.mark.slow
@pytest.mark.parametrize("sharding", BOTH)
def test_loss_against_the_first_policy_of_two_processes_is_that_of_one(
    sharding: str, tiny_model: Path, tmp_path: Path
) -> None:
    """The first policy is whole in each process, also beside a sharded one."""
    options = {"normalize": "rollout", "loss": {"beta": 0.5}, "grpo": {"max_grad_norm": 1.0}}
    one = steps(tiny_model, tmp_path / "1", processes=1, sharding="none", **options)
    two = steps(tiny_model, tmp_path / "2", processes=2, sharding=sharding, **options)
    for given, expected in zip(two.said["logs"], one.said["logs"], strict=True):
        for name in ("loss", "grad_norm", "kl_ref"):
            assert given[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), name
    for name, moved in one.moved.items():
        assert np.linalg.norm(two.moved[name] - moved) < CLOSE * np.linalg.norm(moved), name


ONCE = {
    "max_steps": -1,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("sharding", BOTH)
def test_last_row_is_dropped_if_the_other_process_would_have_none(sharding, tiny_model, tmp_path):
    done = steps(
        tiny_model, tmp_path / "out", processes=2, sharding=sharding, normalize="rollout", ends=11, grpo=ONCE
    )
    assert done.said["steps"] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, None]
    assert done.said["dropped"] == [None] * 10 + ["left_over"]
    assert len(done.said["logs"]) == 5


@pytest.mark.slow
def test_processes_without_any_row_end_together(tiny_model, tmp_path):
    done = steps(
        tiny_model, tmp_path / "out", processes=2, sharding="none", normalize="rollout", ends=0, grpo=ONCE
    )
    assert done.said["steps"] == done.said["logs"] == []
    assert not any(moved.any() for moved in done.moved.values())


def others(process: subprocess.Popen[str]) -> list[int]:
    """The pids of the other trainer processes."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"trainer.follow" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("there", ["metrics.jsonl", "waits"])
def test_death_of_another_process_ends_the_training(there: str, tiny_model: Path, tmp_path: Path) -> None:
    """While all train, and when rank 0 waits for more rows, so that it uses no other process."""
    out = tmp_path / "out"
    process = start(tiny_model, out, processes=2, sharding="none", normalize="rollout", grpo={"max_steps": 9})
    anyio.run(until, (out / there).exists, 300.0)
    (other,) = others(process)
    os.kill(other, signal.SIGKILL)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode != 0
    assert time.monotonic() - began < 60
    assert "trainer process 1 was killed by signal 9" in stderr
    assert not Path(f"/proc/{other}").exists()


@pytest.mark.slow
def test_other_processes_end_with_rank_0(tiny_model, tmp_path):
    out = tmp_path / "out"
    process = start(tiny_model, out, processes=2, sharding="none", normalize="rollout", grpo={"max_steps": 9})
    anyio.run(until, (out / "metrics.jsonl").exists, 300.0)
    (other,) = others(process)
    process.kill()
    process.communicate(timeout=60)
    anyio.run(until, lambda: not Path(f"/proc/{other}").exists(), 60.0)
