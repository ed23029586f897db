"""RolloutFeeder and GroupScheduler in one process: scripted rollouts, and a policy that advances."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.from_thread
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.engine import EngineSession
from swe_core.api.executor import ExecutorRun
from swe_core.api.grader import Graded
from swe_core.api.limits import Budgets
from swe_core.api.records import Rollout, Turn, TurnTokens
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.sandbox import Sandbox, SandboxSpec
from swe_core.builtin.demo.source import DemoSource
from swe_core.builtin.executors import LocalExecutor
from swe_core.builtin.local import bwrap
from swe_core.builtin.local.provider import LocalProvider
from swe_core.builtin.vllm import VLLMConfig
from swe_core.builtin.vllm.request import RequestWriter
from swe_core.errors import ConfigError, EngineUnavailable, PluginError, SandboxDied, SweError
from swe_core.interception.server import InterceptionServer
from swe_core.report.token_audit import audit
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import FOLDERS, RUN_FILE, RunDirectory, new_run_info
from swe_core.rollout.runner import Runner
from swe_core.rollout.site import LocalSite
from swe_core.rollout.training_records import GROUPS_FILE, append_lines, read_groups
from swe_core.run.plan import sandbox_spec
from swe_core.run.settings import Settings
from swe_core.system.redaction import Redactor
from swe_testing.records import make_request
from swe_trainer_trl.journal.groups import Member, advantages
from swe_trainer_trl.journal.journal import Journal, ReadyGroup
from swe_trainer_trl.rollouts import group_scheduler
from swe_trainer_trl.rollouts.group_scheduler import groups_to_keep_busy, tasks_from
from swe_trainer_trl.rollouts.messages import (
    Back,
    Beat,
    Closed,
    Command,
    Lost,
    Metrics,
    Report,
    Stop,
    Taken,
    Version,
)
from swe_trainer_trl.rollouts.metrics import RolloutMetrics
from swe_trainer_trl.rollouts.staleness import StalenessCheck
from swe_trainer_trl.rollouts.worker import RolloutFeeder

from ..journal.test_journal import fates
from ..scripted_rollouts import (
    OPTIONS,
    PATIENCE,
    AgentConfig,
    ScriptedAgent,
    ScriptedEngine,
    ScriptedGrader,
    agents,
    leave_repositories,
    place,
    words_of,
)

pytestmark = pytest.mark.anyio

SERVER, OTHER = "http://one", "http://other"


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes of a few processes, on the bare host."""
    leave_repositories(monkeypatch.setattr)
    monkeypatch.setattr(bwrap, "why_not", lambda _: "these agents do no harm")


class Script:
    """What the engine says. A word behind "NAME>" is held until `let` says that name; at "unreachable" the
    engine fails."""

    def __init__(self, words: Mapping[str, Sequence[str]]) -> None:
        self.words = dict(words)
        self._held: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._asked: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    async def __call__(self, session: EngineSession, call: int) -> str:
        name, word = words_of(self.words, session, call)
        if name:
            self._asked[name].set()
            await self._held[name].wait()
        if word == "unreachable":
            raise EngineUnavailable("the server cannot be reached")
        return word

    def let(self, name: str) -> None:
        self._held[name].set()

    async def held(self, name: str) -> None:
        """Wait until a task waits for `name`."""
        await self._asked[name].wait()


class Watched(LocalProvider):
    """Local sandboxes; `alive` are the rollouts of those that are open, and each of `dying`, attempts, loses
    one sandbox once its agent is done."""

    def __init__(self, dying: Collection[int] = ()) -> None:
        super().__init__(unisolated=True)
        self.alive: list[str] = []
        self._dying = set(dying)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        name = spec.labels["swe-core.rollout"]
        try:
            async with super().open(spec) as sandbox:
                self.alive.append(name)
                attempt = place(name)[1]
                if attempt in self._dying:
                    self._dying.remove(attempt)
                    sandbox.kill_all = _dies
                yield sandbox
        finally:  # closed by now
            if name in self.alive:
                self.alive.remove(name)


async def _dies() -> None:
    raise SandboxDied("its host is gone")


@dataclass
class Feed:
    """A feeder that runs, and everything it runs with."""

    script: Script
    journal: Journal
    runner: Runner
    engine: ScriptedEngine
    provider: Watched
    mark: str
    commands: anyio.abc.ObjectSendStream[Command]
    dead: bool = False
    problem: SweError | None = None
    reports: list[Report] = field(default_factory=list)
    told: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)

    def report(self, message: Report) -> None:
        self.reports.append(message)
        self._wake()

    def _wake(self, *_: object) -> None:
        self.told.set()
        self.told = anyio.Event()

    started = phase = turn = finished = _wake  # what the runner tells

    # what tests ask

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self.told.wait()

    async def say(self, *commands: Command) -> None:
        for command in commands:
            await self.commands.send(command)

    async def stop(self) -> None:
        await self.say(Stop())
        await self.ended.wait()

    @property
    def closed(self) -> list[int]:
        """The groups that were reported, in order."""
        return [report.group for report in self.reports if isinstance(report, Closed)]

    @property
    def rollouts(self) -> dict[str, Rollout]:
        """What is recorded: group/attempt, or with the number of the try, to the rollout."""
        found = self.runner.store.rollouts()
        assert len({rollout.id for rollout in found}) == len(found)
        return {_short(rollout.id): rollout for rollout in found}

    @property
    def outcomes(self) -> dict[str, str]:
        """The same, with their outcomes alone."""
        return {name: rollout.outcome for name, rollout in self.rollouts.items()}

    @property
    def ready(self) -> list[ReadyGroup]:
        return self.journal.ready(limit=99)

    def measured(self, name: str) -> float:
        """A count, over all reports."""
        found = (report.values.get(name, 0.0) for report in self.reports if isinstance(report, Metrics))
        return sum(value for value in found if isinstance(value, float))

    def agents(self) -> int:
        return agents(self.mark)


