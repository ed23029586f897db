"""The pool gives rollouts to nodes, and takes each over once, whatever happens to the nodes."""

from __future__ import annotations

import io
import math
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from unittest.mock import AsyncMock, Mock

import anyio
import orjson
import pytest

from swe_core.api.executor import ExecutorRun
from swe_core.api.limits import Limits
from swe_core.api.records import NODE_LOST, Outcome, Rollout
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.sandbox import SandboxSpec
from swe_core.api.worker import FinishedRollout
from swe_core.errors import SweError
from swe_core.report.token_audit import audit
from swe_core.rollout.nodes import node as node_module
from swe_core.rollout.nodes.messages import Start, TurnEvent, from_bytes, to_bytes
from swe_core.rollout.nodes.order import MAX_LOST
from swe_core.rollout.nodes.pool import NodePool
from swe_core.rollout.nodes.spool import PART, Spool, unpack
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_testing.nodes import SimulatedNode, _turn, packed
from swe_testing.records import make_request, make_rollout, make_run, make_task
from swe_testing.waiting import until

from ..runner_bench import Witness

PATIENCE = 20.0
LOST_AFTER = 0.4


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
    observer: Witness
    committed: list[Rollout] = field(default_factory=list)

    @property
    def seen(self) -> list[tuple[str, str]]:
        return self.observer.seen

    def commit(self, finished: FinishedRollout) -> None:
        """As a runner does."""
        rollout = finished.rollout
        assert (self.run.path / FOLDERS / rollout.id).is_dir()
        self.run.append(rollout)
        self.committed.append(rollout)

    async def submit(self, rollout_id: str, image: str | None = None) -> None:
        await self.pool.submit(request(rollout_id, image), self.observer, self.commit)

    async def submit_all(self, *ids: str) -> None:
        async with anyio.create_task_group() as tasks:
            for rollout_id in ids:
                tasks.start_soon(self.submit, rollout_id)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SimulatedNode]:
        """The rollout `r` has had its turn, on this node, and has ended when the context is left."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.submit, "r")
            await until(lambda: ("r", "turn") in self.seen)
            yield next(node for node in self.nodes.values() if "r" in node._running)

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
    return make_request(make_task(rollout_id), id=rollout_id, spec=SandboxSpec(image=image))


@asynccontextmanager
async def driver(
    path: Path, *nodes: SimulatedNode, lost_after: float = LOST_AFTER, growing: bool = False
) -> AsyncIterator[Driver]:
    run = make_run(path / "run")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            served = ExecutorRun({}, {}, run.path, 4, None, lambda: pytest.fail("nothing runs here"))
            pool = NodePool(served, tasks, lost_after)
            told = Mock(side_effect=AssertionError("commit tells of the end"))
            made = Driver(pool, run, {node.name: node for node in nodes}, Witness(on_finished=told))
            async with pool.closed_in_the_end():
                for node in nodes:
                    pool.add(node)
                if not growing:
                    pool.no_more_nodes()
                await pool.joined(all_of_them=True)
                yield made
            tasks.cancel_scope.cancel()
    assert all(node.stopped for node in nodes)


async def test_rollouts_run_on_all_nodes_within_their_slots(tmp_path: Path) -> None:
    one, two = SimulatedNode("one", slots=1, seconds=0.2), SimulatedNode("two", slots=2, seconds=0.2)
    async with driver(tmp_path, one, two) as made:
        assert made.pool.capacity == 3
        assert made.pool.notes == ("A simulated note.",)
        ids = [f"r{number}" for number in range(9)]
        async with anyio.create_task_group() as tasks:
            for rollout_id in ids:
                tasks.start_soon(made.submit, rollout_id)
            await until(lambda: len(one._running) + len(two._running) == 3)
            assert (len(one._running), len(two._running)) == (1, 2)
        await until(made.acknowledged)
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
        async with made.running():
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
            await until(lambda: "r" in node.finished)
            node.crash()
            node.dropping = lambda method: False
        assert node.began == ["r"]
        assert made.of("r").retried == ()
        await until(made.acknowledged)


async def test_long_split_runs_rollouts_elsewhere_and_what_returns_counts_once(tmp_path: Path) -> None:
    """The ids of the later try are dropped."""
    one, two = SimulatedNode("one", slots=1, seconds=600), SimulatedNode("two", slots=1, seconds=600)
    async with driver(tmp_path, one, two) as made:
        async with made.running() as away:
            other = two if away is one else one
            away.break_connection()
            await until(lambda: made.seen.count(("r", "turn")) == 2)
            for _ in range(4):
                other._emit(TurnEvent, rollout="r", turn=_turn())
            await until(lambda: made.seen.count(("r", "turn")) == 6)
            away._end("r", None, False)  # it finishes alone
            away.reachable = True
        rollout = made.of("r")
        (given_up,) = rollout.retried
        assert given_up.failure.message == f"an earlier try on the node {away.name} finished first"
        # sampled: three by the try that counts, five times three by the other
        assert rollout.ledger.sampled == 18
        assert rollout.ledger.dropped == {"lost_node": 15}
        await until(lambda: made.acknowledged() and not other._running)
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
        await until(lambda: list(node.finished) == ["r"])
        await made.submit("r")
        assert node.began == ["r", "other"], "the rollout that was kept is committed, not run again"
        await until(made.acknowledged)


@pytest.mark.parametrize("why", ["stale", None])
async def test_cancelled_and_interrupted_rollouts_are_committed_with_their_reason(
    tmp_path: Path, why: str | None
) -> None:
    node = SimulatedNode("one", slots=1, seconds=600)
    async with driver(tmp_path, node) as made:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "runs")
            await until(lambda: "runs" in node._running)
            tasks.start_soon(made.submit, "waits")
            await until(lambda: ("waits", "started") in made.seen)
            if why is None:
                tasks.cancel_scope.cancel()
            else:
                for rollout_id, reason in (("waits", why), ("runs", why), ("runs", "later"), ("nobody", why)):
                    made.pool.cancel(rollout_id, reason)
        ended = {one.id: (one.outcome, one.cancelled_as) for one in made.committed}
        assert ended == dict.fromkeys(("waits", "runs"), ("cancelled", why))
        assert node.began == ["runs"]
        await until(made.acknowledged)
        made.accounted()


async def test_rollout_that_ends_its_nodes_becomes_an_error(tmp_path: Path) -> None:
    node = SimulatedNode("one", seconds=600)
    async with driver(tmp_path, node) as made, anyio.create_task_group() as tasks:
        tasks.start_soon(made.submit, "r")
        for number in range(1, 4):
            await until(lambda number=number: made.seen.count(("r", "turn")) == number)  # type: ignore[misc]  # mypy infers no type for a default
            node.crash()
        await until(lambda: len(made.committed) == 1)
        rollout = made.of("r")
        assert (rollout.outcome, len(rollout.retried)) == ("error", 3)
        assert (rollout.failure.type, rollout.failure.boundary) == (NODE_LOST, "sandbox")
        assert rollout.ledger.dropped == {"lost_node": 9}
        made.accounted()


async def test_node_with_a_full_disk_gets_no_more_rollouts(tmp_path: Path) -> None:
    one, two = SimulatedNode("one", slots=9), SimulatedNode("two", slots=1)
    one.full = True
    async with driver(tmp_path, one, two) as made:
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
        await until(lambda: made.pool.nodes["one"].out != "" != made.pool.nodes["two"].out)


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
        await until(lambda: made.pool.capacity == 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await until(lambda: ("r", "started") in made.seen)
            made.pool.add(later)
        assert later.began == ["r"]


async def test_drained_node_finishes_what_it_runs(tmp_path: Path) -> None:
    async with driver(tmp_path, SimulatedNode("one"), SimulatedNode("two")) as made:
        async with made.running() as drained:
            made.pool.drain(drained.name, "it is taken away soon")
        assert made.of("r").retried == ()
        await made.submit_all("r1", "r2")
        assert drained.began == ["r"]


async def test_versions_and_servers_reach_each_node_also_later(tmp_path: Path) -> None:
    one, two, three = SimulatedNode("one", seconds=600), SimulatedNode("two"), SimulatedNode("three")
    async with driver(tmp_path, one, two, growing=True, lost_after=600) as made:
        made.pool.engine.set_version(1)
        await until(lambda: one.versions == [1] and two.versions == [1])
        two.break_connection()
        made.pool.engine.set_version(2)
        await until(lambda: one.versions == [1, 2])
        async with made.running():
            assert list(await made.pool.engine.take_out("http://a/v1")) == ["r"]
            two.reachable = True
            made.pool.add(three)
            await until(lambda: two.versions[-1:] == [2] and three.versions == [2])
            assert one.without == two.without == three.without == {"http://a/v1"}
            made.pool.engine.put_in("http://a/v1")
            await until(lambda: not (one.without | two.without | three.without))
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
        await until(made.acknowledged)
        await made.submit("interrupted")
        assert node.began == ["interrupted"]


async def test_metrics_have_the_names_of_the_nodes(tmp_path: Path) -> None:
    from aiohttp import ClientSession

    from swe_core.rollout.nodes.metrics import serve_metrics

    async with driver(tmp_path, SimulatedNode("one"), SimulatedNode("two", slots=5)) as made:
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


def spooled(path: Path, name: str, files: dict[str, bytes], outcome: str = "resolved") -> Spool:
    folder = path / f"folder-{name}"
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    rollout = make_rollout(id="r", outcome=outcome).model_dump(mode="json")
    (spool := Spool(path / "spool")).add("r", orjson.dumps(rollout), (), folder)
    return spool


async def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    """Cut short after its first file, or with rows that are none."""
    spooled(tmp_path, "a", {"turns.jsonl": b"x" * 600, "patch.diff": b"y" * 600})
    data = (tmp_path / "spool" / "r.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        end_of_record = archive.getmembers()[1].offset
    rows = io.BytesIO(data[:end_of_record] + bytes(1024))
    with tarfile.open(fileobj=rows, mode="a") as archive:
        member = tarfile.TarInfo("rows.npz")
        member.size = 103
        archive.addfile(member, io.BytesIO(b"PK\3\4" + b"0" * 99))
    for damaged in (io.BytesIO(data[:end_of_record]), io.BytesIO(rows.getvalue())):
        with pytest.raises(SweError, match="damaged"):
            unpack(damaged, tmp_path / "rollouts")


async def test_two_tries_of_one_spool_do_not_mix(tmp_path: Path) -> None:
    """The file is replaced while it is read in parts."""
    big = {"agent.log": b"A" * PART, "turns.jsonl": b"A" * 10, "patch.diff": b"A"}
    spool = spooled(tmp_path, "a", big)
    file = io.BytesIO(spool.read("r", 0))
    file.seek(0, 2)
    spooled(tmp_path, "b", {name: content.replace(b"A", b"B") for name, content in big.items()})
    while part := spool.read("r", file.tell()):
        file.write(part)
    file.seek(0)
    with pytest.raises(SweError, match="damaged"):
        unpack(file, tmp_path / "rollouts")


def held_back(node: SimulatedNode, method: str) -> tuple[anyio.Event, anyio.Event]:
    """A node's answers to a method are on their way until the second event; the first says that one is."""
    sent, go, real = anyio.Event(), anyio.Event(), getattr(node, f"_on_{method}")

    async def slowly(message: bytes) -> bytes:
        answer: bytes = await real(message)
        sent.set()
        await go.wait()
        return answer

    setattr(node, f"_on_{method}", slowly)
    return sent, go


