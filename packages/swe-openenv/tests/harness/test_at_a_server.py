"""The same sessions at an environment server, over real sockets, also over some that break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from swe_core.errors import ConfigError, UsageError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.chains import chains_of
from swe_openenv.harness import task_prompts
from swe_openenv.harness.health import TrainingStopped

from ..server.serving import Served, serving
from .running import OWN, at, prompt
from .test_sessions import NEUTRAL, TASKS, cancelled


@pytest.fixture(scope="module")
def solving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose agent applies the gold patch."""
    with serving(tmp_path_factory.mktemp("solving") / "run", ["run.agent=oracle"]) as server:
        yield server


def test_session_runs_grades_and_tells(solving: Served) -> None:
    with at(solving.url) as made:
        session = made.create(prompt(TASKS[1]), seed=0, episode_id="whole")
        assert session.wait_for_completion() == session.wait_for_completion() == 0
        verdict = session.verify([])
        session.close()
    assert (verdict.env_reward, verdict.done) == (1.0, True)
    assert verdict.artifacts["task_id"] == TASKS[1]
    assert Path(verdict.artifacts["records"], "grade.json").exists()


def test_task_is_chosen_as_in_process(solving: Served) -> None:
    with at(solving.url) as made:
        group = [made.create(prompt(""), seed=8) for _ in range(2)]
        assert [session.wait_for_completion() for session in group] == [0, 0]
        assert {session.verify([]).artifacts["task_id"] for session in group} == {TASKS[8 % len(TASKS)]}
        for task, says in (
            ("nope", "there is no task 'nope'"),
            ({"index": 6}, "the index 6 is out of range"),
        ):
            with pytest.raises(UsageError, match=says):
                made.create(task)


def test_rows_for_trl_come_from_the_server(solving: Served) -> None:
    rows = task_prompts(url=f"{solving.url}/")
    assert [row["prompt"][0]["content"] for row in rows] == TASKS


def test_key_is_needed_and_never_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "run", ["run.agent=oracle"], key="a-long-secret-key") as server:
        for name, value in (("RIGHT", "a-long-secret-key"), ("WRONG", "another-secret")):
            monkeypatch.setenv(f"SWE_TEST_{name}", value)
        for more in ({}, {"key_env": "SWE_TEST_WRONG"}):
            with (
                pytest.raises(ConfigError, match="needs its key: set key_env") as refused,
                at(server.url, **more),
            ):
                pass
            assert "secret" not in str(refused.value)
        assert len(task_prompts(url=server.url, key_env="SWE_TEST_RIGHT")) == len(TASKS)
        with at(server.url, key_env="SWE_TEST_RIGHT") as made:
            assert made.create(TASKS[0]).wait_for_completion() == 0


def test_server_without_an_agent_or_tokens_is_refused(solving: Served, tmp_path: Path) -> None:
    sampling = {"temperature": 1.0, **NEUTRAL}
    with pytest.raises(ConfigError, match="does not own its tokens"), at(solving.url, sampling=sampling):
        pass
    with serving(tmp_path / "run", ["run.agent=nop"], interactive=True) as server:
        with pytest.raises(ConfigError, match="start it without --interactive"), at(server.url):
            pass


def test_trace_and_sampling_come_from_the_server(tmp_path: Path, talking: list[str]) -> None:
    sampling = {"temperature": 0.8, **NEUTRAL}
    sets = [*OWN, *talking]
    with serving(tmp_path / "other", sets) as server:
        says = r"samples with temperature 1\.0 and the trainer with 0\.8: start it with that as --set engine"
        with pytest.raises(ConfigError, match=says), at(server.url, sampling=sampling):
            pass
    sets += ["engine.vllm.temperature=0.8", f"run.record={tmp_path / 'recorded.jsonl'}"]
    with serving(tmp_path / "run", sets) as server:
        with at(server.url, sampling=sampling) as made:
            session = made.create(TASKS[0], episode_id="e")
            assert session.wait_for_completion() == 0
            trace = session.fetch_training_trace()
            session.close()
    chains = chains_of(RunDirectory.open(tmp_path / "run").turns("e"))
    assert len(trace.turns) == 6
    ends = [trace.turns[2], trace.turns[5]]
    for turn, chain in zip(ends, chains, strict=True):
        assert [*turn.prompt_token_ids, *turn.completion_token_ids] == chain.input_ids.tolist()


