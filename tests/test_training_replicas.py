"""A policy on two vLLM servers: weights and adapters reach both, one is killed and comes back, and each id
has the log-probability that its version of the weights gives it."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from swe_core.api.chain import Chain
from swe_testing.serving.start import FRUGAL, TokenServer, obstacle, start, stop

from .conftest import leftovers, wait_for, wait_for_the_end
from .test_training_server import attempt
from .training import Training, logprobs, toy_options
from .warm import Program, Warm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]

GROUP = 4
_PATIENCE = 900
_STALLED = 10.0
"""Seconds in which a trainer comes to its next weight sync, if it has rows."""
GRPO = {
    "num_generations": GROUP,
    "per_device_train_batch_size": GROUP,
    "learning_rate": 1e-3,
    "save_steps": 1,
    "save_total_limit": 99,
}
RANK = 8


@dataclass
class Replica:
    """A vLLM server on one port, which can be killed and started again."""

    model: Path
    home: Path
    more: Sequence[str]
    server: TokenServer | None = None

    @property
    def url(self) -> str:
        assert self.server is not None
        return self.server.url

    def start(self) -> None:
        """Again on the same port, with the weights that it had in the beginning."""
        port = None if self.server is None else urlsplit(self.url).port
        self.server = start(self.model, self.home, os.getpid(), port, self.more)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its guard."""
        assert self.server is not None
        os.killpg(self.server.pid, number)

    def kill(self) -> None:
        assert self.server is not None
        self.signal(signal.SIGKILL)
        os.waitpid(self.server.pid, 0)

    def served(self) -> int:
        """The number of its complete replies."""
        metrics = httpx.get(f"{self.url}/metrics", timeout=120).raise_for_status().text
        return sum(
            int(float(count))
            for count in re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", metrics, re.M)
        )

    def adapters(self) -> set[str]:
        cards = httpx.get(f"{self.url}/v1/models", timeout=120).raise_for_status().json()["data"]
        return {card["id"] for card in cards if card["id"].startswith("trl-policy")}


Start = Callable[..., list[Replica]]


@pytest.fixture
def two(tiny_model: Path) -> Iterator[Start]:
    """Starts two servers at the same time, with further arguments."""
    if (why := obstacle()) is not None:
        pytest.skip(f"vLLM cannot run here: {why}")
    replicas: list[Replica] = []
    with ExitStack() as stack:

        def run(*more: str) -> list[Replica]:
            for _ in range(2):  # short names: unix sockets lie below
                home = stack.enter_context(tempfile.TemporaryDirectory(prefix="swe-", dir="/tmp"))
                replicas.append(Replica(tiny_model, Path(home), more))
            with ThreadPoolExecutor(2) as pool:
                for _ in pool.map(Replica.start, replicas):
                    pass
            return replicas

        try:
            yield run
        finally:
            for replica in replicas:
                if replica.server is not None:
                    stop(replica.server.pid)


@dataclass
class Trained:
    """A training that runs, and the models of its versions."""

    training: Training
    process: Program
    log: Path
    said: list[str] = field(default_factory=list)

    def until(self, happened: Callable[[], object]) -> None:
        wait_for(happened, alive=self.process, say=self.log.read_text)

    def steps(self) -> int:
        path = self.training.out / "metrics.jsonl"
        return len(self.training.metrics) if path.exists() else 0

    def more_steps(self, count: int) -> None:
        before = self.steps()
        self.until(lambda: self.steps() >= before + count)

    def stalled_by(self, replica: Replica) -> bool:
        """Let the server stand still until a weight sync waits for it; whether one did. One that began before
        may, and where each group waits for a reply of this server, none begins."""
        replica.signal(signal.SIGSTOP)
        until = time.monotonic() + _STALLED
        while self.training.announced_step() <= self.steps():
            if time.monotonic() > until:
                replica.signal(signal.SIGCONT)
                return False
            time.sleep(0.01)
        return True

    def told(self, words: str, times: int = 1) -> None:
        self.until(lambda: self.log.read_text().count(words) >= times)


def load(directory: Path) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
    return model


