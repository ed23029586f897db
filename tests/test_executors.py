"""Rollouts in other processes have the records that they have in one, and none is lost or repeated."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from secrets import randbelow

import anyio
import pytest

from swe_core.api.executor import ExecutorRun
from swe_core.api.records import NODE_LOST, Rollout
from swe_core.builtin import processes
from swe_core.builtin.processes import ProcessExecutor, ProcessNode
from swe_core.report.token_audit import audit
from swe_core.rollout.nodes.handle import NodeUnreachable
from swe_core.rollout.nodes.order import MAX_LOST
from swe_core.rollout.nodes.pool import NodePool
from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.components import load_plugins
from swe_core.run.execute import execute
from swe_core.run.plan import plan_run
from swe_core.run.settings import load_settings

from .conftest import SweCore, wait_for
from .evaluations import PATIENCE, Evaluation
from .resumed_rollouts import STAYING, TASKS

KILLS = int(os.environ.get("SWE_TEST_KILLS", 8))
TWO = ("--executor", "processes", "--workers", "2")
pytestmark = pytest.mark.usefixtures("local_sandbox")


def nodes_of(evaluation: Evaluation) -> list[int]:
    """The process ids of the nodes that run."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (directory / "cmdline").read_bytes(), (directory / "environ").read_bytes()
        except OSError:  # it has ended
            continue
        if b"swe_core.run.node_process" in command and os.fsencode(evaluation.scratch) in environ:
            found.append(int(directory.name))
    return found


def shown(rollout: Rollout) -> dict[str, object]:
    """What does not depend on the time and the place; the log of a test run has times in it."""
    varying = {"started_at", "seconds", "phases", "sandboxes", "node"}
    return rollout.model_dump(
        exclude={**dict.fromkeys(varying, True), "grade": {"hashes": {"log"}, "test_seconds": True}}
    )


def test_processes_make_the_records_of_one(swe_core: SweCore) -> None:
    demo = ("--tasks", "demo", "--plugins", "mini", "--limit", "3")
    local, split = swe_core(*demo), swe_core(*demo, *TWO)
    assert split.code == local.code == 0, split.stderr
    one, other = (
        sorted(RunDirectory.open(done.out).rollouts(), key=lambda rollout: rollout.id)
        for done in (local, split)
    )
    assert [shown(rollout) for rollout in other] == [shown(rollout) for rollout in one]
    assert {rollout.node for rollout in one} == {None}
    assert {rollout.node for rollout in other} <= {"process-1", "process-2"}
    for rollout in one:
        here, there = (
            {path.name for path in (done.out / "rollouts" / rollout.id).iterdir()} for done in (local, split)
        )
        assert here == there
    assert {path.name for path in split.out.iterdir()} == {path.name for path in local.out.iterdir()}


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.slow, id="many")])
def test_killed_nodes_lose_and_repeat_nothing(
    make_evaluation: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str], kills: int
) -> None:
    seed = int(os.environ.get("SWE_TEST_SEED", randbelow(10**6)))
    random, killed, runs = Random(seed), 0, 0
    with capsys.disabled():
        print(f"\nnodes: seed {seed} (SWE_TEST_SEED)")
    while killed < kills:
        evaluation, runs = make_evaluation(str(runs), 3, TWO), runs + 1
        with evaluation.start() as process:
            for _ in range(min(kills - killed, MAX_LOST - 1)):  # more would make an error of a rollout
                before, more = evaluation.whole.count(b"\n"), random.randint(1, 6)
                wait_for(lambda p=process, n=before + more, e=evaluation: (  # type: ignore[misc]  # mypy infers no type for a default
                    p.poll() is not None or (e.whole.count(b"\n") >= n and nodes_of(e))
                ))  # fmt: skip
                if process.poll() is not None:
                    break
                os.kill(random.choice(nodes_of(evaluation)), signal.SIGKILL)
                killed += 1
            said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, said
        assert "Traceback" not in said, said
        assert "has ended with code -9" in said
        evaluation.is_complete()
        run = RunDirectory.open(evaluation.out)
        assert audit(run, run.rollouts()).problems == ()
        evaluation.run()  # what killed nodes left behind is removed at the next start
        evaluation.nothing_is_left()


