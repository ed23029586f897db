"""The runner: single rollouts, cancelled by their caller, and always recorded."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock, Mock

import aiohttp
import anyio
import anyio.lowlevel
import numpy as np
import pytest
from aiohttp.web import StreamResponse

from swe_core.api.agent import AgentContext, AgentDialogue, AgentEvent, InteractiveAgent
from swe_core.api.blame import may_be_policys
from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession, ForkCause, Sampled
from swe_core.api.limits import Budgets
from swe_core.api.records import Rollout
from swe_core.api.sandbox import SandboxSpec, Stream
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import (
    EngineUnavailable,
    PluginError,
    RunStopped,
    SandboxBroken,
    SandboxDied,
    SandboxError,
    SandboxTimeout,
    SweError,
)
from swe_core.interception.sse import EventStream
from swe_core.report.facts import why
from swe_core.rollout.missing_program import missing_program
from swe_core.tokens.chains import chains_of

from .runner_bench import Bench, Box, Caller, Inside, one_call
from .shaky_server import ids


async def test_rollout_is_recorded_and_returned(bench: Bench) -> None:
    own = bench.first.model_copy(update={"id": "by-the-worker"})
    rollout = (await bench.runner.run(own)).rollout
    assert (rollout.id, rollout.outcome, rollout.reward) == ("by-the-worker", "resolved", 1.0)
    assert rollout.cancelled_as is None
    assert bench.run.rollouts() == [rollout]
    assert bench.runner.engine is bench.engine
    names = [name for rollout_id, name in bench.witness.seen if rollout_id == own.id]
    assert names == ["started", "open", "prepare", "agent", "turn", "export", "grade", "finished"]
    bench.accounted()


async def test_cancelled_rollout_closes_its_sandbox(bench: Bench) -> None:
    """The agent would never exit; the other rollout continues to its end."""
    bench.agent.staying = {bench.first.task.instance_id}
    open_then: dict[str, list[str]] = {}

    def finished(rollout: Rollout) -> None:
        open_then[rollout.id] = list(bench.provider.alive)

    def turn(rollout_id: str) -> None:
        if rollout_id == bench.first.id:
            bench.runner.cancel(rollout_id, "stale")

    bench.witness.on_turn, bench.witness.on_finished = turn, finished
    await bench.runner.run_all()
    found = {rollout.id: rollout for rollout in bench.run.rollouts()}
    cancelled, other = found[bench.first.id], found[bench.second.id]
    assert (cancelled.outcome, cancelled.cancelled_as, cancelled.reward) == ("cancelled", "stale", None)
    assert cancelled.failure is None
    assert cancelled.phases.grade is None
    assert bench.first.task.instance_id not in open_then[cancelled.id]
    assert cancelled.ledger.sampled == bench.engine.typed[cancelled.id] > 0
    assert (cancelled.ledger.trainable, cancelled.ledger.dropped) == (0, {"stale": cancelled.ledger.sampled})
    assert (other.outcome, other.cancelled_as) == ("resolved", None)
    assert (other.ledger.trainable, other.ledger.dropped) == (other.ledger.sampled, {})
    assert sorted(bench.engine.ended) == sorted(found)
    bench.accounted()


async def test_unfit_engine_ends_the_run(bench: Bench) -> None:
    """The rollout that detects it is recorded, and so are the running ones."""
    bench.agent.staying = {bench.second.task.instance_id}

    def unfit(rollout: Rollout) -> None:
        bench.engine.unfit = "the servers gave no log-probabilities: check them"

    bench.witness.on_finished = unfit
    with pytest.raises(SweError, match="the servers gave no log-probabilities: check them"):
        await bench.runner.run_all()
    found = {rollout.id: rollout.outcome for rollout in bench.run.rollouts()}
    assert found == {bench.first.id: "resolved", bench.second.id: "cancelled"}


async def test_rollout_is_cancelled_before_its_sandbox_opens(bench: Bench) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(bench.runner.run, bench.first)
        while not bench.witness.seen:
            await anyio.lowlevel.checkpoint()
        bench.runner.cancel(bench.first.id, "stale")
    (rollout,) = bench.run.rollouts()
    assert (rollout.outcome, rollout.cancelled_as) == ("cancelled", "stale")
    assert (rollout.ledger, rollout.turns, rollout.phases.agent) == (None, 0, None)


async def test_rollout_is_cancelled_during_grading(bench: Bench) -> None:
    """The first reason counts: teardown takes a while, and the run may end in the meantime."""

    async def grading() -> None:
        assert bench.provider.alive == [bench.first.task.instance_id]
        bench.runner.cancel(bench.first.id, "stale")
        bench.runner.cancel(bench.first.id, "over")
        await anyio.sleep_forever()

    bench.grader.meanwhile = grading
    finished = await bench.runner.run(bench.first)
    rollout = finished.rollout
    assert (rollout.outcome, rollout.cancelled_as, rollout.grade) == ("cancelled", "stale", None)
    assert finished.chains == ()
    assert bench.provider.alive == []
    assert rollout.ledger.dropped == {"stale": rollout.ledger.sampled}
    bench.accounted()


async def branching(caller: Caller) -> None:
    await caller.ask(("user", "hello"), stream=True)
    for text in "abc":
        with suppress(aiohttp.ClientError):
            await caller.ask(("user", "hello"), ("assistant", "0"), ("user", text), stream=True)


async def test_run_returns_the_chains_that_the_disk_gives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four calls the second is not delivered, and the last branches off; the text of all is secret."""
    bench.agent.talk = branching
    sampled: list[Sampled] = []

    async def complete(request: ChatRequest, session: EngineSession, emit: Emit) -> Completion:
        text = f"confidential {len(sampled)}"
        base = sampled[0] if len(request.messages) > 1 else None
        logprobs = np.linspace(-3, -0.1, len(text), dtype=np.float32)
        logprobs[2] = np.nan
        versions = np.repeat(np.array([len(sampled), 9], np.int32), [5, len(text) - 5])
        cause: ForkCause | None = None if base else "start"
        sampled.append(Sampled(base, ids("?"), ids(text), logprobs, versions, "bridge", cause))
        await emit({"content": text})
        return Completion({"role": "assistant", "content": text}, sampled=sampled[-1])

    end, ends = EventStream.end, itertools.count()

    async def ending(self: EventStream, data: bytes) -> StreamResponse:
        if next(ends) == 1:
            self._request.transport.abort()
            raise ConnectionResetError("the client is gone")
        return await end(self, data)

    monkeypatch.setattr(bench.engine, "complete", complete)
    monkeypatch.setattr(EventStream, "end", ending)
    bench.run.redactor.add("confidential")
    finished = await bench.runner.run(bench.first)
    turns = bench.run.turns(bench.first.id)
    assert [turn.tokens and turn.tokens.dropped for turn in turns] == [None, "undelivered", None, None]
    assert [(chain.turns, chain.cause) for chain in finished.chains] == [((0, 2), "start"), ((3,), "branch")]
    for given, read in zip(finished.chains, chains_of(turns), strict=True):
        assert (given.turns, given.cause) == (read.turns, read.cause)
        for name in ("input_ids", "completion_mask", "old_log_probs", "versions"):
            one, other = getattr(given, name), getattr(read, name)
            assert (one.dtype, one.tolist()) == (other.dtype, other.tolist()), name
    bench.accounted()