async def test_version_set_while_a_node_opens_reaches_it(tmp_path: Path) -> None:
    """Its `begin` takes a while: it builds a bundle, or the network is slow."""
    slow = SimulatedNode("slow")
    began, go = held_back(slow, "begin")
    async with driver(tmp_path, SimulatedNode("fast"), slow) as made:
        await began.wait()
        made.pool.engine.set_version(3)
        await made.pool.engine.take_out("http://a/v1")
        go.set()
        await made.pool.joined(all_of_them=True)
        await made.submit_all("r0", "r1", "r2")
        with anyio.move_on_after(2):
            await until(lambda: slow.versions[-1:] == [3] and slow.without == {"http://a/v1"})
        assert (slow.versions, slow.without) == ([3], {"http://a/v1"})


@pytest.mark.slow
async def test_late_transfer_of_a_cancelled_rollout_does_not_end_the_run(tmp_path: Path) -> None:
    node = SimulatedNode("one", slots=1, seconds=600)
    reading, go = held_back(node, "read")
    async with driver(tmp_path, node) as made:
        with anyio.CancelScope() as scope:
            async with made.running():
                scope.cancel()
        # ENDING has passed, and the rollout is committed as cancelled without its node
        assert [one.outcome for one in made.committed] == ["cancelled"]
        assert reading.is_set()
        go.set()
        await made.submit_all()
        await anyio.wait_all_tasks_blocked()