def _short(rollout_id: str) -> str:
    return re.sub(r"^.*-(?:g(\d+)|(eval[\d.]+))-", r"\1\2/", rollout_id)


@asynccontextmanager
async def feeding(
    path: Path,
    words: Mapping[str, Sequence[str]],
    *first: Command,
    tasks: int = 1,
    concurrency: int = 4,
    version: int = 1,
    engine: bool = True,
    prepare: Callable[[Journal], None] = lambda journal: None,
    dying: Collection[int] = (),
    budget: Budgets | None = None,
    shape: Callable[[Rollout, float], float] = lambda rollout, reward: reward,
    held_out: int = 0,
    servers: Sequence[str] = (SERVER,),
    **options: Any,
) -> AsyncIterator[Feed]:
    """A feeder in the run directory `path`, which resumes an existing run; `first` are its first
    commands. The last `held_out` of its tasks are evaluated on. It is stopped in the end."""
    mark = uuid.uuid4().hex
    agent, script, provider = ScriptedAgent(AgentConfig(mark=mark)), Script(words), Watched(dying)
    scripted = ScriptedEngine(script, lambda rollout: servers[place(rollout)[1] % len(servers)])
    redactor = Redactor()
    if (path / RUN_FILE).exists():
        run = RunDirectory.resume(path, redactor)
    else:
        run = RunDirectory.create(path, new_run_info({}, {}, None, []), redactor)
    requests = [
        make_request(task, spec=sandbox_spec(task, Settings()), sandbox_retries=1, budget=budget or Budgets())
        for task in itertools.islice(DemoSource().tasks(), tasks + held_out)
    ]
    journal = Journal(path / "train.sqlite")
    prepare(journal)
    send, receive = anyio.create_memory_object_stream[Command](99)
    executor, answering = LocalExecutor(), scripted if engine else None
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(scripted)
        server = await stack.enter_async_context(InterceptionServer())
        gate = (server, answering) if answering is not None else None
        context = RunContext(agent, provider, ScriptedGrader(), gate, None, redactor)
        site = LocalSite(context, path / FOLDERS)
        served = ExecutorRun({}, {}, path, concurrency, answering, lambda: nullcontext(site))
        await stack.enter_async_context(executor.open(served))
        await stack.enter_async_context(send)
        await stack.enter_async_context(receive)
        runner = Runner(requests, executor, answering, run, [], concurrency, shape=shape)
        await runner.recover()
        feed = Feed(script, journal, runner, scripted, provider, mark, send)
        runner.observe(feed)
        feeder = RolloutFeeder(
            OPTIONS.model_copy(update=options),
            journal,
            version,
            {version: version},
            aiter(receive),
            servers,
            feed.report,
            lambda url: feed.dead,
            [request.task.instance_id for request in requests[tasks:]],
        )

        async def drive() -> None:
            try:
                await feeder.run(runner)
            except SweError as error:
                feed.problem = error
            feed.ended.set()
            feed._wake()

        await feed.say(*first)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(drive)
                yield feed
                if not feed.ended.is_set():
                    await feed.stop()
    journal.close()
    assert provider.alive == []
    assert feed.agents() == 0
    assert audit(run, run.rollouts()).problems == ()


# groups


async def test_group_is_handed_over_whole_and_errors_have_no_part_in_its_baseline(tmp_path: Path) -> None:
    words = {"1": ["again", "late>done"], "2": ["crash"], "*": ["again", "done"]}
    async with feeding(tmp_path / "run", words, group_size=4, groups_ahead=1) as feed:
        await feed.script.held("late")
        await feed.until(lambda: len(feed.rollouts) == 3)
        while len(feed.journal.unfinished()[0].members) < 3:
            await anyio.lowlevel.checkpoint()
        assert feed.ready == []
        assert feed.closed == []
        feed.script.let("late")
        await feed.until(lambda: feed.closed == [0])
        (group,) = feed.ready
    assert feed.outcomes == {"0/0": "resolved", "0/1": "unresolved", "0/2": "error", "0/3": "unresolved"}
    rows = {_short(row.rollout_id): row for _, row in group.rows}
    assert set(rows) == {"0/0", "0/1", "0/3"}
    wanted = advantages([1.0, 0.0, 0.0])
    assert [rows[f"0/{attempt}"].advantage for attempt in (0, 1, 3)] == wanted.tolist()
    assert [rows[f"0/{attempt}"].reward for attempt in (0, 1, 3)] == [1.0, 0.0, 0.0]
    assert {row.update for row in rows.values()} == {1}
    text = bytes(rows["0/0"].input_ids[rows["0/0"].completion_mask == 1].tolist())
    assert text == b"againdone"
    (line,) = read_groups(tmp_path / "run")
    assert (line.group, line.task_id, line.skipped) == (0, feed.rollouts["0/0"].task_id, None)
    assert [_short(member.rollout_id) for member in line.members] == [f"0/{attempt}" for attempt in range(4)]
    assert [member.reward for member in line.members] == [1.0, 0.0, None, 0.0]
    assert [member.advantage for member in line.members] == [wanted[0], wanted[1], None, wanted[2]]
    assert [member.left_out for member in line.members] == [None, None, "no_reward", None]


async def test_no_group_begins_after_the_last_one(tmp_path: Path) -> None:
    """Also of a run that is resumed: the trainer would end before it had trained them."""
    run, words = tmp_path / "run", {"*": ["done"], "1": ["held>done"]}
    async with feeding(run, words, groups=3, groups_ahead=9) as feed:
        await feed.script.held("held")
        await feed.until(lambda: len(feed.rollouts) == 3)
        assert feed.journal.groups_begun() == 3
    async with feeding(run, {"*": ["done"]}, groups=3, groups_ahead=9) as feed:
        await feed.until(lambda: sorted(feed.closed) == [0, 1, 2])
        assert feed.journal.groups_begun() == 3
        assert feed.journal.all_closed(3)
        assert feed.problem is None
        assert not feed.ended.is_set()  # it waits for the trainer


