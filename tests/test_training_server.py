"""The policy's server is killed at four moments of a training, and started again: the training continues,
nothing that was finished is lost or done again, and no group is skipped because of it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from swe_testing.serving.start import FRUGAL, TokenServer, obstacle, start, stop

from .conftest import leftovers, wait_for, wait_for_the_end
from .training import Training, toy_options
from .warm import Program, Warm

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.usefixtures("local_sandbox")]

GROUP = 4
STEPS = 12
_PATIENCE = 400
_STALLED = 10.0
"""Seconds in which a trainer whose server stands still comes to its next weight sync, if it has rows."""


@dataclass
class Killed:
    """A server on one port, killed and started again, and the training that it serves.

    Attributes:
        deaths: So often it was killed.
    """

    server: TokenServer
    home: Path
    training: Training
    process: Program | None = None
    deaths: int = 0
    finished: set[str] = field(default_factory=set)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its guard."""
        os.killpg(self.server.pid, number)

    def kill(self) -> None:
        """At once, and note what was finished by then."""
        self.signal(signal.SIGKILL)
        os.waitpid(self.server.pid, 0)
        self.deaths += 1
        self.finished |= {rollout.id for rollout in self.training.rollouts() if rollout.reward is not None}

    def start(self) -> None:
        """Again, on the same port, with the weights that it had in the beginning."""
        port = urlsplit(self.server.url).port
        self.server = start(self.server.directory, self.home, os.getpid(), port)

    def until(self, happened: Callable[[], object]) -> None:
        wait_for(happened, alive=self.process)

    def steps(self) -> list[int]:
        """The steps that were logged."""
        if not (self.training.out / "metrics.jsonl").exists():
            return []
        return list(range(1, len(self.training.metrics) + 1))

    def stall(self) -> bool:
        """Let the server stand still until a weight sync waits for it; whether one did."""
        before = self.training.announced()
        self.signal(signal.SIGSTOP)
        until = time.monotonic() + _STALLED
        while self.training.announced() == before:
            if time.monotonic() > until:
                self.signal(signal.SIGCONT)
                return False
            time.sleep(0.01)
        return True

    def samples(self) -> bool:
        """Whether an attempt runs that is not recorded yet."""
        folders = list((self.training.out / "rollouts").glob("*"))
        return len(folders) > len(self.training.rollouts())


@pytest.fixture
def killed(tmp_path: Path, tiny_model: Path, server_home: Path) -> Iterator[Killed]:
    """A vLLM server of the test's own."""
    if (why := obstacle()) is not None:
        pytest.skip(f"vLLM cannot run here: {why}")
    server = start(tiny_model, server_home, os.getpid())
    killed = Killed(server, server_home, Training(0, "", "", tmp_path / "run"))
    yield killed
    stop(killed.server.pid)


def test_server_that_is_killed_costs_no_group(
    killed: Killed, tmp_path: Path, tiny_model: Path, warm_trainer: Warm, scratch: Path
) -> None:
    grpo = {
        "max_steps": STEPS,
        "num_generations": GROUP,
        "per_device_train_batch_size": GROUP,
        "learning_rate": 1e-3,
        "save_steps": STEPS,
    }
    training, log = killed.training, tmp_path / "log"
    arguments = toy_options(tiny_model, killed.server.url, grpo, tokens=8, letters=2)
    command = ["run", *arguments, "--out", str(training.out)]
    with warm_trainer.start(command, {**FRUGAL, "TMPDIR": str(scratch)}, stderr=log) as process:
        killed.process = process
        killed.until((training.out / "train.sqlite").exists)
        killed.kill()  # while the policy is loaded, before the first weights
        killed.start()

        killed.until(lambda: len(killed.steps()) >= 2)
        killed.signal(signal.SIGSTOP)
        killed.until(killed.samples)
        killed.kill()  # while agents wait for their replies
        killed.start()

        steps = len(killed.steps())
        killed.until(lambda: len(killed.steps()) > steps and killed.stall())
        killed.kill()  # while it is given weights
        killed.start()
        killed.kill()  # as it is back
        killed.start()
        assert process.wait(_PATIENCE) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    assert leftovers(scratch, process.pid) == []
    wait_for_the_end(scratch)
    check(killed)


def check(killed: Killed) -> None:
    training = killed.training
    assert killed.deaths == 4
    assert killed.steps() == list(range(1, STEPS + 1))
    assert {skipped for _, skipped in training.groups().values()} == {None}
    rollouts = training.rollouts()
    assert any(rollout.cancelled_as == "engine_lost" for rollout in rollouts)
    with_verdict = [rollout for rollout in rollouts if rollout.reward is not None]
    assert set(Counter(attempt(rollout.id) for rollout in with_verdict).values()) == {1}
    rows = training.rows().values()
    assert Counter(row.step for row in rows if row.step is not None) == dict.fromkeys(
        range(1, STEPS + 1), GROUP
    )
    assert {row.dropped for row in rows} == {None}
    assert killed.finished <= {row.rollout_id for row in rows}
    assert training.summary["tokens"]["unaccounted"] == 0
    assert training.report()["ledger"]["balanced"]


def attempt(rollout_id: str) -> str:
    """The group and the attempt of a rollout, whichever try it is."""
    return re.sub(r"^.*-g(\d+)-(\d+)(-\d+)?$", r"\1/\2", rollout_id)