def test_interrupted_run_ends_in_order_and_resumes_in_one_process(
    make_evaluation: Callable[..., Evaluation],
) -> None:
    evaluation = make_evaluation(options=TWO)
    evaluation.env = {STAYING: "small-8 small-9"}
    with evaluation.start() as process:
        wait_for(lambda: evaluation.whole.count(b"\n") == TASKS - 2)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130, said
    outcomes = RunDirectory.open(evaluation.out).finished()
    assert sorted(outcomes) == evaluation.ids
    assert sum(outcome == "cancelled" for outcome in outcomes.values()) == 2
    evaluation.nothing_is_left()
    evaluation.env, evaluation.options = {}, ("--executor", "local")
    evaluation.run()
    evaluation.is_complete()


def test_node_that_cannot_start_is_said_in_a_sentence(make_evaluation: Callable[..., Evaluation]) -> None:
    evaluation = make_evaluation(options=TWO)
    evaluation.env = {"PYTHONPATH": str(evaluation.path / "broken")}
    broken = evaluation.path / "broken" / "aiohttp"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise SystemExit('aiohttp is broken here')")
    with evaluation.start() as process:
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1
    last = said.splitlines()[-1]
    assert "no node can run rollouts (process-1, process-2: its process has ended" in last
    assert "aiohttp is broken here" in last
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.anyio
async def test_split_of_a_minute_loses_nothing(
    tmp_path: Path, make_evaluation: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages to one of the real nodes are dropped for 60 s, while its rollouts go on."""
    evaluation = make_evaluation()
    monkeypatch.setenv("SWE_TEST_DIR", str(evaluation.path))
    monkeypatch.setenv("TMPDIR", str(evaluation.scratch))
    split_until: list[float] = []
    call = ProcessNode.call

    async def dropped(node: ProcessNode, method: str, message: bytes) -> bytes:
        if node.name == "process-1" and split_until and anyio.current_time() < split_until[0]:
            raise NodeUnreachable("the network is split")
        return await call(node, method, message)

    monkeypatch.setattr(ProcessNode, "call", dropped)

    class Splitting(ProcessExecutor):
        @asynccontextmanager
        async def nodes(self, pool: NodePool, run: ExecutorRun) -> AsyncIterator[None]:
            async with super().nodes(pool, run), anyio.create_task_group() as tasks:

                async def split() -> None:
                    while not pool.nodes["process-1"].running:  # noqa: ASYNC110 (the pool has no event for it)
                        await anyio.sleep(0.01)
                    split_until.append(anyio.current_time() + 60)

                tasks.start_soon(split)
                yield

    monkeypatch.setattr(processes, "ProcessExecutor", Splitting)
    settings = load_settings(
        sets=(
            "run.tasks=small", "run.agent=once", "run.grader=digest", "run.engine=replay",
            f"run.recording={evaluation.path / 'replies.jsonl'}", "run.executor=processes",
            "run.workers=2", f'run.extra_plugins=["{Path(__file__).with_name("resumed_rollouts.py")}"]',
        )
    )  # fmt: skip
    plugins = load_plugins(settings.run)
    plan = plan_run(settings, plugins)
    with anyio.fail_after(PATIENCE):
        done = await execute(
            plan, plugins, evaluation.out, lambda requests, notes: _Quiet(), plan.worker.create()
        )
    assert split_until
    evaluation.is_complete()
    assert all(rollout.retried == () for rollout in done.directory.rollouts())
    assert NODE_LOST not in (evaluation.out / "rollouts.jsonl").read_text()
    evaluation.nothing_is_left()


class _Quiet:
    def started(self, request: object) -> None: ...

    def phase(self, rollout_id: str, phase: object) -> None: ...

    def turn(self, rollout_id: str, turn: object) -> None: ...

    def finished(self, rollout: object) -> None: ...