async def test_group_has_its_line_before_it_is_closed_and_once_more_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a kill in between would leave a group without a line."""
    run = tmp_path / "run"

    def killed(self: Journal, *_: object) -> None:
        raise SweError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "close_group", killed)
        async with feeding(run, {"*": ["done"]}, group_size=2, groups_ahead=1) as feed:
            await feed.ended.wait()
    (before,) = read_groups(run)
    async with feeding(run, {"*": ["done"]}, group_size=2, groups_ahead=1) as feed:
        await feed.until(lambda: feed.closed == [0])
    assert (run / GROUPS_FILE).read_bytes().count(b"\n") == 2
    assert read_groups(run) == [before]


async def test_end_that_comes_between_the_line_of_a_group_and_its_close_waits_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a group has a line that says it is closed, and is not."""
    async with feeding(tmp_path / "run", {"*": ["done"]}, group_size=2, groups_ahead=1) as feed:

        def append(*args: Any) -> None:
            append_lines(*args)
            with suppress(asyncio.CancelledError):  # by the end that this asks for
                anyio.from_thread.run(feed.say, Stop())
                anyio.from_thread.run(anyio.wait_all_tasks_blocked)

        monkeypatch.setattr(group_scheduler, "append_lines", append)
        await feed.ended.wait()
        lines = read_groups(tmp_path / "run")
        assert [group.id for group in feed.ready] == [line.group for line in lines] == [0]


async def test_line_of_a_group_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def directory(journal: Journal) -> None:
        (tmp_path / "run" / GROUPS_FILE).mkdir()

    async with feeding(
        tmp_path / "run", {"*": ["done"]}, group_size=2, groups_ahead=2, prepare=directory
    ) as feed:
        await feed.until(lambda: len(feed.closed) == 2)
        assert len(feed.ready) == 2
    assert feed.problem is None
    assert [record.getMessage() for record in caplog.records if GROUPS_FILE in record.getMessage()] == [
        "groups.jsonl lacks groups: Is a directory"
    ]


async def test_member_whose_sandbox_failed_is_run_again_and_its_last_try_is_trained(tmp_path: Path) -> None:
    words = {"0": ["again", "again", "done"], "*": ["done"]}
    async with feeding(tmp_path / "run", words, group_size=2, groups_ahead=1, dying=[0]) as feed:
        await feed.until(lambda: feed.closed == [0])
        (group,) = feed.ready
    rows = {_short(row.rollout_id): row for _, row in group.rows}
    assert {name: row.reward for name, row in rows.items()} == {"0/0": 1.0, "0/1": 0.0}
    rollout, row = feed.rollouts["0/0"], rows["0/0"]
    assert len(rollout.retried) == 1
    assert bytes(row.input_ids[row.completion_mask == 1].tolist()) == b"done"
    assert rollout.ledger is not None
    assert (rollout.ledger.trainable, rollout.ledger.dropped) == (4, {"retried": len(b"againagaindone")})
    assert feed.measured("ledger/dropped_retried_tokens_total") == len(b"againagaindone")


@pytest.mark.parametrize("trained", [True, False])
async def test_summaries_are_trained_or_context_and_their_tokens_are_booked(
    tmp_path: Path, trained: bool
) -> None:
    """A session with two compactions: the calls after "compact" ask for summaries."""
    words = ["again", "compact", "again", "compact", "again", "done"]
    run = tmp_path / "run"
    async with feeding(run, {"*": words}, groups_ahead=1, summaries=trained) as feed:
        await feed.until(lambda: feed.closed == [0])
        (group,) = feed.ready
        tokens = fates(feed.journal)
    text, summary = "".join(words).encode(), len("again")
    learned = text if trained else b"againcompactcompactdone"
    for _, row in group.rows:
        assert bytes(row.input_ids[row.completion_mask == 1].tolist()) == learned
        assert bytes(one for one in row.input_ids.tolist() if one > len(words)) == text  # all is context
        assert row.cause == "start"
    ledger = feed.rollouts["0/0"].ledger
    assert ledger is not None
    assert (ledger.sampled, ledger.trainable) == (len(text), len(learned))
    assert ledger.dropped == ({} if trained else {"summary": 2 * summary})
    assert ledger.summaries == (2 * summary if trained else 0)
    assert tokens.get("waiting", 0) == 2 * len(learned)
    assert [turn.summary for turn in RunDirectory.open(run).turns(feed.rollouts["0/0"].id)] == [
        *(False, False, True, False, True, False)
    ]
    rates = [one.values["ledger/summary_frac"] for one in feed.reports
             if isinstance(one, Metrics) and "ledger/summary_frac" in one.values]  # fmt: skip
    # A metric with a weight is a pair of numbers, which its type does not tell.
    in_summaries, all_trained = (sum(part) for part in zip(*rates, strict=True))  # type: ignore[arg-type]
    assert in_summaries / all_trained == (2 * summary / len(text) if trained else 0)
    assert feed.measured("ledger/dropped_summary_tokens_total") == (0 if trained else 4 * summary)


async def test_groups_are_handed_over_in_the_order_in_which_they_are_closed(tmp_path: Path) -> None:
    async with feeding(tmp_path / "run", {"0/1": ["late>done"], "*": ["done"]}, tasks=2) as feed:
        await feed.until(lambda: feed.closed == [1])
        assert [group.id for group in feed.ready] == [1]
        feed.script.let("late")
        await feed.until(lambda: feed.closed == [1, 0])
        assert [group.id for group in feed.ready] == [1, 0]
    tasks = {place(rollout.id)[0]: rollout.task_id for rollout in feed.rollouts.values()}
    assert len(set(tasks.values())) == 2


