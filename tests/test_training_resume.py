"""A training that is killed at different moments and resumed each time: nothing that is finished
is done again, nothing is trained twice, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from swe_core.rollout.training_records import read_trained
from swe_testing.serving.start import FRUGAL, TokenServer

from .conftest import leftovers, wait_for, wait_for_the_end
from .training import Row, Training, toy_options
from .warm import Program, Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]

GROUP = 4
SAVED_EVERY = 3
STEPS = 18
"""Many more than the rollouts may be ahead of the trainer: each kill has to come before the last row."""
MAX_STALENESS = 4
_PATIENCE = 400


@dataclass(frozen=True)
class Kept:
    """What stood in the run directory when a process of the training had ended.

    Args:
        checkpoint: The step that is gone on from.
        version: The highest policy version that was announced.
        finished: Ids of rollouts with a verdict.
        logged: How many steps were logged until then.
    """

    checkpoint: int
    version: int
    finished: set[str]
    rows: dict[int, Row]
    logged: int
    at: datetime


@dataclass
class Run:
    """A training that is killed and resumed."""

    out: Path
    scratch: Path
    log: Path
    server: str
    first: list[str]
    warm: Warm
    ends: list[Kept] = field(default_factory=list)

    @property
    def files(self) -> Training:
        return Training(0, "", "", self.out)

    def start(self) -> Program:
        """Start or resume it."""
        arguments = ["--resume", str(self.out)] if self.ends else [*self.first, "--out", str(self.out)]
        environment = {**FRUGAL, "TMPDIR": str(self.scratch)}
        return self.warm.start(["run", *arguments], environment, stderr=self.log)

    def said(self) -> str:
        """What the last process said."""
        return self.log.read_text()

    def keep(self) -> Kept:
        """What stands there now, with all of its processes ended."""
        files = self.files
        finished = {rollout.id for rollout in files.rollouts() if rollout.reward is not None}
        kept = Kept(
            self.checkpoint(), files.announced(), finished, files.rows(), len(self.steps()), datetime.now(UTC)
        )
        self.ends.append(kept)
        return kept

    def checkpoint(self) -> int:
        """The last step that is saved whole; 0 for none."""
        states = (self.out / "checkpoints").glob("checkpoint-*/trainer_state.json")
        return max(
            (json.loads(state.read_text())["global_step"] for state in states if is_whole(state)), default=0
        )

    def steps(self) -> list[int]:
        """The steps that were logged, of all processes in turn."""
        file = self.out / "metrics.jsonl"
        if not is_whole(file):
            return []
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return [line["step"] for line in lines if "loss" in line["values"]]

    def rolls_out(self) -> bool:
        """Whether the process is there that runs the rollouts; the trainer may begin with rows that wait."""
        return (self.out / "server.json").exists()

    def rollouts_process(self) -> int:
        """The pid of the process that runs the rollouts."""
        pid: int = json.loads((self.out / "server.json").read_text())["pid"]
        return pid


def is_whole(file: Path) -> bool:
    """Whether the file is there and ends in a line break: it may be written just now."""
    return file.exists() and file.read_bytes().endswith(b"\n")


@pytest.fixture
def run(lent_server: TokenServer, tmp_path: Path, warm_trainer: Warm, scratch: Path) -> Run:
    """A training with a server that outlives its processes."""
    grpo = {
        "max_steps": STEPS,
        "num_generations": GROUP,
        "per_device_train_batch_size": GROUP,
        "learning_rate": 1e-3,
        "save_steps": SAVED_EVERY,
        "max_staleness": MAX_STALENESS,
    }
    options = toy_options(lent_server.directory, lent_server.url, grpo, tokens=8, letters=2)
    return Run(tmp_path / "run", scratch, tmp_path / "log", lent_server.url, options, warm_trainer)


def kill_trainer(run: Run, when: Callable[[], bool]) -> Kept:
    """Kill the trainer, whose rollouts end by themselves then, with their sandboxes."""
    with run.start() as process:
        wait_for(lambda: run.rolls_out() and when(), alive=process)
        child = os.pidfd_open(run.rollouts_process())
        process.kill()
    with os.fdopen(child):
        assert select.select([child], [], [], _PATIENCE)[0], "the rollouts' process outlives the trainer"
    assert not run.rolls_out()
    check_nothing_is_left(run, process.pid)
    return run.keep()


def kill_rollouts(run: Run, when: Callable[[], bool]) -> Kept:
    """Kill the rollouts' process, of which the trainer says one sentence."""
    before = len(run.files.rollouts())
    with run.start() as process:
        # The trainer may take its steps from groups that waited: let this process finish a rollout, too.
        wait_for(lambda: run.rolls_out() and when() and len(run.files.rollouts()) > before, alive=process)
        os.kill(run.rollouts_process(), signal.SIGKILL)
        assert process.wait(_PATIENCE) == 1
    assert run.said().splitlines()[-1] == (
        "swe-core: error: the rollouts' process was killed by signal 9, so no more rows come; resume with "
        "--resume: finished rollouts are kept"
    )
    return run.keep()