async def test_late_cancellation_changes_nothing(bench: Bench) -> None:
    """While the rollout is recorded, and later: the outcome stands, and the caller is not cancelled."""
    bench.witness.on_finished = lambda rollout: bench.runner.cancel(rollout.id, "stale")
    rollout = (await bench.runner.run(bench.first)).rollout
    bench.runner.cancel(bench.first.id, "stale")
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    assert (rollout.outcome, rollout.reward, rollout.cancelled_as) == ("resolved", 1.0, None)
    assert bench.run.rollouts() == [rollout]
    assert rollout.ledger.dropped == {}
    bench.accounted()


@pytest.mark.parametrize("what", ["engine", "sandbox"])
async def test_failed_teardown_leaves_a_balanced_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """An engine error in a cancelled rollout is ignored; a sandbox that does not close is an error."""
    if what == "engine":
        monkeypatch.setattr(
            bench.engine, "end", AsyncMock(side_effect=EngineUnavailable("the server is gone"))
        )
    bench.provider.closes = what != "sandbox"
    bench.agent.staying = {bench.first.task.instance_id}
    bench.witness.on_turn = lambda rollout_id: bench.runner.cancel(rollout_id, "stale")
    rollout = (await bench.runner.run(bench.first)).rollout
    boundary = rollout.failure.boundary if rollout.failure else None
    expected = ("cancelled", "stale", None) if what == "engine" else ("error", None, "sandbox")
    assert (rollout.outcome, rollout.cancelled_as, boundary) == expected
    assert rollout.ledger.dropped == {expected[1] or "error": rollout.ledger.sampled}
    bench.accounted()