async def test_attempts_have_the_groups_task_and_their_own_labels(tmp_path: Path) -> None:
    words = {"*": ["done"]}
    async with feeding(tmp_path / "run", words, tasks=3, shuffle=True, group_size=1) as feed:
        await feed.until(lambda: len(feed.closed) >= 6)  # nothing to train, so nothing has to be taken
    order = list(itertools.islice(tasks_from(0, [r.task.instance_id for r in feed.runner.requests],
                                             OPTIONS.model_copy(update={"shuffle": True})), 6))  # fmt: skip
    for rollout in feed.rollouts.values():
        group, attempt = place(rollout.id)
        assert (rollout.attempt, attempt) == (0, 0)
        if group < 6:
            assert rollout.task_id == order[group]
            assert rollout.id == f"{order[group]}-g{group}-0"


names = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


@settings(deadline=None)
@given(names, st.integers(0, 20), st.integers(), st.booleans())
def test_epoch_has_every_task_once_and_a_resumed_run_keeps_its_order(
    tasks: list[str], begun: int, seed: int, shuffle: bool
) -> None:
    options = OPTIONS.model_copy(update={"seed": seed, "shuffle": shuffle})
    whole = list(itertools.islice(tasks_from(0, tasks, options), 40))
    for epoch in range(40 // len(tasks)):
        assert sorted(whole[epoch * len(tasks) : (epoch + 1) * len(tasks)]) == sorted(tasks)
    assert list(itertools.islice(tasks_from(begun, tasks, options), 40 - begun)) == whole[begun:]
    if not shuffle:
        assert whole[: len(tasks)] == tasks


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    tasks = [str(number) for number in range(20)]
    orders = set()
    for seed in range(3):
        source = tasks_from(0, tasks, OPTIONS.model_copy(update={"seed": seed, "shuffle": True}))
        orders |= {tuple(itertools.islice(source, 20)) for _ in range(3)}
    assert len(orders) == 9


async def test_set_seed_draws_anew_in_each_group_of_a_task(tmp_path: Path) -> None:
    """The engine makes a request's seed of the set one and the rollout's id, which says the group."""
    async with feeding(tmp_path / "run", {"*": ["done"]}, tasks=1, groups_ahead=3) as feed:  # three epochs
        await feed.until(lambda: len(feed.closed) == 3)
    asked = feed.engine.rollouts
    assert len(asked) == 6
    requests = RequestWriter(VLLMConfig(seed=7), [])
    bodies = [
        requests.body(b"1", model="m", max_tokens=1, stops=[], constraint=None, call=f"{rollout}:0")
        for rollout in asked
    ]
    assert len({json.loads(body)["seed"] for body in bodies}) == 6


# back-pressure


@pytest.mark.parametrize(
    ("concurrency", "group_size", "step_rows", "max_staleness", "groups"),
    [
        (64, 8, 16, 2, 22),  # 8 groups fit at once, and the slowest of 8 takes 2.72 times the mean
        (64, 16, 64, 2, 14),
        (4, 8, 32, 4, 16),  # what the trainer takes before it is stale is more
        (4, 8, 4, 0, 2),
    ],
)
def test_groups_ahead_keep_the_slots_busy_or_stay_fresh(
    concurrency: int, group_size: int, step_rows: int, max_staleness: int, groups: int
) -> None:
    assert groups_to_keep_busy(concurrency, group_size, step_rows, max_staleness) == groups


async def test_groups_begun_are_limited_to_what_the_trainer_takes(tmp_path: Path) -> None:
    async with feeding(tmp_path / "run", {"*": ["done"]}, groups_ahead=2) as feed:
        await feed.until(lambda: len(feed.closed) == 2)
        await anyio.wait_all_tasks_blocked()
        assert feed.journal.groups_begun() == 2
        first = feed.closed[0]
        await feed.say(Taken(group=first))
        await feed.until(lambda: len(feed.closed) == 3)
        await anyio.wait_all_tasks_blocked()
        assert feed.journal.groups_begun() == 3
        await feed.say(Taken(group=first))  # it was taken once
        await feed.say(Taken(group=1 - first), Taken(group=2))
        await feed.until(lambda: len(feed.closed) == 5)
        await anyio.wait_all_tasks_blocked()
        assert feed.journal.groups_begun() == 5
        assert sorted(group.id for group in feed.ready) == [0, 1, 2, 3, 4]
    assert feed.measured("group/backpressure_s_total") > 0


async def test_rows_of_an_earlier_process_count_before_the_trainer_takes_them(
    tmp_path: Path,
) -> None:
    """Also more of it than there is room for; and its first words may be there before the journal is read."""
    async with feeding(tmp_path / "run", {"*": ["done"]}, groups_ahead=3) as feed:
        await feed.until(lambda: len(feed.closed) == 3)
    taken = (Taken(group=0), Taken(group=1))
    async with feeding(tmp_path / "run", {"*": ["done"]}, *taken, groups_ahead=2) as feed:
        await feed.until(lambda: feed.closed == [3])
        await anyio.wait_all_tasks_blocked()
        assert feed.journal.groups_begun() == 4
        await feed.say(Taken(group=2), Taken(group=3))
        await feed.until(lambda: len(feed.closed) == 3)
        assert feed.journal.groups_begun() == 6


# attempts that were cut short, and shaped rewards


async def test_excluded_attempt_is_left_out_and_accounted_for_also_after_a_resume(tmp_path: Path) -> None:
    path, options = tmp_path / "run", {"group_size": 3, "groups_ahead": 1, "overlong": "exclude"}
    async with feeding(path, {"1": ["late>done"], "2": ["again", "cut"], "*": ["done"]}, **options) as feed:
        await feed.script.held("late")
        while len(feed.journal.unfinished()[0].members) < 2:
            await feed.told.wait()
    async with feeding(path, {"*": ["done"]}, **options) as feed:
        await feed.until(lambda: feed.closed == [0])
        (group,) = feed.ready
        tokens = fates(feed.journal)
        await feed.stop()
    cut = feed.rollouts["0/2"]
    assert (cut.outcome, cut.reward, cut.finish_reason) == ("resolved", 1.0, "length")
    assert [_short(row.rollout_id) for _, row in group.rows] == ["0/0", "0/1-2"]
    assert [row.advantage for _, row in group.rows] == advantages([1.0, 0.0]).tolist()
    (line,) = read_groups(path)
    assert [member.left_out for member in line.members] == [None, None, "overlong"]
    assert [member.overlong for member in line.members] == [False, False, True]
    assert tokens == {"waiting": 2 * len("done"), "overlong": len("againcut")}
    assert feed.measured("group/overlong_total") == 1


async def test_attempt_that_a_budget_ended_has_reward_0_in_its_group_and_keeps_its_verdict(
    tmp_path: Path,
) -> None:
    words = {"0": ["again"], "*": ["done"]}
    options: dict[str, Any] = {"group_size": 3, "groups_ahead": 1, "overlong": "zero"}
    async with feeding(tmp_path / "run", words, budget=Budgets(turns=2, grace=0), **options) as feed:
        await feed.until(lambda: feed.closed == [0])
        (group,) = feed.ready
    cut = feed.rollouts["0/0"]
    assert (cut.outcome, cut.reward, cut.ended_by) == ("resolved", 1.0, "turns")
    assert {_short(row.rollout_id): row.reward for _, row in group.rows} == {
        "0/0": 0.0,
        "0/1": 0.0,
        "0/2": 1.0,
    }


async def test_group_whose_attempts_are_all_excluded_is_skipped_and_ends_a_run_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_scheduler, "_ALIKE", 3)
    async with feeding(tmp_path / "run", {"*": ["cut"]}, overlong="exclude") as feed:
        await feed.ended.wait()
    assert "3 groups all attempts had the same reward or too many were excluded as overlong" in str(
        feed.problem
    )
    assert "raise the budgets that cut them" in str(feed.problem)
    assert feed.measured("group/skipped_overlong_total") >= 3