def test_close_and_timeout_cancel_at_the_server(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with serving(out, [*OWN, "run.agent=sleeper", "run.concurrency=2"]) as server, at(server.url) as made:
        closed, late, queued = (
            made.create(TASKS[0], episode_id=name) for name in ("closed", "late", "queued")
        )
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(closed.wait_for_completion()))
        thread.start()
        while not (out / "rollouts" / "closed").exists():
            assert thread.is_alive()
        closed.close()
        thread.join(30)
        for session in (late, queued):
            with pytest.raises(TimeoutError):
                session.wait_for_completion(0.3)
            assert session.verify([]).env_reward is None
            session.close()
        assert codes == [1]
    assert cancelled(out)["closed"] == "stopped"
    assert cancelled(out)["late"] == "timeout"


class Wire:
    """A relay to a server, whose connections can be cut and which can be gone."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._to = host, int(port)
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._start(self._accept)

    def _start(self, function: Any, *args: Any) -> None:
        self._threads.append(threading.Thread(target=function, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listening.accept()
                theirs = socket.create_connection(self._to)
                self._ends += [ours, theirs]
                self._start(self._copy, ours, theirs)
                self._start(self._copy, theirs, ours)

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        self._end(source, sink)

    @staticmethod
    def _end(*ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End all connections, without a farewell."""
        self._end(*self._ends)

    def close(self) -> None:
        self._end(self._listening, *self._ends)
        while self._threads:
            self._threads.pop().join()
        for end in (self._listening, *self._ends):
            end.close()


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    try:
        yield made
    finally:
        made.close()


def waiting(session: Any, folder: Path) -> tuple[threading.Thread, list[int]]:
    """Wait for a session in a thread, and return when its rollout has begun."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(session.wait_for_completion()))
    thread.start()
    while not folder.exists():
        assert thread.is_alive()
    return thread, codes


def test_dropped_connection_loses_nothing(tmp_path: Path, talking: list[str]) -> None:
    """It is dropped while the agent runs, and once between the choice of the task and the start."""
    out = tmp_path / "run"
    with serving(out, [*OWN, *talking]) as server, wire(server.url) as cable, at(cable.url) as made:
        session = made.create(TASKS[0], episode_id="e")
        cable.cut()
        thread, codes = waiting(session, out / "rollouts" / "e")
        cable.cut()
        thread.join(60)
        assert codes == [0]
        assert session.verify([]).env_reward == 1.0
        assert len(session.fetch_training_trace().turns) == 6
    assert list(cancelled(out)) == ["e"], "it ran once"


def test_server_that_stays_away_stops_the_training(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with serving(out, [*OWN, "run.agent=sleeper"]) as server, wire(server.url) as cable:
        with at(cable.url, timeout=0.5) as made:
            session = made.create(TASKS[0], episode_id="e")
            thread, codes = waiting(session, out / "rollouts" / "e")
            cable.close()
            thread.join(60)
            assert codes == [1]
            for stopping in (session, made.create(TASKS[1])):
                assert stopping.wait_for_completion() == 1
                with pytest.raises(TrainingStopped, match=r"was out of reach for 0\.5 s"):
                    stopping.fetch_training_trace()


def test_full_server_is_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path / "run", ["run.agent=oracle"], sessions=1) as server, at(server.url) as made:
        with server.client().sync() as env:
            env.reset(index=0)
            session = made.create(TASKS[1])
            thread = threading.Thread(target=session.wait_for_completion)
            thread.start()
        thread.join(60)
        assert session.verify([]).env_reward == 1.0