def adapted(model: Path, adapter: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(load(model), adapter)


def check_ids(training: Training, model: Callable[[int], Any], *, exact: bool) -> None:
    """Each id has the log-probability of the weights of its version.

    With files a server has new weights a moment before they are announced, so an id may be of the version
    after the one that it carries. With adapters (`exact`) it never is.

    Args:
        model: Returns the model after so many steps.
    """
    steps = dict(training._journal("SELECT version, step FROM policies"))
    models = {step: model(step) for step in sorted(set(steps.values()))}
    checked: Counter[int] = Counter()
    for chain in training.chains():
        versions = chain.versions[chain.completion_mask]
        for version in set(versions.tolist()):
            later = [steps[other] for other in steps if other >= version]
            these = [steps[version]] if exact else sorted(set(later))[:2]
            of_version = versions == version
            given = [np.abs(_of(chain, models[step]) - _recorded(chain))[of_version] for step in these]
            assert np.min(given, axis=0).max() < 1e-4
            checked[steps[version]] += int((given[0] < 1e-4).sum())
    assert len(checked) >= 4
    first, *_, last = sorted(checked)
    apart = [
        np.abs(_of(chain, models[first]) - _of(chain, models[last])).max() for chain in training.chains()
    ]
    assert min(apart) > 1e-3  # so this can fail


def _of(chain: Chain, model: Any) -> np.ndarray:
    return logprobs(model, chain)


def _recorded(chain: Chain) -> np.ndarray:
    return chain.old_log_probs[chain.completion_mask]


def check_books(training: Training, steps: int) -> None:
    """Nothing was lost, or trained twice, or skipped."""
    assert {skipped for _, skipped in training.groups().values()} == {None}
    with_verdict = [rollout for rollout in training.rollouts() if rollout.reward is not None]
    assert set(Counter(attempt(rollout.id) for rollout in with_verdict).values()) == {1}
    rows = training.rows().values()
    done = Counter(row.step for row in rows if row.step is not None)
    assert done == dict.fromkeys(range(1, steps + 1), GROUP)
    assert {row.dropped for row in rows} == {None}
    assert training.summary["tokens"]["unaccounted"] == 0
    assert training.report()["ledger"]["balanced"]


@pytest.fixture
def begun(
    tmp_path: Path, tiny_model: Path, warm_trainer: Warm, scratch: Path
) -> Iterator[Callable[..., Trained]]:
    """Begins a training on servers; in the end nothing of it may be left."""
    begun: list[Program] = []
    with ExitStack() as stack:

        def begin(replicas: Sequence[Replica], steps: int, *more: str, **grpo: Any) -> Trained:
            urls, out, log = ",".join(replica.url for replica in replicas), tmp_path / "run", tmp_path / "log"
            values = {**GRPO, "max_steps": steps, **grpo}
            arguments = toy_options(tiny_model, urls, values, tokens=8, letters=3)
            command = ["run", *arguments, "--out", str(out), *more]
            program = warm_trainer.start(command, {**FRUGAL, "TMPDIR": str(scratch)}, stderr=log)
            begun.append(stack.enter_context(program))
            return Trained(Training(0, "", "", out), program, log)

        yield begin
        for program in begun:
            program.kill()  # where the test has failed
    wait_for_the_end(scratch)


def ended(trained: Trained, scratch: Path) -> None:
    assert trained.process.wait(_PATIENCE) == 0, trained.log.read_text()
    assert "Traceback" not in trained.log.read_text()
    assert leftovers(scratch, trained.process.pid) == []


def test_server_that_is_killed_is_taken_out_and_put_back(
    two: Start, begun: Callable[..., Trained], scratch: Path, tiny_model: Path
) -> None:
    steps = 14
    replicas = two()
    lives, dies = replicas
    trained = begun(replicas, steps)
    trained.more_steps(1)
    before = [replica.served() for replica in replicas]
    trained.more_steps(2)
    assert all(replica.served() > count for replica, count in zip(replicas, before, strict=True))

    dies.signal(signal.SIGSTOP)
    trained.until(lambda: _samples(trained.training))
    dies.kill()  # while agents wait for their replies
    trained.more_steps(2)  # with the other one alone
    again(dies, lives)
    trained.told(f"the server {dies.url!r} has the policy's weights again")
    alone = dies.served()
    trained.more_steps(2)
    assert dies.served() > alone

    trained.until(lambda: trained.stalled_by(lives))
    lives.kill()  # while a weight sync waits for it, and the other one is paused
    ended(trained, scratch)  # with the one that is back
    said = trained.log.read_text()
    assert said.count(" is dead (") == 2
    assert any(rollout.cancelled_as == "engine_lost" for rollout in trained.training.rollouts())
    check_books(trained.training, steps)
    checkpoints = trained.training.out / "checkpoints"
    check_ids(
        trained.training,
        lambda step: load(checkpoints / f"checkpoint-{step}" if step else tiny_model),
        exact=False,
    )


def again(dead: Replica, other: Replica) -> None:
    """Start a server again. The other one stands still meanwhile, or the training would be over by then."""
    other.signal(signal.SIGSTOP)
    try:
        dead.start()
    finally:
        other.signal(signal.SIGCONT)


def _samples(training: Training) -> bool:
    """Whether an attempt runs that is not recorded yet."""
    folders = list((training.out / "rollouts").glob("*"))
    return len(folders) > len(training.rollouts())


@pytest.mark.long
def test_adapters_reach_both_servers_and_the_one_that_is_back(
    two: Start, begun: Callable[..., Trained], scratch: Path, tiny_model: Path
) -> None:
    steps = 8
    replicas = two("--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "6")
    lora = {"r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj", "v_proj"]}
    more = ("--weight-sync", "trl", "--set", f"worker.trl.lora={json.dumps(lora)}")
    trained = begun(replicas, steps, *more, learning_rate=1e-2)
    lives, dies = replicas
    trained.more_steps(1)
    assert lives.adapters() & dies.adapters()
    dies.kill()
    trained.more_steps(1)
    again(dies, lives)
    trained.told(f"the server {dies.url!r} has the policy's weights again")
    assert dies.adapters()
    before = dies.served()
    trained.more_steps(2)
    assert dies.served() > before
    ended(trained, scratch)
    check_books(trained.training, steps)
    checkpoints = trained.training.out / "checkpoints"
    check_ids(
        trained.training,
        lambda step: adapted(tiny_model, checkpoints / f"checkpoint-{step}") if step else load(tiny_model),
        exact=True,
    )