def pause(server: str) -> None:
    """Let a server answer nobody, as a trainer does while it sends weights."""
    httpx.post(f"{server}/pause", params={"mode": "keep"}, timeout=60).raise_for_status()


def finish(run: Run) -> Kept:
    """Go on to the end."""
    with run.start() as process:
        assert process.wait(_PATIENCE) == 0, run.said()
    assert "Traceback" not in run.said()
    check_nothing_is_left(run, process.pid)
    return run.keep()


def check_nothing_is_left(run: Run, pid: int) -> None:
    assert leftovers(run.scratch, pid) == []
    wait_for_the_end(run.scratch)


def test_killed_training_resumes_where_it_was(run: Run) -> None:
    first = kill_trainer(run, lambda: run.steps() != [])
    assert first.checkpoint == 0
    pause(run.server)  # as if it had been killed while it sent weights
    logged = len(run.steps())
    between = kill_trainer(run, lambda: run.steps()[logged:][SAVED_EVERY:] != [])
    assert between.checkpoint == SAVED_EVERY
    saved = kill_trainer(run, lambda: run.checkpoint() == 2 * SAVED_EVERY)
    assert saved.checkpoint == 2 * SAVED_EVERY
    logged = len(run.steps())
    kill_rollouts(run, lambda: len(run.steps()) > logged)
    end = finish(run)
    check_steps(run, end)
    check_rollouts(run, end)
    check_versions(run)
    assert run.files.report()["ledger"]["balanced"]
    assert run.files.summary["tokens"]["unaccounted"] == 0
    assert run.files.summary["steps"] == STEPS

    # It could have been killed after its last step, before the model was saved.
    shutil.rmtree(run.out / "model")
    again = finish(run)
    assert (again.rows, again.logged, again.version) == (end.rows, end.logged, end.version)
    assert run.files.summary["steps"] == STEPS
    weights = [
        run.out / place / "model.safetensors" for place in ("model", f"checkpoints/checkpoint-{STEPS}")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def check_steps(run: Run, end: Kept) -> None:
    """Steps go on from the checkpoints, and each has rows of its own."""
    # A row that was trained twice would be missing in the step that it was in first.
    trained = Counter(row.step for row in end.rows.values() if row.step is not None)
    assert trained == dict.fromkeys(range(1, STEPS + 1), GROUP)
    marked = [(row.step, row.rollout_id) for row in end.rows.values() if row.step is not None]
    recorded = [(row.step, row.rollout_id) for row in read_trained(run.out)]
    assert sorted(recorded) == sorted(marked)  # without those of steps that were lost
    for kept in run.ends:
        for key, row in kept.rows.items():
            if row.dropped is not None or (row.step is not None and row.step <= kept.checkpoint):
                assert end.rows[key] == row
    steps, logged, resumed = run.steps(), 0, 0
    for kept in run.ends:
        ran = steps[logged : kept.logged]
        assert ran == [resumed + 1 + number for number in range(len(ran))]
        logged, resumed = kept.logged, kept.checkpoint
    assert steps[-1] == STEPS


def check_rollouts(run: Run, end: Kept) -> None:
    """What was finished when a process was killed was not done again, and was not lost."""
    rollouts = run.files.rollouts()
    assert len({rollout.id for rollout in rollouts}) == len(rollouts)
    finished = Counter(attempt(rollout.id) for rollout in rollouts if rollout.outcome != "cancelled")
    assert set(finished.values()) == {1}
    behind: defaultdict[str, list[bool]] = defaultdict(list)
    for row in end.rows.values():
        behind[row.rollout_id].append(row.step is not None or row.dropped is not None)
    groups, updates = run.files.groups(), run.files.updates()
    for rollout_id in set().union(*(kept.finished for kept in run.ends[:-1])):
        number, _ = attempt(rollout_id)
        closed, skipped = groups[number]
        oldest = min(updates[version] for version in run.files.versions(rollout_id))
        stale = updates[end.version] - oldest > MAX_STALENESS
        assert closed
        assert skipped or (all(behind[rollout_id]) if rollout_id in behind else stale), rollout_id


def attempt(rollout_id: str) -> tuple[int, int]:
    """The group and the attempt of a rollout, whichever try it is."""
    found = re.fullmatch(r".*-g(\d+)-(\d+)(-\d+)?", rollout_id)
    assert found is not None
    return int(found[1]), int(found[2])


def check_versions(run: Run) -> None:
    """The versions of each process are above those of the one before."""
    started = datetime.min.replace(tzinfo=UTC)
    before = 0
    for kept in run.ends:
        ran = [rollout for rollout in run.files.rollouts() if started < rollout.started_at < kept.at]
        seen = set().union(*(run.files.versions(rollout.id) for rollout in ran))
        assert seen
        assert before < min(seen) <= max(seen) <= kept.version
        started, before = kept.at, kept.version
