"""Every benchmark ends with one JSON object of the documented keys. How fast anything is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
KEYS = {"benchmark", "runs", "medians", "ratios", "targets", "notes"}
TARGET_KEYS = {"what", "figure", "limit", "unit", "at_least", "met"}


def last_line(name: str, *args: str, timeout: float = 400) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert set(result) == KEYS
    assert result["benchmark"] == name
    for target in result["targets"]:
        assert set(target) == TARGET_KEYS
        if target["figure"] is None:
            assert target["met"] is None
        elif target["at_least"]:
            assert target["met"] == (target["figure"] >= target["limit"])
        else:
            assert target["met"] == (target["figure"] <= target["limit"])
    return result


def test_startup() -> None:
    result = last_line("startup", "--runs", "1")
    assert result["medians"]["help"] > 0
    assert set(result["ratios"]) == {"help_to_imports", "help_to_imports_processor"}
    heavy = result["targets"][1]
    assert heavy["met"] is True, result["notes"]  # what is imported is no question of speed


@pytest.mark.usefixtures("local_sandbox")
def test_open_sandbox(demo_layout: str) -> None:
    result = last_line("open_sandbox", "--runs", "1", "--image", demo_layout)
    assert 0 < result["medians"]["image_open"] < result["medians"]["image_all"]
    assert result["medians"]["host_open"] > 0


@pytest.mark.usefixtures("local_sandbox")
def test_overhead() -> None:
    args = ("--runs", "1", "--sandbox", "local", "--agent", "oracle", "--task", "demo__csvtidy-1")
    result = last_line("overhead", *args)
    medians = result["medians"]
    assert medians["docker_pi"] is None
    figures = medians["local_oracle"]
    parts = ("open", "prepare", "export", "close", "grade_without_tests")
    assert figures["added"] == pytest.approx(sum(figures[part] for part in parts), abs=0.001)
    assert figures["whole"] == pytest.approx(
        figures["added"] + figures["tests"] + figures["agent"], abs=0.001
    )


@pytest.mark.pi
@pytest.mark.usefixtures("local_sandbox")
def test_first_request() -> None:
    result = last_line("first_request", "--runs", "1", "--npm-runs", "0", "--sandbox", "local")
    assert result["medians"]["local"]["first_request"] > 0
    assert result["medians"]["local_npm"]["first_request"] is None
    assert result["ratios"] == {"local_npm_to_bundle": None, "docker_npm_to_bundle": None}


@pytest.mark.pi
@pytest.mark.usefixtures("local_sandbox")
def test_agents() -> None:
    result = last_line("agents", "--runs", "1", "--agent", "pi")
    assert result["notes"] == []
    assert 0 < result["medians"]["pi"]["own"] < 60
    assert 0 < result["medians"]["pi"]["sandboxed"] < 60


@pytest.mark.long
@pytest.mark.pi
@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.skipif(find_spec("swe_sandbox_hf") is None, reason="swe-sandbox-hf is not installed")
def test_hf_relay() -> None:
    args = ("--runs", "1", "--round-trip", "20", "--requests", "3", "--minute", "6", "--sandboxes", "4")
    result = last_line("hf_relay", *args, timeout=600)
    figures = result["medians"]["20_ms"]
    assert figures.pop("fastest_ms")[0] >= 20
    for name, figure in figures.items():
        assert figure > 0, name
    assert figures["call_ms"] >= 20  # the injected round trip is in it
    crowd = result["medians"]["sandboxes"]
    assert 1 <= crowd["at_once"] <= 4
    assert 20 < crowd["memory_mb"] < 1000
    fastest, graded = result["notes"]
    assert fastest.startswith("at 20 ms the fastest")
    assert "; 4 rollouts were graded" in graded


@pytest.mark.long
def test_interception() -> None:
    result = last_line("interception", "--runs", "1", "--share", "0.03", "--no-peers")
    assert result["notes"] == []
    assert {"streamed_session_8_ms", "streamed_long_ms", "paced_ms", "delay_ms"} < result["medians"].keys()
    for name, figures in result["medians"].items():
        for side in ("swe_core_relay", "swe_core_ids"):  # memory that a process had already is no growth
            assert figures[side] > 0 or name.endswith("_mb")
        assert figures["litellm"] is None
    dialects = {name: ratio for name, ratio in result["ratios"].items() if "_ids_" in name}
    assert len(dialects) == 12
    assert all(dialects.values())
    assert {ratio for name, ratio in result["ratios"].items() if name not in dialects} == {None}


@pytest.mark.long
@pytest.mark.skipif(find_spec("swe_openenv") is None, reason="swe-openenv is not installed")
def test_openenv_servers() -> None:
    result = last_line("openenv_servers", "--runs", "1", "--share", "0.03", "--no-peers")
    assert result["notes"] == []
    assert 0 < result["medians"].pop("server_added_ms")["median"] < 10_000
    for name, figures in result["medians"].items():
        assert figures["ours"] > 0 or name.endswith("_mb")
        assert figures["openenv"] is None
    assert set(result["ratios"].values()) == {None}


@pytest.mark.long
def test_hostile_body() -> None:
    args = ("--runs", "1", "--seconds", "1", "--cell", "alone", "--cell", "ids_8")
    result = last_line("hostile_body", *args)
    assert result["notes"] == []
    for name in ("alone", "ids_8"):
        assert result["medians"][name]["longest_wait_ms"] > 0
    attacked = result["medians"]["ids_8"]["growth_mb"]
    assert attacked < 300  # what is held has bounds, however slow the machine is
    assert result["medians"]["relay_31"] == {"growth_mb": None, "longest_wait_ms": None}


def test_turn_cost() -> None:
    result = last_line("turn_cost", "--runs", "1", "--turns", "12")
    assert result["medians"]["swe_core_turn_12_ms"] > 0
    assert result["medians"]["full_render_turn_12_ms"] > 0
    assert result["ratios"]["swe_core_last_to_early"] > 0


def test_chains() -> None:
    result = last_line("chains", "--runs", "1", "--no-peers")
    assert result["medians"]["swe_core_ms"] > 0
    assert result["ratios"]["numpy_to_swe_core"] > 0
    assert result["medians"]["trl_ms"] is None


@pytest.mark.skipif(find_spec("trl") is None, reason="the tokenizer has no template without TRL")
def test_drift() -> None:
    result = last_line("drift", "--runs", "1", "--turns", "5")
    assert result["medians"]["turns"] == 5
    assert result["medians"]["seconds"] > 0


def test_resume() -> None:
    result = last_line("resume", "--runs", "1", "--rollouts", "50")
    assert set(result["medians"]) == {"resume", "report", "json", "command"}
    assert min(result["medians"].values()) > 0
    assert set(result["ratios"]) == {"resume_to_json", "report_to_json"}


@pytest.mark.usefixtures("local_sandbox")
def test_many() -> None:
    result = last_line("many", "--runs", "1", "--rollouts", "1", "--concurrency", "2")
    assert result["notes"] == []
    for figures in result["medians"].values():
        assert 20 < figures["memory_mb"] < 1000
        assert 0 < figures["processor_per_rollout"] < figures["wall_per_rollout"]


@pytest.mark.long
@pytest.mark.skipif(find_spec("swe_trainer_trl") is None, reason="swe-trainer-trl is not installed")
def test_staleness() -> None:
    result = last_line("staleness", "--runs", "1", "--share", "0.2")
    for target in result["targets"]:  # in virtual time the figures are the same everywhere
        assert target["figure"] < 1.2  # this short a training is worse than a whole one
    assert result["medians"]["ahead_usual_pareto_4"]["chosen"] == 22
    assert result["medians"]["ahead_large_group_pareto_4"]["chosen"] == 16
    crowded = result["medians"].pop("pareto_1")
    assert crowded["cancelled"] > 0
    assert crowded["saved_h"] > 0
    assert crowded["estimated_h"] > 0
    for name, figures in result["medians"].items():
        if not figures.get("cancelled", 1):  # then the two trainings are the same one
            assert result["ratios"][f"{name}_sandbox"] == result["ratios"][f"{name}_training"] == 1
            assert figures["saved_h"] == figures["estimated_h"] == 0


@pytest.mark.long
@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed (`make test` installs it)")
def test_training_worker() -> None:
    args = ("--runs", "1", "--share", "0.05", "--no-peers")
    result = last_line("training_worker", *args, timeout=900)  # four processes import torch
    assert result["notes"] == []
    for name in ("swe_core_worker_ms", "swe_core_trainer_ms", "step_alone_ms", "step_agents_ms"):
        assert result["medians"][name] > 0
    assert result["medians"]["trl_worker_ms"] is None
    assert result["ratios"]["swe_core_to_trl_worker"] is None
    assert result["ratios"]["step_agents_to_alone"] > 0


@pytest.mark.long
@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed (`make test` installs it)")
def test_large_rows() -> None:
    result = last_line("large_rows", "--rows", "1,2", "--tokens", "64", timeout=900)  # four import torch
    assert set(result["medians"]) == {
        f"{part}_{case}_mb" for part in ("pack", "step") for case in ("1x64", "2x64")
    }
    assert set(result["ratios"]) == {
        "pack_by_ids", "pack_by_rows", "step_by_ids", "step_by_rows"
    }  # fmt: skip


def wheel(folder: Path, version: str, source: str) -> None:
    """A wheel of `requests` with one module."""
    with zipfile.ZipFile(folder / f"requests-{version}-py3-none-any.whl", "w") as file:
        about = f"requests-{version}.dist-info"
        file.writestr("requests.py", source)
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: requests\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


def test_suspicious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel(tmp_path, "2.31.0", "import gc\n")
    wheel(tmp_path, "2.32.3", "import gc, ctypes\n")
    result = last_line("suspicious", "--packages", "2")
    assert result["medians"] == {"releases_share": 1, "files_share": 1}
    assert result["notes"] == ["1 of 1 releases, 1 of 1 files", "pip did not get flask"]


def test_benchmark_that_cannot_run_says_why_in_one_sentence() -> None:
    args = ("--sandbox", "local", "--agent", "oracle", "--task", "no-such-task")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "overhead.py"), *args], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert "no such task" in sentence


@pytest.mark.usefixtures("local_sandbox")
def test_grade() -> None:
    result = last_line("grade", "--runs", "1", "--tests", "3", "--log-mb", "0.1")
    for figure in ("graded", "bare", "sandbox", "parse_ms"):
        assert result["medians"][figure] > 0
    assert {target["unit"] for target in result["targets"]} == {"s", "ms"}


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
def test_grade_rows() -> None:
    figures = last_line("grade_rows", "--limit", "1", "--runs", "1")["medians"]["demo__csvtidy-1"]
    assert figures["graded"] > figures["added"] > figures["sandbox"] > 0
    assert figures["bare"] > 0
