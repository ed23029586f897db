"""The client is the agent: it works in the task's sandbox, and its patch is graded like any other."""

from __future__ import annotations

import json
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from swe_core.builtin.demo.source import DemoSource
from swe_core.errors import SandboxError
from swe_core.rollout.run_directory import RunDirectory

from .serving import Served, serving, wait_until
from .test_server import JSON, TASKS, ask, call, exchange, reset, step

SUBMIT = step(type="submit")


def shell(command: str, **more: Any) -> dict[str, Any]:
    return step(type="exec", command=command, **more)


GOLD = shell(f"git apply - <<'END'\n{next(DemoSource().tasks()).patch}\nEND")
"""The command that applies the gold patch of the first task."""


@pytest.mark.slow
def test_client_works_in_the_sandbox_and_submits(interactive: Served) -> None:
    answers = exchange(
        interactive.url,
        reset(index=0, episode_id="by-hand"),
        shell("pwd; echo wrong >&2; exit 3"),
        step(type="write", path="notes/new.txt", content="grüße\n"),
        step(type="read", path="/testbed/notes/new.txt"),
        step(type="read", path="missing.txt"),
        shell("sleep 60", timeout_s=0.5),
        GOLD,
        {"type": "state"},
        SUBMIT,
        shell("ls"),
    )
    ran, wrote, read, missing, slow, applied, state, last, late = (answer["data"] for answer in answers[1:])
    told = ran["observation"]
    assert (told["output"], told["error_output"], told["exit_code"]) == ("/testbed\n", "wrong\n", 3)
    assert (ran["done"], ran["reward"], wrote["done"]) == (False, None, False)
    assert read["observation"]["output"] == "grüße\n"
    assert missing["code"] == "EXECUTION_ERROR"
    assert "cannot read '/testbed/missing.txt'" in missing["message"]
    assert (slow["observation"]["exit_code"], applied["observation"]["exit_code"]) == (124, 0)
    assert "did not end within 0.5 s" in slow["observation"]["error_output"]
    assert (state["status"], state["agent"]) == ("running", "client")
    assert (last["done"], last["reward"]) == (True, 1.0)
    assert "notes/new.txt" in last["observation"]["patch"]
    assert "'by-hand' has ended" in late["message"]
    run = RunDirectory.open(interactive.out)
    (rollout,) = [rollout for rollout in run.rollouts() if rollout.id == "by-hand"]
    assert (rollout.agent, rollout.outcome, rollout.turns) == ("client", "resolved", 0)
    events = [(event.kind, event.tool) for event in run.events("by-hand")]
    told = [(kind, tool) for tool in ("exec", "write") for kind in ("tool_call", "tool_result")]
    assert events[:4] == told


def test_tools_work_in_the_sandbox_and_tell_no_grade(interactive: Served) -> None:
    listed, ran, wrote, read, missing, submitted = call(
        interactive.url,
        ("capabilities", {}),
        ("exec", {"command": "echo hello"}),
        ("write", {"path": "a.txt", "content": "b"}),
        ("read", {"path": "a.txt"}),
        ("read", {"path": "missing"}),
        ("submit", {}),
    )
    assert listed["result"]["structured_content"]["agent"] == "client"
    assert ran["result"]["structured_content"]["output"] == "hello\n"
    assert wrote["result"]["structured_content"] == {"result": "wrote a.txt"}
    assert read["result"]["structured_content"] == {"result": "b"}
    assert "cannot read '/testbed/missing'" in json.dumps(missing)
    assert submitted["result"]["structured_content"] == {"result": "submitted"}
    assert "reward" not in json.dumps(submitted)
    assert "tests" not in json.dumps(submitted)


@pytest.mark.slow
def test_session_without_an_id_frees_its_sandbox_when_it_leaves(tmp_path: Path) -> None:
    """One sandbox at a time: the second session would wait for ever."""
    with serving(tmp_path / "run", ["run.concurrency=1"], interactive=True, split="train") as server:
        exchange(server.url, reset(index=0), shell("true"))
        last = exchange(server.url, reset(index=0), shell("true"), SUBMIT)
        assert last[-1]["data"]["done"] is True
        outcomes = sorted(server.outcomes.values())
    assert outcomes == ["cancelled", "unresolved"]
    cancelled = {rollout.cancelled_as for rollout in RunDirectory.open(tmp_path / "run").rollouts()}
    assert cancelled == {None, "abandoned"}


@pytest.mark.slow
def test_sandbox_that_does_not_open_is_told(tmp_path: Path) -> None:
    sets = ["limits.open=0.000001"]
    with serving(tmp_path / "run", sets, interactive=True) as server:
        _, answer, last = exchange(server.url, reset(index=0, episode_id="e"), shell("ls"), SUBMIT)
        assert "the episode 'e' has ended: the sandbox did not open" in answer["data"]["message"]
        assert (last["data"]["done"], last["data"]["reward"]) == (True, None)
        assert last["data"]["observation"]["outcome"] == "error"


@pytest.mark.slow
def test_client_that_never_submits_is_bounded(tmp_path: Path) -> None:
    sets = ["limits.agent=1"]
    with serving(tmp_path / "run", sets, interactive=True) as server:
        last = exchange(server.url, reset(index=0), shell("sleep 5"), SUBMIT)[-1]["data"]
    assert (last["done"], last["observation"]["outcome"]) == (True, "error")
    assert "limits.agent" in last["observation"]["reason"]


