"""An evaluation that was killed, interrupted or out of disk resumes where it was; nothing is lost or left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from random import Random
from secrets import randbelow

import pytest

from swe_core.rollout.run_directory import RunDirectory

from .conftest import wait_for
from .evaluations import PATIENCE, Evaluation
from .resumed_rollouts import FAILING, STAYING, TASKS

ATTEMPTS = 3
OF_A_RUN = 10

pytestmark = pytest.mark.usefixtures("local_sandbox")


def instants(evaluation: Evaluation, random: Random) -> tuple[str, Callable[[], bool]]:
    """What to wait for before a kill: the run's start, files of a rollout, or so many finished ones."""
    out, before = evaluation.out, evaluation.whole.count(b"\n")
    folders = set((out / "rollouts").iterdir()) if (out / "rollouts").exists() else set()
    name = random.choice(["turns.jsonl", "agent.log", "patch.diff", "grade.json", "test.log"])
    more = random.randint(1, 4)

    def new_file() -> bool:
        return any(path.parent not in folders for path in out.glob(f"rollouts/*/{name}"))

    return random.choice([
        ("the run directory is there", lambda: out.exists()),
        ("it is being written to", lambda: (out / "server.json").exists()),
        (f"a new {name}", new_file),
        (f"a new {name}", new_file),
        (f"{more} more are finished", lambda: evaluation.whole.count(b"\n") >= before + more),
        (f"{more} more are finished", lambda: evaluation.whole.count(b"\n") >= before + more),
    ])  # fmt: skip


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)], ids=["few", "many"])
def test_run_killed_at_any_instant_resumes_to_the_same_end(
    make_evaluation: Callable[..., Evaluation],
    capsys: pytest.CaptureFixture[str],
    kills: int,
) -> None:
    seed = int(os.environ.get("SWE_TEST_SEED", randbelow(10**6)))
    random = Random(seed)
    with capsys.disabled():
        print(f"\nresume: seed {seed} (SWE_TEST_SEED)")
    killed, runs = 0, 0
    while killed < kills:
        evaluation, runs = make_evaluation(str(runs), ATTEMPTS), runs + 1
        for _ in range(min(kills, OF_A_RUN)):
            before = evaluation.whole
            what, happened = instants(evaluation, random)
            delay = random.choice([0, random.uniform(0, 0.02), random.uniform(0, 0.5)])
            with evaluation.start() as process:
                wait_for(lambda p=process, h=happened: h() or p.poll() is not None)
                time.sleep(delay)
                process.send_signal(signal.SIGKILL)
                said = process.communicate()[1]
            assert process.returncode in (0, -signal.SIGKILL), (what, said)
            assert evaluation.whole.startswith(before), "a finished rollout was lost or run again"
            if process.returncode == 0:  # the kill came too late, and so would all that follow
                break
            killed += 1
        before = evaluation.whole
        evaluation.run()
        assert evaluation.whole.startswith(before)
        evaluation.is_complete()
        evaluation.nothing_is_left()


def test_cancelled_rollouts_run_again_and_errors_only_on_request(
    make_evaluation: Callable[..., Evaluation],
) -> None:
    evaluation = make_evaluation()
    evaluation.env = {FAILING: "small-2 small-9", STAYING: "small-5 small-6 small-7 small-8"}
    with evaluation.start() as process:
        wait_for(lambda: evaluation.whole.count(b"small-2") >= 1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130, said
    outcomes = RunDirectory.open(evaluation.out).finished()
    assert "cancelled" in outcomes.values()
    assert len(outcomes) < TASKS

    del evaluation.env[STAYING]
    evaluation.run(code=1)  # the errors
    outcomes = RunDirectory.open(evaluation.out).finished()
    assert sorted(outcomes) == evaluation.ids
    failed = ["small-2-0", "small-9-0"]
    assert sorted(name for name, outcome in outcomes.items() if outcome == "error") == failed
    before = evaluation.whole
    evaluation.run(code=1)  # nothing is left to do
    assert evaluation.whole == before

    evaluation.env = {}
    assert "2 rollouts left" in evaluation.run("--retry-errors", "--concurrency", "2")
    evaluation.is_complete()
    evaluation.nothing_is_left()


def test_two_processes_do_not_write_to_one_run(make_evaluation: Callable[..., Evaluation]) -> None:
    evaluation = make_evaluation()
    with evaluation.start() as process:
        wait_for(lambda: evaluation.whole != b"")
        process.send_signal(signal.SIGSTOP)  # it does not end meanwhile
        before = sorted(evaluation.out.rglob("*"))
        (sentence,) = evaluation.run(code=2).splitlines()
        assert sorted(evaluation.out.rglob("*")) == before
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=PATIENCE)
    assert f"the run in '{evaluation.out}' is in use by another process: wait for it" in sentence
    assert process.returncode == 0
    evaluation.is_complete()


REFUSED: list[tuple[list[str], dict[str, str], str]] = [
    (["--attempts", "4"], {}, "the setting 'run.attempts' was 1 when it was started and is 4 now; only run."),
    (["--set", "limits.grade=5"], {}, "the setting 'limits.grade' was 1800.0 when"),
    ([], {"SWE_RESOURCES__CPUS": "1"}, "the setting 'resources.cpus' was 2.0 when"),
    ([], {"TEST_COMMAND": "false"}, "its tasks have changed: 'small-"),
]


def test_run_stays_the_run_that_it_was(make_evaluation: Callable[..., Evaluation]) -> None:
    evaluation = make_evaluation()
    with evaluation.start() as process:
        wait_for(lambda: evaluation.whole != b"")
        process.kill()
    before = sorted(evaluation.out.rglob("*")), evaluation.whole
    for args, env, says in REFUSED:
        evaluation.env = env
        (sentence,) = evaluation.run(*args, code=2).splitlines()
        assert says in sentence
        assert (sorted(evaluation.out.rglob("*")), evaluation.whole) == before


def test_retry_errors_needs_a_run(make_evaluation: Callable[..., Evaluation]) -> None:
    assert "--retry-errors needs --resume RUN" in make_evaluation().run("--retry-errors", code=2)


@pytest.mark.slow
def test_full_disk_ends_the_run_in_a_sentence_and_it_resumes(
    make_evaluation: Callable[..., Evaluation],
) -> None:
    """On a disk of its own that is too small for all records; the sandboxes are elsewhere."""
    evaluation = make_evaluation()
    evaluation.out.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=150k", "swe-test", str(evaluation.out)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        last = evaluation.run(code=1).splitlines()[-1]
        assert f"cannot write to the run directory '{evaluation.out}': No space left on device" in last
        assert "finished rollouts are kept, and --resume continues the run" in last
        run = RunDirectory.open(evaluation.out)
        assert 0 < len(run.rollouts()) < TASKS
        assert "error" not in run.finished().values()  # it is no fault of a rollout
        before = [line for line in evaluation.whole.splitlines() if b'"cancelled"' not in line]
        with evaluation.start() as process:  # still full
            said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode in (1, 2)
        assert "No space left on device" in said.splitlines()[-1]
        assert "Traceback" not in said
        subprocess.run(["mount", "-o", "remount,size=40m", str(evaluation.out)], check=True)
        evaluation.run()
        assert evaluation.whole.splitlines()[: len(before)] == before
        evaluation.is_complete()
        evaluation.nothing_is_left()
    finally:
        subprocess.run(["umount", str(evaluation.out)], check=True)
