"""`swe-core openenv serve` as its users run it: a process of its own, OpenEnv's client, real agents."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from swe_core.rollout.run_directory import RunDirectory

from .conftest import Command, leftovers, wait_for
from .warm import Program, Warm

generic_client = pytest.importorskip("openenv.core.generic_client", reason="openenv is not installed")

RUN = {"type": "run_agent"}
EPISODES = 32


@dataclass(frozen=True)
class Serving:
    """A server that runs."""

    url: str
    program: Program


@contextmanager
def serving(warm: Warm, scratch: Path, out: Path, *sets: str) -> Iterator[Serving]:
    """Serve the demo tasks until the context is left, which must end the server cleanly if it still runs."""
    said = scratch.parent / f"{scratch.name}.log"
    unisolated = ("--set", "sandbox.local.unisolated=true")
    args = ["openenv", "serve", "--port", "0", "--out", str(out), *unisolated]
    args += [word for setting in sets for word in ("--set", setting)]
    with warm.start(args, {"TMPDIR": str(scratch)}, stderr=said) as program:
        wait_for(lambda: "clients connect to" in said.read_text(), program, said.read_text)
        (url,) = re.findall(r"clients connect to (\S+)", said.read_text())
        yield Serving(url, program)
        program.terminate()
        _, stderr = program.communicate(60)
    said.unlink()
    assert "Traceback" not in stderr, stderr
    if program.returncode != -signal.SIGKILL:  # what a killed one leaves, the next one removes
        assert leftovers(scratch, program.pid) == []


def client(url: str) -> Any:
    return generic_client.GenericEnvClient(base_url=url, message_timeout_s=600)


@pytest.mark.slow
def test_killed_server_answers_for_finished_episodes(warm: Warm, scratch: Path, tmp_path: Path) -> None:
    """It is killed in the middle of another episode, which runs again after the restart."""
    out = tmp_path / "run"

    def started() -> bool:
        return (out / "rollouts" / "cut").exists()

    with serving(warm, scratch, out, "run.agent=mini") as first:
        with client(first.url).sync() as env:
            env.reset(index=0, episode_id="done")
            before = env.step(RUN)
        assert before.reward == 1.0

        async def cut() -> None:
            async with client(first.url) as env, anyio.create_task_group() as tasks:
                await env.reset(index=1, episode_id="cut")
                tasks.start_soon(env.step, RUN)
                await anyio.to_thread.run_sync(wait_for, started)
                first.program.kill()
                first.program.wait()
                tasks.cancel_scope.cancel()

        anyio.run(cut)
        assert first.program.wait() == -signal.SIGKILL
    with serving(warm, scratch, out, "run.agent=mini") as second, client(second.url).sync() as env:
        after = env.reset(episode_id="done")
        assert (after.done, after.reward) == (True, 1.0)
        assert after.observation["patch"] == before.observation["patch"]
        again = env.reset(index=1, episode_id="cut")
        assert (again.done, again.observation["status"]) == (False, "ready")
        assert env.step(RUN).done
    assert set(RunDirectory.open(out).finished()) == {"done", "cut"}


@pytest.mark.pi
@pytest.mark.slow
def test_many_clients_have_an_episode_of_pi_each_at_once(warm: Warm, scratch: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with serving(warm, scratch, out, "run.agent=pi", f"run.concurrency={EPISODES}") as server:

        async def play(number: int, ends: list[Any]) -> None:
            async with client(server.url) as env:
                await env.reset(index=number % 6, episode_id=f"e{number}")
                ends.append(await env.step(RUN))

        async def play_all() -> list[Any]:
            ends: list[Any] = []
            async with anyio.create_task_group() as tasks:
                for number in range(EPISODES):
                    tasks.start_soon(play, number, ends)
            return ends

        ends = anyio.run(play_all)
    assert len(ends) == EPISODES
    assert [end.observation for end in ends if not end.done or end.reward is None] == []
    verdicts = {(end.observation["task_id"], end.reward) for end in ends}
    assert len(verdicts) == 6, "each task has the same verdict in all of its episodes"
    assert sorted(reward for _, reward in verdicts) == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    records = RunDirectory.open(out).rollouts()
    assert {record.id for record in records} == {f"e{number}" for number in range(EPISODES)}
    assert all(record.turns >= 3 for record in records)


@pytest.mark.slow
def test_server_that_cannot_listen_says_why(command: Command, tmp_path: Path) -> None:
    where = ("--out", str(tmp_path / "run"), "--host", "192.0.2.1", "--port", "0")
    done = command("openenv", "serve", *where, "--set", "sandbox.local.unisolated=true")
    assert done.code != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("swe-core: error")]
    assert "the server cannot listen on port" in line