@pytest.mark.slow
def test_client_that_vanishes_in_an_action_frees_its_sandbox(tmp_path: Path) -> None:
    """One session and one sandbox at a time, which a file that never ends must not hold."""
    sets = ["run.concurrency=1"]
    with serving(tmp_path / "run", sets, interactive=True, sessions=1) as server:
        with connect(server.url.replace("http", "ws") + "/ws") as socket:
            ask(socket, reset(index=0))
            ask(socket, shell("mkfifo pipe"))
            socket.send(json.dumps(step(type="read", path="pipe", timeout_s=3600)))
            socket.socket.shutdown(SHUT_RDWR)
        wait_until(lambda: set(server.outcomes.values()) == {"cancelled"})
        last = exchange(server.url, reset(index=0), SUBMIT)[-1]
        assert last["data"]["done"] is True


def test_file_that_never_ends_is_an_error_in_time(interactive: Served) -> None:
    answers = exchange(
        interactive.url,
        reset(index=0),
        shell("mkfifo pipe"),
        step(type="read", path="pipe", timeout_s=0.5),
        step(type="write", path="pipe", content="x", timeout_s=0.5),
        SUBMIT,
    )
    for answer in answers[2:4]:
        assert "'pipe' in the sandbox was not read or written in 0.5 s" in answer["data"]["message"]
    assert answers[-1]["data"]["done"] is True


def test_refused_reset_keeps_the_episode_and_its_work(interactive: Served) -> None:
    answers = exchange(
        interactive.url,
        reset(index=4),
        step(type="write", path="kept.txt", content="1"),
        reset(episode_id="../x"),
        step(type="run_agent"),
        step(type="read", path="kept.txt"),
    )
    assert answers[2]["type"] == "error"
    assert "it has exec, read, write and submit" in answers[3]["data"]["message"]
    assert answers[4]["data"]["observation"]["output"] == "1"


@pytest.mark.slow
def test_episode_that_its_client_names_again_is_kept(interactive: Served) -> None:
    """The server chose the id, and the client learned it."""
    with connect(interactive.url.replace("http", "ws") + "/ws") as socket:
        name = ask(socket, reset(index=4))["data"]["observation"]["episode_id"]
        ask(socket, step(type="write", path="kept.txt", content="1"))
        assert ask(socket, reset(episode_id=name))["data"]["observation"]["task_id"] == TASKS[4]
    read, last = exchange(
        interactive.url, reset(episode_id=name), step(type="read", path="kept.txt"), SUBMIT
    )[1:]
    assert (read["data"]["observation"]["output"], last["data"]["done"]) == ("1", True)


def test_submit_counts_even_if_the_client_does_not_wait(interactive: Served) -> None:
    name = {"episode_id": "hasty"}
    with httpx.Client(base_url=interactive.url, timeout=60) as http:
        http.post("/reset", json={**name, "index": 0})
        soon = http.post("/step", json={**name, "action": {"type": "submit"}, "timeout_s": 0.001}).json()
        assert soon["observation"]["status"] == "running"
        late = http.post("/step", json={**name, "action": {"type": "exec", "command": "ls"}})
        assert (late.status_code, "has ended" in late.json()["detail"]) == (400, True)
        wait_until(lambda: interactive.outcomes.get("hasty") == "unresolved")


@pytest.mark.slow
def test_sandbox_that_fails_at_the_export_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry would grade an empty sandbox: the client's work is in the one that failed."""

    async def failing(*args: object, **more: object) -> bytes:
        raise SandboxError("the export failed")

    monkeypatch.setattr("swe_core.rollout.loop.export_change", failing)
    sets = ["run.sandbox_retries=1"]
    with serving(tmp_path / "run", sets, interactive=True) as server:
        last = exchange(server.url, reset(index=0), GOLD, SUBMIT)[-1]["data"]
    assert (last["done"], last["reward"], last["observation"]["outcome"]) == (True, None, "error")


@pytest.mark.slow
def test_abandoned_episode_never_gets_its_turn(tmp_path: Path) -> None:
    """Its client leaves while another holds the only sandbox."""
    sets = ["run.concurrency=1"]
    with serving(tmp_path / "run", sets, interactive=True) as server:
        with server.client().sync() as holder:
            holder.reset(index=0, episode_id="holder")
            holder.step({"type": "exec", "command": "true"})
            with connect(server.url.replace("http", "ws") + "/ws") as socket:
                ask(socket, reset(index=1))
                socket.send(json.dumps(shell("true")))
                socket.socket.shutdown(SHUT_RDWR)
            assert holder.step({"type": "submit"}).done
        last = exchange(server.url, reset(index=2), SUBMIT)[-1]
        assert last["data"]["done"] is True
        assert list(server.outcomes.values()) == ["unresolved", "unresolved"]


def test_text_that_no_program_takes_is_refused(interactive: Served) -> None:
    exec_, read = {"type": "exec"}, {"type": "read"}
    for action in ({**exec_, "command": "a\0b"}, {**exec_, "command": "\ud800"}, {**read, "path": "\ud800"}):
        body = json.dumps({"action": action, "episode_id": "any"})
        answer = httpx.post(f"{interactive.url}/step", content=body, headers=JSON)
        assert answer.status_code in (400, 422), answer.text
