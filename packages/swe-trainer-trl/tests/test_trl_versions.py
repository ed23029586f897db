"""What this package relies on in TRL, in every version that it supports: each is fetched and trained with."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swe_testing.fetched import fetched
from swe_testing.serving.start import missing

_VERSIONS = [  # test_end_of_rows.py and others of the fast part train with the newest
    *(pytest.param(version, marks=pytest.mark.slow) for version in ("1.10.0", "1.16.0")),
    *(pytest.param(version, marks=pytest.mark.long) for version in ("1.12.0", "1.14.2")),
]
_OWN_VLLM = {"1.10.0", "1.12.0"}
"""Import names that the vLLM of today no longer has; without any vLLM they train with swe-core's transfer."""

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def run(version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with this TRL, which sees no GPU."""
    here = {"PYTHONPATH": str(fetched("trl", version)), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **here}, timeout=600
    )


@pytest.fixture(scope="module", params=_VERSIONS)
def answer(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What `two_steps.py` says of one version."""
    script = Path(__file__).parent / "two_steps.py"
    hide = ["--hide-vllm"] if request.param in _OWN_VLLM else []
    ended = run(request.param, str(script), str(tiny_model), str(tmp_path_factory.mktemp("out")), *hide)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stderr.count("no CUDA device was found") == 1
    said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert said["version"] == request.param
    return said


def test_protocols_are_those_that_we_implement_and_each_step_sends_its_weights(answer):
    with_one = {"update_model_version": "model_version", "check_health": "stale_after_s"}
    assert answer["worker"] == {
        name: ["self", *([with_one[name]] if name in with_one else [])]
        for name in ("start", "stop", *with_one)
    }
    assert answer["transfer"] == {
        name: ["self", *(["iterator"] if name == "send_weights" else [])]
        for name in ("init_weight_transfer", "pause", "send_weights", "resume", "destroy")
    }
    fields = ["prompt", "completion", "input_ids", "completion_mask", "old_log_probs"]
    fields += ["advantage", "model_version", "group_id", "metrics"]
    assert answer["sample"] == (fields if answer["version"] == "1.10.0" else [*fields, "enqueued_at"])
    assert answer["lora"] is (answer["version"] in {"1.14.2", "1.16.0"})
    assert answer["worker_calls"] == [1, "start", 2, 3, "stop"]
    assert answer["transfer_calls"] == ["init", *["pause", "send", "resume"] * 3, "destroy"]
    assert answer["names_sent"] == [answer["names"]] * 3
    # The version is kept before the server knows of it. vLLM takes the name of an adapter once: after a kill
    # in the middle of a sync, another must follow.
    assert answer["versions_kept"] == [1, 2, 3]


def test_packed_rows_are_trained_as_each_would_be_alone_and_recorded(answer):
    """The ratio compares the trainer's log-probabilities with those of a plain forward of each row. The first
    step has the weights by which the rows were sampled here, the second has others."""
    first, second = answer["logs"][:2]
    assert first["ratio"] == pytest.approx(1, abs=1e-4)
    assert first["loss"] == pytest.approx(answer["first_loss"], abs=1e-4)
    assert math.isfinite(second["loss"])
    assert abs(second["ratio"] - 1) > 1e-3  # the weights did change
    assert first["reward"] == pytest.approx(0.25)
    assert first.get("rollouts/running") == (None if answer["version"] == "1.10.0" else 3.0)
    losses = [entry["loss"] for entry in answer["logs"] if "loss" in entry]
    assert [values["loss"] for values in answer["kept"] if "loss" in values] == losses
    assert len(losses) == 2
    assert answer["steps"] == [1] * 4 + [2] * 4 + [None] * 4
    assert answer["checkpoints"] == ["checkpoint-2"]
    sampled, trained = answer["sampled"], answer["trained"]
    assert [(row["step"], row["version"]) for row in trained] == [(1, 1)] * 4 + [(2, 2)] * 4
    assert [row["rollout_id"] for row in trained] == [f"r{number}" for number in range(1, 9)]
    assert [(row["row"], row["advantage"]) for row in trained] == [(0, 1.0), (1, -0.5)] * 4
    for row in trained:
        given = sampled[row["rollout_id"]]
        assert len(row["logprobs"]) == row["tokens"] == len(given)
        apart = max(abs(one - other) for one, other in zip(row["logprobs"], given, strict=True))
        assert apart < 1e-4 if row["step"] == 1 else apart > 1e-3
        assert row["clipped"] == 0 or row["step"] == 2
    for step, logged in zip((1, 2), answer["logs"], strict=False):
        rows = [row for row in trained if row["step"] == step]
        tokens = sum(row["tokens"] for row in rows)
        # Each rollout is one row, and counts alike.
        assert [row["weight"] for row in rows] == pytest.approx([tokens / 4 / row["tokens"] for row in rows])
        assert sum(row["clipped"] for row in rows) / tokens == pytest.approx(logged["clip_ratio/region_mean"])