@pytest.mark.parametrize("why", [None, "stale"])
async def test_outer_cancellation_is_recorded_and_propagates(bench: Bench, why: str | None) -> None:
    """Ctrl-C, also after a cancellation by the worker: `run` does not return."""
    bench.agent.staying = {bench.first.task.instance_id}
    returned = False
    with anyio.CancelScope() as outside:

        def turn(rollout_id: str) -> None:
            if why is not None:
                bench.runner.cancel(rollout_id, why)
            outside.cancel()

        bench.witness.on_turn = turn
        await bench.runner.run(bench.first)
        returned = True
    assert outside.cancelled_caught
    assert not returned
    (rollout,) = bench.run.rollouts()
    assert (rollout.outcome, rollout.cancelled_as) == ("cancelled", why)
    assert rollout.ledger.dropped == {why or "cancelled": rollout.ledger.sampled}
    assert bench.provider.alive == []
    bench.accounted()


@pytest.mark.parametrize(
    ("submit", "says", "recorded"),
    [
        (AsyncMock(), r"LocalExecutor returned from submit\(\) without a call of commit", 0),
        (AsyncMock(side_effect=KeyError("a")), r"LocalExecutor failed in submit\(\): KeyError: 'a'", 0),
        (None, "LocalExecutor committed '.*' twice", 1),
    ],
    ids=("without a commit", "failing", "two commits"),
)
async def test_executor_that_breaks_its_contract_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, submit: AsyncMock | None, says: str, recorded: int
) -> None:
    executor = bench.runner._executor
    real = executor.submit

    async def twice(request: Any, observer: Any, commit: Any, agent: Any) -> None:
        def both(finished: Any) -> None:
            commit(finished)
            commit(finished)

        await real(request, observer, both, agent)

    monkeypatch.setattr(executor, "submit", submit or twice)
    with pytest.raises(PluginError, match=says):
        await bench.runner.run(bench.first)
    assert len(bench.run.rollouts()) == recorded