async def test_rollout_whose_reward_cannot_be_shaped_stops_the_run_and_is_trained_after_a_resume(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"

    def broken(rollout: Rollout, reward: float) -> float:
        raise PluginError("the plugin 'mine' returned nan")

    async with feeding(path, {"1": ["late>done"], "*": ["done"]}, groups_ahead=1, shape=broken) as feed:
        await feed.ended.wait()
    assert "the plugin 'mine' returned nan; the run was stopped" in str(feed.problem)
    assert feed.outcomes == {"0/1": "cancelled"}
    async with feeding(path, {"*": ["done"]}, groups_ahead=1, shape=lambda _, reward: reward - 0.25) as feed:
        await feed.until(lambda: feed.closed == [0])
        (group,) = feed.ready
        await feed.stop()
    assert [rollout for rollout in feed.engine.rollouts if rollout.endswith("-0")] == []
    assert {_short(row.rollout_id): row.reward for _, row in group.rows} == {"0/0": 0.75, "0/1-2": -0.25}
    rollout = feed.rollouts["0/0"]
    assert (rollout.outcome, rollout.reward, rollout.unshaped_reward) == ("resolved", 0.75, 1.0)


# staleness


async def test_rollout_that_is_too_old_is_cancelled_while_it_runs(tmp_path: Path) -> None:
    """0/0 stays since version 1; 0/1 ends at 2 and is too old when its group is; 1/0 is of version 2."""
    words = {"0/0": ["stay"], "0/1": ["go>done"], "1/0": ["again", "end>done"], "*": ["end>done"]}
    path = tmp_path / "run"
    async with feeding(path, words, concurrency=2) as feed:
        await feed.script.held("go")
        await feed.until(lambda: len(feed.runner.store.turns(_first(feed))) == 1)
        await feed.say(Version(version=2, updates=2))
        await feed.until(lambda: feed.engine.version == 2)
        feed.script.let("go")
        await feed.script.held("end")
        assert feed.agents() == 2
        await feed.say(Version(version=3, updates=3))
        await feed.until(lambda: "0/0" in feed.rollouts)
        assert _first(feed) not in feed.provider.alive
        assert not any(name.endswith("-g0-0") for name in feed.provider.alive)
        await feed.until(lambda: feed.closed == [0])
        assert feed.journal.groups_done() == 1
        feed.script.let("end")
        await feed.until(lambda: feed.closed[:2] == [0, 1])
        assert feed.ready[0].id == 1
    cancelled = feed.rollouts["0/0"]
    assert (cancelled.outcome, cancelled.cancelled_as, cancelled.reward) == ("cancelled", "stale", None)
    assert cancelled.ledger is not None
    assert cancelled.ledger.sampled == len("stay")
    assert (cancelled.ledger.trainable, cancelled.ledger.dropped) == (0, {"stale": len("stay")})
    assert feed.rollouts["0/1"].outcome == "unresolved"
    assert feed.rollouts["1/0"].outcome == "resolved"
    assert feed.engine.versions == [1, 2, 3]
    assert feed.measured("staleness/cancelled_total") == 1
    assert feed.measured("staleness/left_out_total") == 1
    assert feed.measured("group/skipped_too_few_scored_total") == 1
    # In another process it is not rolled out again.
    async with feeding(path, {"*": ["done"]}, Taken(group=1)) as feed:
        await feed.until(lambda: feed.journal.groups_begun() == 4)
    assert not {"0/0-2", "0/1-2"} & set(feed.rollouts)


def _first(feed: Feed) -> str:
    return f"{feed.runner.requests[0].task.instance_id}-g0-0"


async def test_call_that_took_too_long_makes_its_rollout_stale_at_once(tmp_path: Path) -> None:
    """The policy moved on while it was answered: no further version has to come."""
    words = {"0/0": ["go>stay"], "0/1": ["go>done"]}
    async with feeding(tmp_path / "run", words, groups_ahead=1, group_size=1) as feed:
        await feed.script.held("go")
        await feed.say(Version(version=9, updates=9))
        await feed.until(lambda: feed.engine.version == 9)
        assert feed.rollouts == {}  # its tokens are not known yet
        feed.script.let("go")
        feed.script.words["*"] = ["stay"]
        await feed.until(lambda: "0/0" in feed.rollouts)
    assert feed.rollouts["0/0"].cancelled_as == "stale"


# the death of the policy's server


async def test_attempts_that_need_a_server_which_has_died_are_made_again(tmp_path: Path) -> None:
    words = {"0/0": ["go>done"], "*": ["done"]}
    async with feeding(tmp_path / "run", words, groups_ahead=1) as feed:
        await feed.script.held("go")
        await feed.until(lambda: "0/1" in feed.rollouts)
        await feed.say(Lost(url=SERVER), Lost(url=SERVER))
        await feed.until(lambda: "0/0" in feed.rollouts)
        feed.script.words = {"*": ["done"]}
        await anyio.wait_all_tasks_blocked()
        assert (feed.closed, set(feed.rollouts)) == ([], {"0/0", "0/1"})
        await feed.say(Back(url=SERVER))
        await feed.until(lambda: feed.closed == [0])
        (group,) = feed.ready
        assert len(group.rows) == 2
    lost = feed.rollouts["0/0"]
    assert (lost.outcome, lost.cancelled_as, lost.reward) == ("cancelled", "engine_lost", None)
    assert feed.outcomes["0/0-2"] == "resolved"
    assert feed.measured("rollout/engine_lost_total") == 1
    assert feed.measured("group/skipped_too_few_scored_total") == 0


async def test_attempt_that_failed_as_its_server_died_is_made_again(tmp_path: Path) -> None:
    """The death is known a moment later: until then the attempt does not count, and no other one begins."""
    words = {"0/0": ["unreachable"], "*": ["done"]}
    async with feeding(tmp_path / "run", words, groups_ahead=1) as feed:
        feed.dead = True
        await feed.until(lambda: {"0/0", "0/1"} <= set(feed.rollouts))
        feed.script.words = {"*": ["done"]}
        await feed.say(Lost(url=SERVER))
        feed.dead = False
        await feed.say(Back(url=SERVER))
        await feed.until(lambda: feed.closed == [0])
    assert feed.outcomes == {"0/0": "error", "0/0-2": "resolved", "0/1": "unresolved"}


async def test_attempt_that_fails_at_a_live_server_counts(tmp_path: Path) -> None:
    async with feeding(tmp_path / "run", {"0/0": ["unreachable"], "*": ["done"]}, groups_ahead=1) as feed:
        await feed.until(lambda: 0 in feed.closed)
    assert feed.measured("group/skipped_too_few_scored_total") == 1
    assert "0/0-2" not in feed.rollouts


async def test_resumed_run_repeats_what_a_dead_server_lost(tmp_path: Path) -> None:
    words = {"0/0": ["go>done"], "0/1": ["unreachable"], "*": ["done"]}
    path = tmp_path / "run"
    async with feeding(path, words, groups_ahead=1) as feed:
        feed.dead = True
        await feed.script.held("go")
        await feed.until(lambda: "0/1" in feed.rollouts)
        await feed.say(Lost(url=SERVER))
        await feed.until(lambda: "0/0" in feed.rollouts)
    async with feeding(path, {"*": ["done"]}, groups_ahead=1) as feed:
        await feed.until(lambda: 0 in feed.closed)
        assert [len(group.rows) for group in feed.ready] == [2]
    assert feed.outcomes["0/0-2"] == "resolved"
    assert feed.outcomes["0/1-2"] == "unresolved"


async def test_server_that_is_back_and_lost_at_once_gets_no_attempt(tmp_path: Path) -> None:
    async with feeding(tmp_path / "run", {"*": ["done"]}, Lost(url=SERVER), groups_ahead=1) as feed:
        await anyio.wait_all_tasks_blocked()
        feed.commands.send_nowait(Back(url=SERVER))
        feed.commands.send_nowait(Lost(url=SERVER))
        await anyio.wait_all_tasks_blocked()
        assert {rollout.cancelled_as for rollout in feed.rollouts.values()} <= {"engine_lost"}
        assert feed.provider.alive == []
        await feed.say(Back(url=SERVER))
        await feed.until(lambda: 0 in feed.closed)


# several servers


BOTH = (SERVER, OTHER)
"""The first serves even attempts, the second odd ones."""


async def test_only_the_attempts_of_a_server_that_has_died_are_made_again(tmp_path: Path) -> None:
    words = {"0/0": ["a>done"], "0/1": ["b>done"], "*": ["done"]}
    async with feeding(tmp_path / "run", words, groups_ahead=1, servers=BOTH) as feed:
        await feed.script.held("a")
        await feed.script.held("b")
        feed.script.words = {"*": ["done"]}
        await feed.say(Lost(url=OTHER))
        await feed.until(lambda: "0/1-2" in feed.rollouts)  # at once, on the server that lives
        assert feed.engine.taken_out == {OTHER}
        assert set(feed.rollouts) == {"0/1", "0/1-2"}
        feed.script.let("a")
        await feed.until(lambda: feed.closed == [0])
        await feed.say(Back(url=OTHER))
        await feed.until(lambda: feed.engine.taken_out == set())
    assert feed.rollouts["0/1"].cancelled_as == "engine_lost"
    assert feed.outcomes == {"0/0": "resolved", "0/1": "cancelled", "0/1-2": "unresolved"}


async def test_attempt_that_has_not_asked_yet_survives_the_death_of_one_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go = anyio.Event(), anyio.Event()
    enter = Watched.open

    @asynccontextmanager
    async def held(self: Watched, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        opened.set()
        await go.wait()
        async with enter(self, spec) as sandbox:
            yield sandbox

    monkeypatch.setattr(Watched, "open", held)
    async with feeding(tmp_path / "run", {"*": ["done"]}, groups_ahead=1, group_size=1, servers=BOTH) as feed:
        await opened.wait()
        await feed.say(Lost(url=SERVER))
        await anyio.wait_all_tasks_blocked()
        go.set()
        await feed.until(lambda: "0/0" in feed.rollouts)
    assert feed.outcomes == {"0/0": "resolved"}


async def test_no_attempt_begins_when_all_servers_have_died(tmp_path: Path) -> None:
    words = {"0/0": ["a>done"], "0/1": ["b>done"], "*": ["done"]}
    async with feeding(tmp_path / "run", words, groups_ahead=1, servers=BOTH) as feed:
        await feed.script.held("a")
        await feed.script.held("b")
        feed.script.words = {"*": ["done"]}
        await feed.say(Lost(url=OTHER), Lost(url=SERVER))
        await feed.until(lambda: {"0/0", "0/1"} <= set(feed.rollouts))
        await anyio.wait_all_tasks_blocked()
        assert {rollout.cancelled_as for rollout in feed.rollouts.values()} == {"engine_lost"}
        assert feed.provider.alive == []
        await feed.say(Back(url=OTHER))  # one is enough
        await feed.until(lambda: feed.closed == [0])
    assert feed.measured("group/skipped_too_few_scored_total") == 0


async def test_attempt_that_failed_as_one_of_several_servers_died_is_made_again(tmp_path: Path) -> None:
    words = {"0/1": ["unreachable"], "*": ["done"]}
    async with feeding(tmp_path / "run", words, groups_ahead=1, servers=BOTH) as feed:
        feed.dead = True
        await feed.until(lambda: {"0/0", "0/1"} <= set(feed.rollouts))
        feed.script.words = {"*": ["done"]}
        await feed.say(Lost(url=OTHER))
        await feed.until(lambda: feed.closed == [0])
    assert feed.outcomes == {"0/0": "resolved", "0/1": "error", "0/1-2": "unresolved"}


async def test_rollouts_in_grading_survive_a_dead_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grading, graded = anyio.Event(), anyio.Event()
    grade = ScriptedGrader.grade

    async def held(*arguments: Any) -> Graded:
        grading.set()
        await graded.wait()
        return await grade(*arguments)

    monkeypatch.setattr(ScriptedGrader, "grade", held)
    async with feeding(tmp_path / "run", {"*": ["done"]}, groups_ahead=1, group_size=1) as feed:
        await grading.wait()
        await feed.say(Lost(url=SERVER))
        await anyio.wait_all_tasks_blocked()
        graded.set()
        await feed.until(lambda: "0/0" in feed.rollouts)
    assert feed.outcomes["0/0"] == "resolved"


class Cancelled(Runner):
    """Only notes what it is to cancel."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def cancel(self, rollout_id: str, why: str) -> None:
        assert why == "stale"
        self.cancelled.append(rollout_id)


def _turn(versions: Sequence[int], dropped: str | None) -> Turn:
    tokens = TurnTokens(
        base=None,
        prompt=[1],
        completion=[2] * len(versions),
        logprobs=[-1.0] * len(versions),
        versions=[(version, 1) for version in versions],
        rendered="full",
        cause="start",
        dropped=dropped,
    )
    return Turn.model_construct(tokens=tokens)


def _request(name: str) -> RolloutRequest:
    return RolloutRequest.model_construct(id=name)


turns = st.tuples(
    st.sampled_from("ab"), st.lists(st.integers(0, 5), max_size=3), st.sampled_from([None, None, "forced"])
)


@settings(deadline=None)
@given(st.lists(st.one_of(st.just(None), turns), max_size=20), st.integers(0, 3))
def test_rollout_is_cancelled_once_when_an_id_that_may_be_trained_is_too_old(
    steps: list[tuple[str, list[int], str | None] | None], max_staleness: int
) -> None:
    """None is a new version; ids of versions to come are left out."""
    runner = Cancelled()
    freshness = StalenessCheck(runner, 0, {}, max_staleness, RolloutMetrics())
    oldest = {"a": 99, "b": 99}
    wanted: list[str] = []
    for name in oldest:
        freshness.started(_request(name))
    assert len(freshness) == 2
    for step in steps:
        if step is None:
            freshness.advance(freshness.version + 1, freshness.version + 1)
        else:
            name, versions, dropped = step
            known = [version for version in versions if version <= freshness.version]
            freshness.turn(name, _turn(known, dropped))
            if dropped is None:
                oldest[name] = min([oldest[name], *known])
        wanted += [
            name
            for name, version in oldest.items()
            if freshness.version - version > max_staleness and name not in wanted
        ]
        assert sorted(runner.cancelled) == sorted(wanted)


def test_tokens_of_a_lost_try_make_no_rollout_stale() -> None:
    """Its sandbox failed, and it is run again: those ids are not trained, so their age does not count."""
    runner = Cancelled()
    freshness = StalenessCheck(runner, 0, {}, 0, RolloutMetrics())
    freshness.started(_request("a"))
    freshness.phase("a", "open")
    freshness.turn("a", _turn([0], None))
    freshness.phase("a", "export")
    freshness.phase("a", "open")
    freshness.advance(1, 1)
    assert runner.cancelled == []
    freshness.turn("a", _turn([1], None))
    freshness.phase("a", "grade")
    freshness.advance(2, 2)
    assert runner.cancelled == ["a"]


async def test_only_cancelled_rollouts_count_as_cancelled() -> None:
    """One that has its outcome already keeps it."""
    tally = RolloutMetrics()
    freshness = StalenessCheck(Cancelled(), 0, {}, 0, tally)
    for name, outcome, why in (("a", "resolved", None), ("b", "cancelled", "stale")):
        freshness.started(_request(name))
        freshness.turn(name, _turn([freshness.version], None))
        freshness.advance(freshness.version + 1, freshness.version + 1)
        freshness.finished(Rollout.model_construct(id=name, outcome=outcome, cancelled_as=why))
    assert len(freshness) == 0
    assert tally.take(0)["staleness/cancelled_total"] == 1


# the end


@pytest.mark.parametrize("how", ["stop", "gone"])
async def test_running_rollouts_are_recorded_as_cancelled_and_resumed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run"
    async with feeding(path, {"0": ["done"], "1": ["stay"]}, groups_ahead=1) as feed:
        await feed.until(lambda: "0/0" in feed.rollouts and feed.agents() == 1)
        await (feed.stop() if how == "stop" else feed.commands.aclose())
        await feed.ended.wait()
        assert feed.provider.alive == []
        assert feed.agents() == 0
    cancelled = feed.rollouts["0/1"]
    assert (cancelled.outcome, cancelled.cancelled_as) == ("cancelled", None)
    assert isinstance(feed.reports[-1], Metrics)
    assert Beat() in feed.reports
    assert feed.problem is None
    async with feeding(path, {"1": ["stay"]}, groups_ahead=1) as feed:  # stopped once more
        await feed.until(lambda: feed.agents() == 1)
    async with feeding(path, {"*": ["done"]}, groups_ahead=1) as feed:
        await feed.until(lambda: feed.closed == [0])
        (group,) = feed.ready
    ends = {"0/0": "resolved", "0/1": "cancelled", "0/1-2": "cancelled", "0/1-3": "unresolved"}
    assert feed.outcomes == ends
    assert {_short(row.rollout_id) for _, row in group.rows} == {"0/0", "0/1-3"}


@pytest.mark.parametrize("end", ["verdict", "stale"])
async def test_rollout_that_is_recorded_and_did_not_reach_the_journal_is_adopted(
    tmp_path: Path, end: str
) -> None:
    """Killed in between; and one that did is not rolled out again either."""
    path = tmp_path / "run"

    def failing(journal: Journal) -> None:
        add = journal.add_member

        def add_member(group: int, member: Member) -> None:
            if member.attempt == 1:
                raise SweError("the disk is full")
            add(group, member)

        journal.add_member = add_member

    words = {"1": ["again", "go>done"], "*": ["done"]}
    async with feeding(path, words, groups_ahead=1, prepare=failing) as feed:
        await feed.until(lambda: "0/0" in feed.rollouts)
        while not feed.journal.unfinished()[0].members:
            await anyio.lowlevel.checkpoint()
        await feed.script.held("go")
        if end == "stale":
            await feed.say(Version(version=9, updates=9))
        else:
            feed.script.let("go")
        await feed.ended.wait()
    assert str(feed.problem) == "the disk is full"
    before = feed.rollouts
    assert set(before) == {"0/0", "0/1"}
    assert before["0/1"].cancelled_as == ("stale" if end == "stale" else None)
    again = {"0/0": ["crash"], "0/1": ["crash"], "*": ["done"]}
    async with feeding(path, again, groups_ahead=1) as feed:
        await feed.until(lambda: feed.closed[:1] == [0])
        rows = {_short(row.rollout_id) for group in feed.ready for _, row in group.rows if group.id == 0}
    assert {name: feed.rollouts[name] for name in before} == before
    assert {name for name in feed.rollouts if name.startswith("0/")} == {"0/0", "0/1"}
    assert rows == ({"0/0", "0/1"} if end == "verdict" else set())


async def test_write_error_ends_the_run_in_one_sentence_and_closes_the_rest(
    tmp_path: Path,
) -> None:
    def failing(journal: Journal) -> None:
        def close_group(group: int, assessed: object) -> None:
            raise SweError("the disk is full")

        journal.close_group = close_group

    words = {"1/0": ["stay"], "1/1": ["stay"], "*": ["go>done"]}
    async with feeding(tmp_path / "run", words, prepare=failing) as feed:
        await feed.until(lambda: feed.agents() == 4)
        feed.script.let("go")
        await feed.ended.wait()
    assert str(feed.problem) == "the disk is full"
    assert feed.closed == []
    assert feed.rollouts["1/0"].outcome == feed.rollouts["1/1"].outcome == "cancelled"


async def test_run_without_any_verdict_is_given_up_with_its_most_frequent_failure(tmp_path: Path) -> None:
    """A group with a verdict begins the count anew; one whose attempts were cancelled says nothing."""
    words = {"0": ["crash"], "1/0": ["done"], "1": ["crash"], "3/0": ["stay"], "3/1": ["stay"]}
    words |= {"2/0": ["crash"], "4/0": ["crash"], "2": ["done"], "1/2": ["crash"]}
    async with feeding(tmp_path / "run", words, groups_ahead=1) as feed:
        await feed.until(lambda: feed.closed == [0, 1, 2])
        await feed.until(lambda: feed.agents() == 2)
        await feed.until(lambda: all(feed.runner.store.turns(name) for name in feed.provider.alive))
        await feed.say(Version(version=9, updates=9))
        await feed.ended.wait()
    assert feed.closed == [0, 1, 2, 3, 4]
    said = str(feed.problem)
    assert said.startswith("no attempt of the last 2 groups has a verdict, so nothing can be trained; ")
    assert "most often it was agent: the agent 'scripted'" in said
    assert said.endswith("(4 times)")
    assert "\n" not in said


async def test_agent_that_asks_no_host_cannot_be_trained(tmp_path: Path) -> None:
    async with feeding(tmp_path / "run", {}, engine=False) as feed:
        await feed.ended.wait()
    assert isinstance(feed.problem, ConfigError)
    assert "leave out --mode black-box" in str(feed.problem)


async def test_group_of_a_task_that_is_gone_is_refused(tmp_path: Path) -> None:
    def other(journal: Journal) -> None:
        journal.open_group("gone__task-1", 2)

    async with feeding(tmp_path / "run", {}, prepare=other) as feed:
        await feed.ended.wait()
    assert isinstance(feed.problem, ConfigError)
    assert "'gone__task-1', which is not among its tasks: give the same --tasks" in str(feed.problem)


async def test_policy_that_always_has_the_same_reward_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be rolled out for ever, and pay for it."""
    monkeypatch.setattr(group_scheduler, "_ALIKE", 3)
    words = {"1": ["crash"], "*": ["done"]}  # attempts 0 and 2 are resolved
    async with feeding(tmp_path / "run", words, group_size=3) as feed:
        await feed.ended.wait()
    assert str(feed.problem).startswith("in each of the last 3 groups all attempts had the same reward")
    assert len(feed.closed) >= 3