async def test_request_with_any_text_and_limit_travels(tmp_path: Path) -> None:
    """JSON of most libraries has neither."""
    task = make_task("r").model_copy(update={"hints_text": "a lone surrogate: \ud83d"})
    asked = make_request(task, id="r", limits=Limits(agent=math.inf))
    sent = to_bytes(Start(epoch=1, request=asked))
    assert from_bytes(Start, sent).request.limits.agent == math.inf
    async with driver(tmp_path, SimulatedNode("one")) as driven:
        await driven.pool.submit(asked, driven.observer, driven.commit)
    assert [rollout.outcome for rollout in driven.committed] == ["resolved"]


async def test_malformed_answer_takes_the_node_out(tmp_path: Path) -> None:
    one, two = SimulatedNode("one", slots=1), SimulatedNode("two", slots=1)
    async with driver(tmp_path, one, two) as made:
        broken = AsyncMock(return_value=b"0 Internal Server Error")
        one._on_poll = broken  # type: ignore[method-assign]  # of this one only
        one._wake()
        await made.submit_all("r0", "r1", "r2")
        await until(lambda: made.pool.nodes["one"].out != "")


async def test_only_node_that_comes_back_goes_on(tmp_path: Path) -> None:
    """Nothing ran elsewhere, so its work is not thrown away, and one split counts once."""
    node = SimulatedNode("one", slots=1, seconds=600)
    async with driver(tmp_path, node) as made:
        async with made.running():
            node.break_connection()
            await until(lambda: len(made.pool._orders["r"].lost) == 1)
            node.reachable = True
            await until(lambda: made.pool.nodes["one"].joined)
            node._end("r", None, False)
        assert node.began == ["r"]
        assert made.of("r").retried == ()
        made.accounted()


async def test_error_to_run_again_is_not_committed_when_its_node_joins_late(tmp_path: Path) -> None:
    fast, late = SimulatedNode("fast"), SimulatedNode("late")
    late.finished["r"] = spooled(tmp_path, "a", {}, "error").read("r", 0)
    async with driver(tmp_path, fast, growing=True) as made:
        await made.pool.recover(made.commit, [], ["error"])
        made.pool.add(late)
        await until(lambda: made.pool.nodes["late"].joined)
        await made.submit("r")
        assert made.of("r").outcome == "resolved"
        made.nodes["late"] = late


async def test_resume_does_not_wait_for_ever_for_a_node_that_does_not_answer(tmp_path: Path) -> None:
    silent = SimulatedNode("silent")
    silent.reachable = False
    async with driver(tmp_path, SimulatedNode("one"), silent) as made:
        with anyio.move_on_after(15) as scope:  # LOST_AFTER is 0.4
            await made.pool.recover(made.commit, [], [])
    assert not scope.cancelled_caught


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
        await until(made.acknowledged)
        assert sorted(rollout.id for rollout in made.committed) == sorted(ids)
        made.accounted()
