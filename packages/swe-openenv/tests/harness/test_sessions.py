"""Sessions of a run in this process, as TRL's worker uses them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from openenv.core.harness import ResourceSessionFactory, TrainableSession

from swe_core.builtin.demo.source import DemoSource
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.chains import chains_of
from swe_openenv.config import ServerConfig
from swe_openenv.harness import SweSessionFactory, task_prompts
from swe_openenv.harness.health import TrainingStopped
from swe_openenv.server.app import make_app
from swe_openenv.trace import trace_entries

from .running import BASIC, OWN, factory, prompt

TASKS = [task.instance_id for task in DemoSource().tasks()]
NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweSessionFactory]:
    """A factory whose agent applies the gold patch."""
    with factory(tmp_path_factory.mktemp("solved") / "run", "run.agent=oracle") as made:
        yield made


def test_session_runs_grades_and_tells(solved: SweSessionFactory) -> None:
    assert isinstance(solved, ResourceSessionFactory)
    session = solved.create(prompt(TASKS[1]), seed=0, episode_id="whole")
    assert isinstance(session, TrainableSession)
    assert (session.initial_messages(), session.list_tools()) == ([], [])
    with pytest.raises(KeyError, match="no tool 'bash'"):
        session.call_tool("bash", {})
    assert session.wait_for_completion() == session.wait_for_completion() == 0
    verdict = session.verify([])
    session.close()
    session.close()
    assert (verdict.env_reward, verdict.done) == (1.0, True)
    assert verdict.metrics["turns"] == 0
    told = verdict.artifacts
    assert (told["task_id"], told["outcome"], told["episode_id"]) == (TASKS[1], "resolved", "whole")
    assert Path(told["records"], "grade.json").exists()
    assert told["patch"]


@pytest.mark.parametrize(
    ("task", "seed", "chosen"),
    [
        ({"task_id": TASKS[3]}, 0, TASKS[3]),
        ({"index": 4}, 0, TASKS[4]),
        (prompt(TASKS[5]), 0, TASKS[5]),
        ([{"role": "user", "content": [{"type": "text", "text": TASKS[5]}]}], 0, TASKS[5]),
        (prompt(""), 8, TASKS[8 % len(TASKS)]),
        ([], 1, TASKS[1]),
    ],
)
@pytest.mark.slow
def test_task_is_chosen(solved: SweSessionFactory, task: Any, seed: int | None, chosen: str) -> None:
    session = solved.create(task, seed=seed)
    session.wait_for_completion()
    assert session.verify([]).artifacts["task_id"] == chosen


def test_wrong_task_is_one_sentence(solved: SweSessionFactory) -> None:
    wrong: list[tuple[Any, str]] = [
        ("nope", "there is no task 'nope'"),
        (prompt("Please fix the bug in the parser of dates, " * 9), "which is no task id"),
        (prompt(""), "there is no seed that chooses a task"),
        ({"index": 6}, "the index 6 is out of range"),
        ({"index": 0, "split": "test"}, "there is no split 'test'"),
        ({"index": 0, "task_id": "x"}, "expected one of 'task_id' and 'index'"),
        (7, "of the type 'int'"),
    ]
    for task, says in wrong:
        with pytest.raises(UsageError, match=says) as raised:
            solved.create(task)
        assert len(str(raised.value)) < 220
    solved.create(TASKS[0]).wait_for_completion()


@pytest.mark.slow
def test_timeout_cancels_the_rollout(tmp_path: Path) -> None:
    with factory(tmp_path / "run", *OWN, "run.agent=sleeper") as made:
        session = made.create(TASKS[0], episode_id="slow")
        with pytest.raises(TimeoutError, match=r"'slow' has no verdict after 0\.2 s and is cancelled"):
            session.wait_for_completion(0.2)
        assert session.fetch_training_trace().turns == []
        verdict = session.verify([])
        assert (verdict.env_reward, verdict.artifacts["reason"]) == (None, "timeout")
        assert session.wait_for_completion() == 1
        session.close()
    assert cancelled(tmp_path / "run") == {"slow": "timeout"}


def cancelled(out: Path) -> dict[str, str | None]:
    """Rollout → why it was cancelled, of all on disk."""
    return {rollout.id: rollout.cancelled_as for rollout in RunDirectory.open(out).rollouts()}


@pytest.mark.slow
def test_close_in_another_thread_ends_the_wait(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with factory(out, *OWN, "run.agent=sleeper", "run.concurrency=1") as made:
        running, queued, unstarted = (made.create(TASKS[0], episode_id=name) for name in ("r", "q", "u"))
        codes: dict[str, int] = {}

        def wait(name: str, session: Any) -> None:
            codes[name] = session.wait_for_completion()

        threads = []
        for name, session in (("r", running), ("q", queued)):
            threads.append(threading.Thread(target=wait, args=(name, session)))
            threads[-1].start()
            while name == "r" and not (out / "rollouts" / "r").exists():
                assert threads[-1].is_alive()
        for session in (queued, running, unstarted):
            session.close()
        for thread in threads:
            thread.join(30)
        assert codes == {"r": 1, "q": 1}
        assert unstarted.wait_for_completion() == 1
        assert queued.verify([]).env_reward is None
    assert cancelled(out) == {"r": "stopped"}, "what had not begun leaves no record"


@pytest.mark.slow
def test_closed_factory_ends_what_waits(tmp_path: Path) -> None:
    out, before = tmp_path / "run", set(threading.enumerate())
    with factory(out, *OWN, "run.agent=sleeper") as made:
        session = made.create(TASKS[0], episode_id="e")
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(session.wait_for_completion()))
        thread.start()
        while not (out / "rollouts" / "e").exists():
            assert thread.is_alive()
    thread.join(30)
    made.close()
    session.close()
    assert codes == [1]
    assert list(cancelled(out)) == ["e"]
    with pytest.raises(UsageError, match="the session factory is closed"):
        made.create(TASKS[0])
    for own in set(threading.enumerate()) - before:
        own.join(30)
        assert not own.is_alive(), f"{own.name} is left"


@pytest.mark.slow
def test_program_that_ends_closes_its_run(tmp_path: Path) -> None:
    """It has not closed its factory, and a rollout runs."""
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from swe_openenv.harness import SweSessionFactory\n"
        f"made = SweSessionFactory(sets={[*BASIC, *OWN, 'run.agent=sleeper']!r}, out='run')\n"
        f"session = made.create({TASKS[0]!r}, episode_id='e')\n"
        "thread = threading.Thread(target=session.wait_for_completion, daemon=True)\n"
        "thread.start()\n"
        "while not Path('run/rollouts/e').exists():\n"
        "    assert thread.is_alive()\n"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert list(cancelled(tmp_path / "run")) == ["e"]


@pytest.mark.slow
def test_run_goes_on_with_the_same_settings_only(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with factory(tmp_path / "run", "run.agent=oracle") as made:
            assert made.create(TASKS[0], episode_id=name).wait_for_completion() == 0
    assert cancelled(tmp_path / "run") == {"first": None, "second": None}
    with pytest.raises(UsageError, match=r"'run.agent' was 'oracle'"):
        SweSessionFactory(sets=(*BASIC, "run.agent=nop"), out=tmp_path / "run")


OPENAI = [*BASIC, "run.engine_url=http://127.0.0.1:9", "run.model=m"]
VLLM = [*OPENAI, "run.engine=vllm", "engine.vllm.temperature=0.7"]
OTHER = "samples with temperature 0.7 and the trainer with 0.9: leave engine.vllm.temperature out of the"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"sets": ["run.agent=nobody"]}, "nobody"),
        ({"config": "missing.toml"}, "cannot read the settings file 'missing.toml'"),
        ({"sets": [*BASIC, "run.agent=oracle"], "sampling": {"temperature": 1.0}}, "makes no LLM calls"),
        ({"sets": OPENAI, "sampling": {"temperature": 1.0}}, "does not own its tokens"),
        ({"sets": VLLM, "sampling": {"temperature": 0.9, **NEUTRAL}}, OTHER),
    ],
)
def test_wrong_setting_is_told_when_the_factory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says) as raised:
        SweSessionFactory(out=tmp_path / "run", **more)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_rows_for_trl_have_the_ids_of_the_tasks() -> None:
    rows = task_prompts(sets=BASIC)
    assert rows == [{"prompt": [{"role": "user", "content": task_id}]} for task_id in TASKS]


@pytest.mark.slow
def test_interleaved_conversations_are_one_row_each_under_trl(tmp_path: Path, talking: list[str]) -> None:
    worker = pytest.importorskip("trl.experimental.async_grpo.openenv_harness", reason="TRL is not installed")
    sampling = {"temperature": 0.8, **NEUTRAL}
    with factory(tmp_path / "run", *OWN, *talking, sampling=sampling) as made:
        session = made.create(TASKS[0], episode_id="e")
        assert session.wait_for_completion() == 0
        trace = session.fetch_training_trace()
        verdict = session.verify([])
        session.close()
    assert len(trace.turns) == verdict.metrics["turns"] == 6
    assert verdict.metrics["trainable"] == verdict.metrics["sampled"] > 0
    run = RunDirectory.open(tmp_path / "run")
    assert run.info.settings["engine"]["vllm"]["temperature"] == 0.8
    turns = worker._turns_from_training_trace(trace)
    rows, tally = worker._chain_to_sequences(turns, "e", 0)
    chains = chains_of(run.turns("e"))
    assert len(chains) == len(rows) == 2
    assert (tally["fork"], tally["realign"]) == (1, 0)
    for row, chain in zip(rows, chains, strict=True):
        assert row.input_ids == chain.input_ids.tolist()
        assert row.completion_mask == chain.completion_mask.astype(int).tolist()
        np.testing.assert_array_equal(np.float32(row.old_log_probs), chain.old_log_probs)
    entries = trace.to_trace_entries()
    messages = worker._messages_from_trace(entries)
    assert (messages[0]["content"], messages[-1]["role"]) == ("Look it up.", "assistant")
    assert {entry["metadata"]["versions"][0][0] for entry in entries} == {0}
    (rollout,) = run.rollouts()
    episodes: Any = SimpleNamespace(
        known={"e": SimpleNamespace(rollout=rollout), "runs": SimpleNamespace(rollout=None)}.get,
        runner=SimpleNamespace(store=run),
    )
    client = TestClient(make_app(episodes, ServerConfig()))
    served = client.get("/sessions/e/trace_entries").json()
    assert served["entries"] == json.loads(json.dumps(trace_entries([*run.turns("e")], chains)))
    assert [client.get(f"/sessions/{name}/trace_entries").status_code for name in ("runs", "x")] == [409, 404]


@pytest.mark.slow
def test_trace_that_cannot_be_read_costs_its_own_rollout_only(tmp_path: Path, talking: list[str]) -> None:
    with factory(tmp_path / "run", *OWN, *talking) as made:
        session, other = made.create(TASKS[0], episode_id="e"), made.create(TASKS[0], episode_id="o")
        assert (session.wait_for_completion(), other.wait_for_completion()) == (0, 0)
        shutil.rmtree(tmp_path / "run" / "rollouts" / "e")
        assert session.fetch_training_trace().turns == []
        assert session.verify([]).env_reward is None
        assert len(other.fetch_training_trace().turns) == 6
        assert other.verify([]).env_reward == 1.0


@pytest.mark.slow
def test_error_has_no_reward_and_too_many_stop_the_training(tmp_path: Path) -> None:
    with factory(tmp_path / "run", *OWN, "run.agent=failing", give_up_after=2) as made:
        first, second = made.create(TASKS[0]), made.create(TASKS[1])
        assert first.wait_for_completion() == 1
        assert first.fetch_training_trace().turns == []
        verdict = first.verify([])
        assert (verdict.env_reward, verdict.artifacts["outcome"]) == (None, "error")
        assert "exited with code 3" in verdict.artifacts["reason"]
        assert second.wait_for_completion() == 1
        for stopping in (second, made.create(TASKS[2])):
            assert stopping.wait_for_completion() == 1
            says = r"2 rollouts in a row have no verdict; the last: .*exited with code 3"
            with pytest.raises(TrainingStopped, match=says):
                stopping.fetch_training_trace()


@pytest.mark.slow
def test_rows_of_another_data_set_stop_the_training(tmp_path: Path) -> None:
    """TRL would ask for ever: it counts a session that cannot be made as unscorable."""
    with factory(tmp_path / "run", "run.agent=oracle", give_up_after=3) as made:
        for _ in range(2):
            with pytest.raises(UsageError, match="which is no task id"):
                made.create(prompt("What is 2 + 2?"))
        session = made.create(prompt("What is 2 + 2?"))
        assert session.wait_for_completion() == 1
        with pytest.raises(ValueError, match="'What is 2 \\+ 2\\?', which is no task id"):
            session.fetch_training_trace()
        session.close()


@pytest.mark.slow
def test_run_that_breaks_stops_the_training(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with factory(out, "run.agent=oracle") as made:
        session = made.create(TASKS[0])
        shutil.rmtree(out / "rollouts")
        (out / "rollouts").write_text("in the way")
        assert session.wait_for_completion() == 1
        for stopping in (session, made.create(TASKS[1])):
            assert stopping.wait_for_completion() == 1
            with pytest.raises(TrainingStopped, match="cannot write to the run directory"):
                stopping.fetch_training_trace()
            stopping.close()
