"""Runs on a cluster of three nodes on this machine."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_core.rollout.run_directory import RunDirectory

from .conftest import Run, ended, wait_for

pytestmark = pytest.mark.slow  # a cluster needs 20 s to start, and joining it 5 s


def pids_of(run: Run) -> set[bytes]:
    """The processes in which the rollouts of a run were, by what agents wrote into a file."""
    directory = RunDirectory.open(run.out)
    patches = [directory.patch(rollout.id) or b"" for rollout in directory.rollouts()]
    lines = [line for patch in patches for line in patch.splitlines()]
    return {line for line in lines if line[:1] == b"+" and line[1:].isdigit()}


def test_attempts_on_three_nodes_have_all_rows(make_run: Callable[..., Run]) -> None:
    run = make_run("--attempts", "6", "--concurrency", "6", "--set", "agent.noting.stay=4")
    said = run.run()
    run.is_complete(attempts=6)
    assert len(pids_of(run)) == len({one.node for one in RunDirectory.open(run.out).rollouts()}) == 3, said


def test_interrupt_ends_rollouts_in_order(make_run: Callable[..., Run]) -> None:
    run = make_run("--concurrency", "3", "--attempts", "4", "--set", "agent.noting.stay=1e6")
    with run.start() as process:
        wait_for(lambda: run.cluster.agents == 3, process)
        process.send_signal(signal.SIGINT)
        said = ended(process)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    outcomes = RunDirectory.open(run.out).finished()
    assert set(outcomes.values()) == {"cancelled"}
    assert len(outcomes) == 3
    assert run.cluster.spools == run.cluster.sandboxes == []


@pytest.mark.long
def test_nodes_come_and_go(make_run: Callable[..., Run]) -> None:
    """A node that joins gets rollouts; one that is about to end gets no more, and keeps those that run."""
    run = make_run("--attempts", "12", "--concurrency", "8", "--set", "agent.noting.stay=1e6")
    cluster = run.cluster
    with run.start() as process:
        wait_for(lambda: cluster.agents == 6, process)
        raylet = cluster.add(2)
        wait_for(lambda: cluster.agents == 8, process)
        cluster.drain(raylet)
        assert process.stdout is not None
        ends = "gets no more rollouts: Ray is about to end it"
        said = next(line for line in process.stdout if ends in line)
        assert cluster.agents == 8, said
        process.send_signal(signal.SIGINT)
        said = ended(process)
    assert process.returncode == 130, said
    outcomes = RunDirectory.open(run.out).finished()
    assert list(outcomes.values()) == ["cancelled"] * 8
    cluster.remove(raylet)


def test_nodes_with_other_packages_are_refused(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run()
    (tmp_path / "swe_core-9.9.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: swe-core\nVersion: 9.9\n"
    (tmp_path / "swe_core-9.9.dist-info" / "METADATA").write_text(metadata)
    run.env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    last = run.run(code=1).splitlines()[-1]
    version = importlib.metadata.version("swe-core")
    assert f"it has swe-core {version}, and the driver 9.9: install the same version" in last
    assert not run.out.exists()


@pytest.mark.long
def test_node_without_our_packages_is_refused(make_run: Callable[..., Run], tmp_path: Path) -> None:
    """The others go on."""
    broken = "raise ModuleNotFoundError('No module named swe_executor_ray')"
    (tmp_path / "swe_executor_ray.py").write_text(broken)
    run = make_run("--attempts", "6", "--concurrency", "6", "--set", "agent.noting.stay=4")
    raylet = run.cluster.add(2, PYTHONPATH=str(tmp_path))
    said = run.run()
    run.cluster.remove(raylet)
    assert "is out: its actor cannot start: " in said
    assert "install the same packages there, or set executor.ray.runtime_env" in said
    run.is_complete(attempts=6)


@pytest.mark.long
def test_variables_reach_nodes_and_no_file_of_ray(make_run: Callable[..., Run]) -> None:
    secret = secrets.token_hex(16)
    run = make_run("--set", "engine.letters.key_env=SWE_TEST_KEY")
    run.env = {"SWE_TEST_KEY": secret}
    assert "the variable SWE_TEST_KEY is unset" in run.run(code=1)
    run.options = [*run.options, "--set", 'executor.ray.env=["SWE_TEST_KEY"]']
    run.run()
    run.is_complete(attempts=1)
    files = [path for path in (run.cluster.home / "ray").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
