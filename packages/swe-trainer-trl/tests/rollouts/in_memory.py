"""Rollouts in memory, which tests end, and a RolloutFeeder that runs them and a trainer that says nothing."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import anyio
import numpy as np

from swe_core.api.chain import Chain
from swe_core.api.records import Failure, Rollout, Turn, TurnTokens
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.builtin.demo.source import DemoSource
from swe_core.errors import SweError
from swe_testing.records import make_request, make_rollout
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.rollouts import attempts, evaluator, group_scheduler, worker
from swe_trainer_trl.rollouts.messages import Closed, Command, Evaluated, FeedOptions, Metrics, Stop
from swe_trainer_trl.rollouts.worker import RolloutFeeder

T = TypeVar("T")
URLS = ("http://one", "http://two")
FAILED = {"type": "Error", "message": "it failed"}
END: dict[str, dict[str, Any]] = {
    **{"resolved": {"outcome": "resolved"}, "unresolved": {"outcome": "unresolved"}},
    **{"silent": {"outcome": "resolved"}, "cut": {"outcome": "resolved", "finish_reason": "length"}},
    "agent": {"outcome": "error", "failure": Failure(boundary="agent", **FAILED)},
    "engine": {"outcome": "error", "failure": Failure(boundary="engine", **FAILED)},
}


def turn(versions: Sequence[int], dropped: str | None = None) -> Turn:
    size = len(versions)
    tokens = TurnTokens(
        base=None, prompt=[1], completion=[2] * size, logprobs=[-1.0] * size, rendered="full", cause="start",
        versions=[(version, 1) for version in versions], dropped=dropped,
    )  # fmt: skip
    return Turn.model_construct(tokens=tokens)


@dataclass(eq=False)
class Running:
    """A rollout in memory, until the test ends it."""

    request: RolloutRequest
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    url: str | None = None
    phase: str = "open"
    versions: list[int] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    losses: int = 0


class Rollouts:
    """The runner and the store of a run, for as long as the run directory is there."""

    concurrency = 2
    engine = object()

    def __init__(self, path: Path, requests: Sequence[RolloutRequest]) -> None:
        self.path = path
        self.requests = requests
        self.store = self
        self.running: dict[str, Running] = {}
        self.records: dict[str, FinishedRollout] = {}
        self.out: set[str] = set()
        self.losses = 0
        self.observers: list[Any] = []
        self.ends: Callable[[str], str | None] = lambda rollout_id: None

    def rollouts(self) -> list[Rollout]:
        return [one.rollout for one in self.records.values()]

    def chains(self, rollout_id: str) -> Sequence[Chain]:
        return self.records[rollout_id].chains

    def observe(self, observer: Any) -> None:
        self.observers = [observer]

    def set_policy_version(self, version: int) -> None:
        self.version = version

    async def take_out(self, url: str) -> list[str]:
        self.out.add(url)
        return [name for name, one in self.running.items() if one.url == url]

    def put_in(self, url: str) -> None:
        self.out.discard(url)

    def cancel(self, rollout_id: str, why: str) -> None:
        one = self.running[rollout_id]
        if not one.ended.is_set():
            one.end = {"outcome": "cancelled", "cancelled_as": why}
            one.ended.set()

    async def run(self, request: RolloutRequest) -> FinishedRollout:
        assert request.id not in self.records
        assert request.spec.labels["swe-core.rollout"] == request.id
        one = self.running[request.id] = Running(request, losses=self.losses)
        self._tell("started", request)
        if end := self.ends(request.id):
            if end != "silent":
                self.answer(request.id)
            self.finish(request.id, end)
        try:
            await one.ended.wait()
        except asyncio.CancelledError:
            one.end = {"outcome": "cancelled"}
            raise
        finally:
            del self.running[request.id]
            finished = self.record(one)
            self.records[request.id] = finished
            self._tell("finished", finished.rollout)
        return finished

    def record(self, one: Running) -> FinishedRollout:
        request = one.request
        task = request.task.instance_id
        rollout = make_rollout(task, request.attempt, id=request.id, **one.end)
        versions = np.array(one.versions, np.int32)
        ids, logprobs = np.ones(len(versions), np.int32), np.zeros(len(versions), np.float32)
        chain = Chain((0,), ids, np.ones(len(versions), np.bool_), logprobs, versions, "start")
        return FinishedRollout(rollout, (chain,) if one.versions and rollout.reward is not None else ())

    def _tell(self, what: str, *given: Any) -> None:
        for observer in self.observers:
            getattr(observer, what)(*given)

    # what the test does

    def phase(self, rollout_id: str, phase: str) -> None:
        self.running[rollout_id].phase = phase
        self._tell("phase", rollout_id, phase)

    def answer(self, rollout_id: str, version: int | None = None) -> None:
        """A call to the first server that is in."""
        version = self.version if version is None else version
        one = self.running[rollout_id]
        if one.url is None:
            one.url = next((url for url in URLS if url not in self.out), None)
        one.versions.append(version)
        self._tell("turn", rollout_id, turn([version]))

    def finish(self, rollout_id: str, end: str) -> None:
        """End it as a name in `END` says."""
        self.running[rollout_id].end = END[end]
        self.running[rollout_id].ended.set()


def short(rollout_id: str) -> str:
    return re.sub(r"^.*-(?:g(\d+)|(eval[\d.]+))-", r"\1\2/", rollout_id)


def place_of(rollout_id: str) -> str:
    """Its place without the number of its try."""
    return short(rollout_id).partition("-")[0]


async def inline(function: Callable[..., T], *given: Any) -> T:
    """In place of a thread, so late that a cancellation may come before."""
    for _ in range(3):
        await asyncio.sleep(0)
    return function(*given)


async def settle() -> None:
    """Let every task go on until it waits for the test. The longest way takes about 60 turns of the loop."""
    for _ in range(200):
        await asyncio.sleep(0)


class Feeding:
    """One process after the other that feeds the trainer from a run directory."""

    def __init__(
        self, path: Path, options: FeedOptions, tasks: int = 2, servers: int = 1, held_out: int = 0
    ) -> None:
        """The last `held_out` of the tasks are evaluated on."""
        requests = [make_request(task) for task in itertools.islice(DemoSource().tasks(), tasks)]
        self.held_out = [request.task.instance_id for request in requests[tasks - held_out :]]
        self.path, self.options, self.servers = path, options, URLS[:servers]
        self.rollouts = Rollouts(path, requests)
        self.dead: set[str] = set()
        self.closed: list[int] = []
        self.evaluated: list[Evaluated] = []
        self.metrics = defaultdict[str, float](float)
        self.problem: SweError | None = None
        self.loop = asyncio.Runner()
        self.patches = ExitStack()
        for module in (attempts, evaluator, group_scheduler, worker):
            self.patches.enter_context(patch.object(module, "run_sync", inline))
        self.patches.enter_context(patch.object(attempts, "_LOOK", 0.0))

    def do(self, awaitable: Awaitable[T] | None = None) -> T | None:
        async def act() -> T | None:
            got = None if awaitable is None else await awaitable
            await settle()
            return got

        return self.loop.run(act())

    def start(self, version: int = 1, updates: dict[int, int] | None = None) -> None:
        self.journal = Journal(self.path / "train.sqlite")
        self.closed, self.evaluated, self.problem = [], [], None
        self.rollouts.out = set()

        async def begin() -> None:
            self.send, self.receive = anyio.create_memory_object_stream[Command](99)
            commands: AsyncIterator[Command] = aiter(self.receive)
            feeder = RolloutFeeder(
                self.options, self.journal, version, updates or {version: version}, commands, self.servers,
                self.report, lambda url: url in self.dead, self.held_out,
            )  # fmt: skip
            self.task = asyncio.create_task(self.drive(feeder))

        self.do(begin())

    async def drive(self, feeder: RolloutFeeder) -> None:
        try:
            await feeder.run(self.rollouts)
        except SweError as error:
            self.problem = error

    def report(self, message: object) -> None:
        if isinstance(message, Closed):
            self.closed.append(message.group)
        elif isinstance(message, Evaluated):
            self.evaluated.append(message)
        elif isinstance(message, Metrics):
            for name, value in message.values.items():
                self.metrics[name] += value if isinstance(value, float) else value[0]

    def say(self, *commands: Command) -> None:
        for command in commands:
            self.send.send_nowait(command)
        self.do()

    def end(self, gone: bool = False) -> None:
        if gone:
            self.send.close()
        else:
            self.send.send_nowait(Stop())
        self.do(asyncio.wait_for(asyncio.shield(self.task), 60))
        assert self.rollouts.running == {}
        self.ended()

    def ended(self) -> None:
        self.send.close()
        self.receive.close()
        self.journal.close()

    def outcomes(self) -> dict[str, str]:
        """The end of each rollout by its place, with the number of its try from the second on."""
        found = self.rollouts.rollouts()
        return {short(rollout.id): rollout.cancelled_as or rollout.outcome for rollout in found}

    def close(self) -> None:
        if not self.task.done():
            self.end()
        self.ended()
        self.loop.close()
        self.patches.close()