async def test_unwritable_run_directory_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(bench.run, "append", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(SweError, match=r"cannot write to the run directory .*No space left"):
            await bench.runner.run(bench.first)
    assert (bench.first.id, "finished") not in bench.witness.seen
    bench.runner.cancel(bench.first.id, "stale")  # it runs no more
    assert (await bench.runner.run(bench.second)).rollout.outcome == "resolved"


async def test_missing_program_of_an_agent_is_named() -> None:
    missing = "is missing in the sandbox: install it there, or let the agent's plugin bring"
    mode = "is not executable in the sandbox: set its mode, or name an"
    async with LocalProvider(unisolated=True).open(SandboxSpec()) as sandbox:
        for program, why in (
            ("no-such-agent", missing),
            ("/no/such/agent", missing),
            ("cd", missing),
            ("/etc/passwd", mode),
            ("/etc", mode),
        ):
            said = await missing_program("mine", program, sandbox, cwd="/", env={}) or ""
            head = f"the agent 'mine' cannot start, because its program {program!r} "
            assert head + why in said
        assert await missing_program("mine", "sh", sandbox, cwd="/", env={}) is None


@pytest.mark.parametrize(
    ("limits", "answered", "failure", "says"),
    [
        ({}, False, ("agent", "AgentError"), "the agent 'talker' exited with code 127"),
        ({"agent": 0.05}, False, ("agent", "AgentTimeout"), ""),
        ({"open": 0.001}, True, ("sandbox", "SandboxError"), "within its budget of 0.001 s (limits.open)"),
        ({}, True, None, "the agent 'talker' exited with code 127"),  # also 137 and the like
        (
            {"agent": 0.05},
            True,
            None,
            "did not end within its budget of 0.05 s",
        ),  # it may have stopped itself
    ],
)
async def test_failure_of_an_agent_before_its_first_answer_or_of_a_sandbox_is_an_error(
    bench: Bench, limits: dict[str, float], answered: bool, failure: tuple[str, str] | None, says: str
) -> None:
    """A later one is the policy's: the patch is graded."""
    bench.agent.code = 127
    bench.agent.staying = {bench.first.task.instance_id} if "agent" in limits else set()
    if not answered:
        bench.agent.talk = lambda caller: anyio.lowlevel.checkpoint()
    if "open" in limits:
        bench.provider.opening = anyio.sleep_forever
    limited = bench.first.limits.model_copy(update=limits)
    finished = await bench.runner.run(bench.first.model_copy(update={"limits": limited}))
    rollout = finished.rollout
    if failure is None:
        assert (rollout.outcome, rollout.reward, rollout.failure) == ("resolved", 1.0, None)
        assert rollout.ledger.trainable == rollout.ledger.sampled > 0
        assert finished.chains
        assert says in rollout.agent_failure
        assert says in why(rollout)
        bench.accounted()
    else:
        assert (rollout.failure.boundary, rollout.failure.type) == failure
        assert says in rollout.failure.message
        assert (rollout.outcome, rollout.reward, rollout.ended_by) == ("error", None, None)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (SandboxBroken("its container ran out of memory"), "unresolved"),
        (SandboxTimeout("nothing answers in it"), "unresolved"),
        (SandboxDied("the engine was restarted"), "error"),
        (SandboxError("the engine no longer answers"), "error"),
    ],
    ids=("broken", "silent", "dead", "unreachable"),
)
@pytest.mark.parametrize("where", ["agent", "export", "both"])
async def test_nothing_to_grade_is_unresolved_where_code_inside_is_the_cause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, outcome: str
) -> None:
    async def output(process: Inside) -> AsyncIterator[tuple[Stream, bytes]]:
        if process._env is not None:
            await one_call(Caller(process._env))
            raise error
        for nothing in ():
            yield nothing

    if where != "export":
        monkeypatch.setattr(Inside, "output", output)
    if where != "agent":
        monkeypatch.setattr(Box, "kill_all", AsyncMock(side_effect=error))
    elif outcome == "unresolved":
        outcome = "resolved"  # there is a patch
    finished = await bench.runner.run(bench.first)
    rollout = finished.rollout
    assert (rollout.outcome, bool(rollout.failure)) == (outcome, outcome == "error")
    assert rollout.reward == {"error": None, "unresolved": 0.0, "resolved": 1.0}[outcome]
    assert bool(finished.chains) == (outcome != "error")
    assert may_be_policys(rollout) == (outcome == "error")
    bench.accounted()


async def nothing(caller: Caller) -> None:
    await anyio.sleep_forever()


PICTURE = ("user", [{"type": "image_url", "image_url": {}}])


async def only_submit(caller: Caller) -> None:
    await caller.submit()
    await anyio.sleep_forever()


async def two_pictures(caller: Caller) -> None:
    await caller.ask(PICTURE)
    await caller.ask(PICTURE)


ELSEWHERE = ["it ended before its first call, or is configured to call another endpoint"]


@pytest.mark.parametrize(
    ("talk", "limits", "budget", "says"),
    [
        (nothing, {"first_call": 0.05}, {}, ["within 0.05 s (limits.first_call)", "cannot reach this one"]),
        (only_submit, {}, {"turns": 9}, ELSEWHERE),
        (nothing, {}, {"wall": 0.05}, ELSEWHERE),
        (lambda caller: caller.ask(PICTURE), {}, {}, ["its only request was refused: messages[0]: "]),
        (two_pictures, {}, {}, ["each of its 2 requests was refused: messages[0]: "]),
    ],
)
async def test_agent_that_was_never_answered_is_an_error_however_it_ends(
    bench: Bench, talk: Any, limits: dict[str, float], budget: dict[str, float], says: list[str]
) -> None:
    """And no verdict on the policy, which was not asked."""
    bench.agent.talk = talk
    limits = bench.first.limits.model_copy(update=limits)
    request = bench.first.model_copy(update={"limits": limits, "budget": Budgets(grace=0, **budget)})
    rollout = (await bench.runner.run(request)).rollout
    assert rollout.outcome == "error"
    assert (rollout.failure.boundary, rollout.failure.type) == ("agent", "NoLLMCall")
    for part in says:
        assert part in rollout.failure.message


