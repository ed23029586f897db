"""The pool gives rollouts to nodes, and takes each over once, whatever happens to the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from unittest.mock import AsyncMock, Mock

import anyio
import pytest

from swe_core.api.executor import ExecutorRun
from swe_core.api.records import NODE_LOST, Outcome, Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import SweError
from swe_core.report.token_audit import audit
from swe_core.rollout.nodes import node as node_module
from swe_core.rollout.nodes.order import MAX_LOST
from swe_core.rollout.nodes.pool import NodePool
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_testing.nodes import SimulatedNode, packed
from swe_testing.records import make_request, make_run, make_task

PATIENCE = 20.0
LOST_AFTER = 0.4
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that fails waits no longer for a rollout that never ends."""
    monkeypatch.setattr("swe_core.rollout.nodes.pool.ENDING", 2.0)


@dataclass
class Driver:
    """A pool with simulated nodes, and what it has committed and told."""

    pool: NodePool
    run: RunDirectory
    nodes: dict[str, SimulatedNode]
    committed: list[Rollout] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    def started(self, request: RolloutRequest) -> None:
        self.tell(request.id, "started")

    def phase(self, rollout_id: str, phase: Phase) -> None:
        self.tell(rollout_id, phase)

    def turn(self, rollout_id: str, turn: Turn) -> None:
        self.tell(rollout_id, "turn")

    def finished(self, rollout: Rollout) -> None:
        raise AssertionError("commit tells of the end")

    def tell(self, rollout_id: str, what: str) -> None:
        self.seen.append((rollout_id, what))
        self.news.set()
        self.news = anyio.Event()

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait until it has happened; looked at after each event."""
        while not happened():
            with anyio.move_on_after(0.02):
                await self.news.wait()

    def commit(self, finished: FinishedRollout) -> None:
        """As a runner does."""
        rollout = finished.rollout
        assert (self.run.path / FOLDERS / rollout.id).is_dir()
        self.run.append(rollout)
        self.committed.append(rollout)

    async def submit(self, rollout_id: str, image: str | None = None) -> None:
        await self.pool.submit(request(rollout_id, image), self, self.commit)

    async def submit_all(self, *ids: str) -> None:
        async with anyio.create_task_group() as tasks:
            for rollout_id in ids:
                tasks.start_soon(self.submit, rollout_id)

    def of(self, rollout_id: str) -> Rollout:
        (found,) = [rollout for rollout in self.committed if rollout.id == rollout_id]
        return found

    def acknowledged(self) -> bool:
        return not any(node.finished for node in self.nodes.values())

    def accounted(self) -> None:
        """Each id is committed once, and its ids are accounted for."""
        assert max(Counter(rollout.id for rollout in self.committed).values()) == 1
        assert audit(self.run, self.run.rollouts()).problems == ()


def request(rollout_id: str, image: str | None = None) -> RolloutRequest:
    made = make_request(make_task(rollout_id))
    return made.model_copy(update={"id": rollout_id, "spec": made.spec.model_copy(update={"image": image})})


@asynccontextmanager
async def driver(
    path: Path, *nodes: SimulatedNode, lost_after: float = LOST_AFTER, growing: bool = False
) -> AsyncIterator[Driver]:
    run = make_run(path / "run")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            served = ExecutorRun({}, {}, run.path, 4, None, lambda: pytest.fail("nothing runs here"))
            pool = NodePool(served, tasks, lost_after)
            made = Driver(pool, run, {node.name: node for node in nodes})
            async with pool.closed_in_the_end():
                for node in nodes:
                    pool.add(node)
                if not growing:
                    pool.no_more_nodes()
                await pool.joined()
                yield made
            tasks.cancel_scope.cancel()
    assert all(node.stopped for node in nodes)


async def test_rollouts_run_on_all_nodes_within_their_slots(tmp_path: Path) -> None:
    one, two = SimulatedNode("one", slots=1), SimulatedNode("two", slots=2)
    async with driver(tmp_path, one, two) as made:
        await made.pool.joined(all_of_them=True)
        assert made.pool.capacity == 3
        assert made.pool.notes == ("A simulated note.",)
        ids = [f"r{number}" for number in range(9)]
        async with anyio.create_task_group() as tasks:
            for rollout_id in ids:
                tasks.start_soon(made.submit, rollout_id)
            await made.until(lambda: len(one._running) + len(two._running) == 3)
            assert (len(one._running), len(two._running)) == (1, 2)
        await made.until(made.acknowledged)
        assert sorted(rollout.id for rollout in made.committed) == ids
        assert made.run.turns("r0")[0].index == 0
        assert made.seen.count(("r0", "turn")) == 1
        made.accounted()
        kept = [(node.orders, node.running) for node in made.pool.nodes.values()]
        for left in (made.pool._offers, made.pool._orders, made.pool._waiting, *chain(*kept)):
            assert len(left) == 0, "the driver's memory is bounded"


async def test_node_that_had_an_image_gets_its_next_rollout(tmp_path: Path) -> None:
    nodes = [SimulatedNode(name, slots=4) for name in ("one", "two", "three")]
    async with driver(tmp_path, *nodes) as made:
        await made.pool.joined(all_of_them=True)
        for number in range(4):
            await made.submit(f"a{number}", "image-a")
            await made.submit(f"b{number}", "image-b")
    with_a, with_b = (
        {node.name for node in nodes for began in node.began if began.startswith(letter)} for letter in "ab"
    )
    assert (len(with_a), len(with_b)) == (1, 1)


@pytest.mark.parametrize(("gone", "says"), [(False, "the node one was lost"), (True, "it was taken away")])
async def test_rollout_of_a_lost_node_runs_again_and_its_ids_are_lost(
    tmp_path: Path, gone: bool, says: str
) -> None:
    one, two = SimulatedNode("one", seconds=600), SimulatedNode("two", slots=1)
    async with driver(tmp_path, one, two) as made:
        await made.pool.joined(all_of_them=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: ("r", "turn") in made.seen)
            if gone:
                one.gone = True
                one._wake()
            else:
                one.slots = 0
                one.crash()
        rollout = made.of("r")
        (lost,) = rollout.retried
        failure = lost.failure
        assert (failure.type, failure.boundary, failure.message) == (NODE_LOST, "sandbox", says)
        assert (lost.folder, lost.turns) == (None, 1)
        assert (rollout.ledger.sampled, rollout.ledger.trainable) == (6, 3)
        assert rollout.ledger.dropped == {"lost_node": 3}
        assert two.began == ["r"]
        made.accounted()


async def test_start_that_never_arrives_is_no_lost_try(tmp_path: Path) -> None:
    """However often: a rollout is an error after three nodes that it may have ended."""
    node = SimulatedNode("one")
    starts = iter(range(MAX_LOST + 1))
    node.dropping = lambda method: method == "start" and next(starts, None) is not None
    async with driver(tmp_path, node) as made:
        await made.submit("r")
        assert (made.of("r").outcome, made.of("r").retried) == ("resolved", ())
        assert (node.began, made.pool.nodes["one"].lost) == (["r"], 0)
        made.accounted()


async def test_finished_rollout_of_a_crashed_node_is_taken_over(tmp_path: Path) -> None:
    node = SimulatedNode("one")
    async with driver(tmp_path, node) as made:
        node.dropping = lambda method: method in ("poll", "read")  # the driver does not hear of the end
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: "r" in node.finished)
            node.crash()
            node.dropping = lambda method: False
        assert node.began == ["r"]
        assert made.of("r").retried == ()
        await made.until(made.acknowledged)


async def test_long_split_runs_rollouts_elsewhere_and_what_returns_counts_once(tmp_path: Path) -> None:
    one, two = SimulatedNode("one", slots=1, seconds=600), SimulatedNode("two", slots=1, seconds=600)
    async with driver(tmp_path, one, two) as made:
        await made.pool.joined(all_of_them=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: ("r", "turn") in made.seen)
            away, other = (one, two) if one.began else (two, one)
            away.break_connection()
            await made.until(lambda: other.began == ["r"])
            away._end("r", None, False)  # it finishes alone
            away.reachable = True
        rollout = made.of("r")
        (given_up,) = rollout.retried
        assert given_up.failure.message == f"an earlier try on the node {away.name} finished first"
        await made.until(lambda: made.acknowledged() and not other._running)
        made.accounted()


@pytest.mark.parametrize("fails", ["unpack", "commit"])
async def test_full_run_directory_ends_the_rollout_and_not_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    node, full = SimulatedNode("one"), Mock(side_effect=OSError(28, "No space left on device"))
    async with driver(tmp_path, node) as made:
        with monkeypatch.context() as patched:
            patched.setattr(node_module if fails == "unpack" else made, fails, full)
            with pytest.raises(OSError, match="No space left"):
                await made.submit("r")
        await made.submit("other")
        await made.until(lambda: list(node.finished) == ["r"])
        await made.submit("r")
        assert node.began == ["r", "other"], "the rollout that was kept is committed, not run again"
        await made.until(made.acknowledged)


@pytest.mark.parametrize("why", ["stale", None])
async def test_cancelled_and_interrupted_rollouts_are_committed_with_their_reason(
    tmp_path: Path, why: str | None
) -> None:
    node = SimulatedNode("one", slots=1, seconds=600)
    async with driver(tmp_path, node) as made:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "runs")
            await made.until(lambda: "runs" in node._running)
            tasks.start_soon(made.submit, "waits")
            await made.until(lambda: ("waits", "started") in made.seen)
            if why is None:
                tasks.cancel_scope.cancel()
            else:
                for rollout_id, reason in (("waits", why), ("runs", why), ("runs", "later"), ("nobody", why)):
                    made.pool.cancel(rollout_id, reason)
        ended = {one.id: (one.outcome, one.cancelled_as) for one in made.committed}
        assert ended == dict.fromkeys(("waits", "runs"), ("cancelled", why))
        assert node.began == ["runs"]
        await made.until(made.acknowledged)
        made.accounted()


async def test_rollout_that_ends_its_nodes_becomes_an_error(tmp_path: Path) -> None:
    node = SimulatedNode("one", seconds=600)
    async with driver(tmp_path, node) as made, anyio.create_task_group() as tasks:
        tasks.start_soon(made.submit, "r")
        for number in range(1, 4):
            await made.until(lambda number=number: made.seen.count(("r", "turn")) == number)  # type: ignore[misc]  # mypy infers no type for a default
            node.crash()
        await made.until(lambda: len(made.committed) == 1)
        rollout = made.of("r")
        assert (rollout.outcome, len(rollout.retried)) == ("error", 3)
        assert (rollout.failure.type, rollout.failure.boundary) == (NODE_LOST, "sandbox")
        assert rollout.ledger.dropped == {"lost_node": 9}
        made.accounted()


async def test_node_with_a_full_disk_gets_no_more_rollouts(tmp_path: Path) -> None:
    one, two = SimulatedNode("one", slots=9), SimulatedNode("two", slots=1)
    one.full = True
    async with driver(tmp_path, one, two) as made:
        await made.pool.joined(all_of_them=True)
        await made.submit_all("r0", "r1", "r2")
        assert sorted(two.began) == ["r0", "r1", "r2"]
        assert made.pool.capacity == 1
        two.full = True
        with pytest.raises(SweError, match=r"no node can run rollouts \(one, two: no space left\)"):
            await made.submit("r3")
        assert [rollout.id for rollout in made.committed if rollout.id == "r3"] == []


async def test_node_that_refuses_the_run_or_fails_to_start_is_left_out(tmp_path: Path) -> None:
    one, two, three = SimulatedNode("one"), SimulatedNode("two"), SimulatedNode("three")
    one.refusal = "it has swe-core 0.9, and the driver 1.0: install the same version"
    no_memory = BlockingIOError(11, "Resource temporarily unavailable")
    two.start = AsyncMock(side_effect=no_memory)  # type: ignore[method-assign]  # of this one only
    async with driver(tmp_path, one, two, three) as made:
        await made.submit("r")
        assert three.began == ["r"]
        await made.until(lambda: made.pool.nodes["one"].out != "" != made.pool.nodes["two"].out)


async def test_run_without_a_node_that_opens_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swe_core.rollout.nodes.pool.OPENING", 0.1)
    one, two, silent = SimulatedNode("one"), SimulatedNode("two"), SimulatedNode("silent")
    one.refusal = two.refusal = "its clock is 3600 s ahead"
    silent._on_begin = lambda message: anyio.sleep_forever()  # type: ignore[assignment]  # of this one only
    for nodes, why in (
        ([one, two], "one, two: its clock is 3600 s ahead"),
        ([silent], "silent: it did not open within 0.1 s"),
    ):
        with pytest.raises(ExceptionGroup) as raised:
            async with driver(tmp_path / why, *nodes):
                pytest.fail("it must not open")
        (problem,) = raised.value.exceptions
        assert f"no node can run rollouts ({why})" in str(problem)


async def test_run_waits_for_nodes_that_come_later(tmp_path: Path) -> None:
    first, later = SimulatedNode("first", slots=1), SimulatedNode("later")
    async with driver(tmp_path, first, growing=True) as made:
        first.gone = True
        first._wake()
        await made.until(lambda: made.pool.capacity == 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: ("r", "started") in made.seen)
            made.pool.add(later)
        assert later.began == ["r"]


async def test_drained_node_finishes_what_it_runs(tmp_path: Path) -> None:
    one, two = SimulatedNode("one", slots=1), SimulatedNode("two", slots=1)
    async with driver(tmp_path, one, two) as made:
        await made.pool.joined(all_of_them=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: ("r", "turn") in made.seen)
            running, other = (one, two) if one.began else (two, one)
            made.pool.drain(running.name, "it is taken away soon")
        assert made.of("r").retried == ()
        await made.submit_all("r1", "r2")
        assert sorted(other.began) == ["r1", "r2"]


async def test_versions_and_servers_reach_each_node_also_later(tmp_path: Path) -> None:
    one, two, three = SimulatedNode("one", seconds=600), SimulatedNode("two"), SimulatedNode("three")
    async with driver(tmp_path, one, two, growing=True, lost_after=600) as made:
        await made.pool.joined(all_of_them=True)
        made.pool.engine.set_version(1)
        await made.until(lambda: one.versions == [1] and two.versions == [1])
        two.break_connection()
        made.pool.engine.set_version(2)
        await made.until(lambda: one.versions == [1, 2])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: "r" in one._running)
            assert list(await made.pool.engine.take_out("http://a/v1")) == ["r"]
            two.reachable = True
            made.pool.add(three)
            await made.until(lambda: two.versions[-1:] == [2] and three.versions == [2])
            assert one.without == two.without == three.without == {"http://a/v1"}
            made.pool.engine.put_in("http://a/v1")
            await made.until(lambda: not (one.without | two.without | three.without))
            made.pool.cancel("r", "stale")


async def test_each_kept_rollout_is_recovered_once(tmp_path: Path) -> None:
    node = SimulatedNode("one")
    for name, cancelled in (("new", False), ("known", False), ("interrupted", True)):
        node.finished[name] = packed(request(name), cancelled=cancelled)
    stale = packed(request("stale"), "stale", cancelled=True)
    node.finished["stale"] = stale
    async with driver(tmp_path, node) as made:
        again: Collection[Outcome] = ["cancelled"]
        await made.pool.recover(made.commit, ["known"], again)
        assert sorted(rollout.id for rollout in made.committed) == ["new", "stale"]
        await made.until(made.acknowledged)
        await made.submit("interrupted")
        assert node.began == ["interrupted"]


async def test_metrics_have_the_names_of_the_nodes(tmp_path: Path) -> None:
    from aiohttp import ClientSession

    from swe_core.rollout.nodes.metrics import serve_metrics

    async with driver(tmp_path, SimulatedNode("one"), SimulatedNode("two", slots=5)) as made:
        await made.pool.joined(all_of_them=True)
        await made.submit("r")
        async with serve_metrics(made.pool) as address, ClientSession() as session:
            async with session.get(f"{address.url}/metrics") as refused:
                assert refused.status == 401
            key = {"Authorization": f"Bearer {address.token}"}
            async with session.get(f"{address.url}/metrics", headers=key) as response:
                lines = (await response.text()).splitlines()
    assert 'swe_node_slots{node="two"} 5.0' in lines
    assert 'swe_node_up{node="one"} 1.0' in lines
    assert 'swe_tokens_total{kind="completion",node="one"} 3.0' in lines
    assert 'swe_tokens_total{kind="completion",node="two"} 3.0' in lines
    assert sum(line.startswith("swe_node_finished_total{") for line in lines) == 1


@pytest.mark.parametrize("seed", [1, pytest.param(range(2, 30), marks=pytest.mark.slow, id="many")])
async def test_random_crashes_and_splits_lose_nothing_and_repeat_nothing(
    seed: int | range, tmp_path: Path
) -> None:
    for number in [seed] if isinstance(seed, int) else seed:
        await disturbed(tmp_path / str(number), Random(number))


async def disturbed(path: Path, random: Random) -> None:
    nodes = [SimulatedNode(f"n{number}", slots=3, seconds=0.1) for number in range(3)]
    ids = [f"r{number}" for number in range(25)]
    async with driver(path, *nodes, lost_after=0.2) as made:
        for node in nodes:
            node.dropping = lambda method: random.random() < 0.05
        async with anyio.create_task_group() as tasks:

            async def disturb() -> None:
                while True:
                    await anyio.sleep(random.uniform(0, 0.1))
                    node = random.choice(nodes)
                    if not node.reachable:
                        node.reachable = True
                    elif random.random() < 0.5:
                        node.crash()
                    else:
                        node.break_connection()

            tasks.start_soon(disturb)
            await made.submit_all(*ids)
            tasks.cancel_scope.cancel()
        for node in nodes:
            node.reachable, node.dropping = True, lambda method: False
        await made.until(made.acknowledged)
        assert sorted(rollout.id for rollout in made.committed) == sorted(ids)
        made.accounted()