async def test_reward_of_a_verdict_is_shaped_before_the_record_is_written(bench: Bench) -> None:
    seen: list[Rollout] = []

    def shape(rollout: Rollout, reward: float) -> float:
        assert bench.run.rollouts() == []
        seen.append(rollout)
        return reward - 0.01 * rollout.turns

    bench.runner._shape = shape
    shaped = (await bench.runner.run(bench.first)).rollout
    assert (shaped.outcome, shaped.reward, shaped.unshaped_reward) == ("resolved", 0.99, 1.0)
    assert [rollout.reward for rollout in seen] == [1.0]
    assert seen[0].grade is not None
    assert bench.run.rollouts() == [shaped]
    bench.agent.talk = lambda caller: anyio.lowlevel.checkpoint()
    assert (await bench.runner.run(bench.second)).rollout.reward is None
    assert len(seen) == 1


async def test_verdict_whose_reward_cannot_be_shaped_is_kept_and_ends_the_run(bench: Bench) -> None:
    """The other rollout is cancelled, as at any stop."""
    bench.agent.staying = {bench.second.task.instance_id}

    bench.runner._shape = Mock(side_effect=PluginError("the plugin 'mine' returned nan"))
    with pytest.raises(RunStopped, match=r"'mine' returned nan; the run was stopped, .* --resume "):
        await bench.runner.run_all()
    assert bench.run.finished() == {bench.second.id: "cancelled"}
    (kept,) = bench.run.unshaped()
    assert (kept.id, kept.outcome, kept.reward) == (bench.first.id, "resolved", 1.0)
    with pytest.raises(RunStopped, match="'mine' returned nan"):
        await bench.runner.recover()
    bench.runner._shape = lambda rollout, reward: reward / 2
    await bench.runner.recover()
    assert bench.run.unshaped() == []
    assert [rollout.reward for rollout in bench.run.rollouts()] == [None, 0.5]
    assert (bench.first.id, "finished") in bench.witness.seen
    bench.accounted()


async def test_agent_that_leaves_while_the_engine_tries_again_is_no_verdict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later reply makes up for it."""
    tried = anyio.Event()

    async def trying(request: ChatRequest, session: EngineSession, emit: Emit | None = None) -> Completion:
        if request.messages[-1]["content"] == "again":
            return Completion({"role": "assistant", "content": "here"})
        request.progress.trouble = "the provider fails (500)"
        tried.set()
        return await anyio.sleep_forever()

    async def leaving(caller: Caller) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(caller.ask, ("user", "hello"))
            await tried.wait()
            group.cancel_scope.cancel()

    async def returning(caller: Caller) -> None:
        await leaving(caller)
        await caller.ask(("user", "again"))

    monkeypatch.setattr(bench.engine, "complete", trying)
    failures = []
    for request, talk in zip((bench.first, bench.second), (leaving, returning), strict=True):
        bench.agent.talk = talk
        failures.append((await bench.runner.run(request)).rollout.failure)
    assert (failures[0].boundary, failures[0].type, failures[1]) == ("engine", "EngineUnavailable", None)
    assert "fails (500), until the agent ended" in failures[0].message


async def test_failing_auxiliary_of_an_agent_fails_the_rollout(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, although the agent could retry its call."""
    monkeypatch.setattr(bench.agent, "auxiliary", Mock(side_effect=KeyError("title")))
    rollout = (await bench.runner.run(bench.first)).rollout
    assert rollout.failure.boundary == "agent"
    assert "failed in auxiliary(): KeyError: 'title'" in rollout.failure.message


class _Elsewhere(InteractiveAgent):
    """Its loop is elsewhere: it starts no command and makes no LLM call, but uses the sandbox."""

    name = "elsewhere"
    dialect = None

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ("false",)

    async def converse(self, ctx: AgentContext, dialogue: AgentDialogue) -> None:
        done = await dialogue.sandbox.exec(["touch", "new.txt"])
        dialogue.record(AgentEvent(kind="tool_result", text=str(done.exit_code)))


async def test_rollout_of_another_agent_is_recorded_and_graded(bench: Bench) -> None:
    request = bench.first.model_copy(update={"id": "other", "agent": "elsewhere"})
    boxes: list[Box] = []
    bench.provider.on_open = boxes.append  # type: ignore[assignment]  # all are boxes
    rollout = (await bench.runner.run(request, _Elsewhere())).rollout
    assert (rollout.outcome, rollout.turns, rollout.ledger) == ("resolved", 0, None)
    assert boxes[0].ran[-1] == ["touch", "new.txt"]
    assert bench.run.patch("other") == b"the patch"
    assert [event.text for event in bench.run.events("other")] == ["0"]
    assert (await bench.runner.run(bench.second)).rollout.turns == 1, "the run's own agent is as it was"
