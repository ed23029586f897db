"""The environment server, asked by OpenEnv's own client over real sockets."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from swe_core.builtin.demo.source import DemoSource
from swe_core.errors import ConfigError
from swe_core.rollout.run_directory import RunDirectory
from swe_openenv.config import ServerConfig
from swe_openenv.server.app import make_app
from swe_openenv.server.worker import OpenEnvWorker

from .serving import Served, serving, wait_until

TASKS = [task.instance_id for task in DemoSource().tasks()]
RUN = {"type": "run_agent"}
JSON = {"Content-Type": "application/json"}


def ask(socket: ClientConnection, message: Any) -> dict[str, Any]:
    socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    answer: dict[str, Any] = json.loads(socket.recv())
    return answer


def exchange(url: str, *messages: Any) -> list[dict[str, Any]]:
    """What the server answers to each message of one connection."""
    with connect(url.replace("http", "ws") + "/ws", max_size=None) as socket:
        return [ask(socket, message) for message in messages]


def reset(**data: Any) -> dict[str, Any]:
    return {"type": "reset", "data": data}


def step(**data: Any) -> dict[str, Any]:
    return {"type": "step", "data": data}


@pytest.mark.slow
def test_episode_is_run_graded_and_recorded(served: Served) -> None:
    with served.client().sync() as env:
        first = env.reset(split="train", index=1, episode_id="whole")
        assert (first.done, first.reward, first.observation["status"]) == (False, None, "ready")
        assert first.observation["task_id"] == TASKS[1]
        assert "/testbed" in first.observation["prompt"]
        last = env.step(RUN)
        assert (last.done, last.reward, last.observation["outcome"]) == (True, 1.0, "resolved")
        assert set(last.observation["tests"]["fail_to_pass"].values()) == {"PASSED"}
        state = env.state()
    run = RunDirectory.open(served.out)
    (rollout,) = [rollout for rollout in run.rollouts() if rollout.id == "whole"]
    assert last.observation["patch"].encode() == run.patch("whole")
    assert (last.observation["seconds"], rollout.reward) == (rollout.seconds, 1.0)
    assert Path(last.observation["records"], "grade.json").exists()
    assert (state["episode_id"], state["step_count"], state["status"]) == ("whole", 1, "finished")


def test_reset_chooses_the_task(served: Served) -> None:
    chosen: dict[str, dict[str, Any]] = {
        TASKS[2]: {"task_id": TASKS[2]},
        TASKS[3]: {"seed": len(TASKS) + 3},
        TASKS[4]: {"index": 4, "seed": 1},
        TASKS[0]: {"split": "train", "index": 0},
    }
    *found, free = exchange(served.url, *(reset(**how) for how in chosen.values()), reset())
    assert [answer["data"]["observation"]["task_id"] for answer in found] == list(chosen)
    assert free["data"]["observation"]["task_id"] in TASKS


def test_second_reset_finds_the_episode(served: Served) -> None:
    one = exchange(served.url, reset(episode_id="again", index=0), step(**RUN))[-1]
    two = exchange(served.url, reset(episode_id="again", seed=5), step(**RUN))
    assert two[0]["data"]["done"] is True
    assert two[0]["data"]["observation"]["patch"] == one["data"]["observation"]["patch"]
    assert two[1]["data"]["code"] == "EXECUTION_ERROR", "an action after the end"
    assert "'again' has ended: reset with another episode_id" in two[1]["data"]["message"]
    other = exchange(served.url, reset(episode_id="again", index=1))[0]
    assert f"is of the task {TASKS[0]!r}, not of {TASKS[1]!r}" in other["data"]["message"]


WRONG = [
    (reset(split="nope"), "there is no split 'nope': the only split is 'train'"),
    (reset(index=6), "the index 6 is out of range: the split 'train' has 6 tasks"),
    (reset(index=-1), "the index -1 is out of range"),
    (reset(index="1"), "the index is '1', expected an integer"),
    (reset(seed="x"), "the seed is 'x', expected an integer"),
    (reset(task_id="nope"), "there is no task 'nope'"),
    (reset(task_id=["a"]), "there is no task ['a']"),
    (reset(task_id=TASKS[0], index=0), "send one of them"),
    (reset(taks_id="x"), "reset takes no 'taks_id'"),
    (reset(episode_id="../up"), "the episode_id '../up' is not usable"),
    (reset(episode_id=""), "the episode_id '' is not usable"),
    (reset(episode_id=7), "the episode_id 7 is not usable"),
    (step(**RUN), "there is no episode: reset first"),
]


def test_wrong_message_is_one_sentence_and_the_session_goes_on(served: Served) -> None:
    *answers, after = exchange(served.url, *(message for message, _ in WRONG), reset(index=0))
    for answer, (_, says) in zip(answers, WRONG, strict=True):
        assert (answer["type"], answer["data"]["code"]) == ("error", "EXECUTION_ERROR")
        assert says in answer["data"]["message"]
    assert after["type"] == "observation"


INVALID = [
    ("{", "INVALID_JSON"),
    ({"type": "jump"}, "UNKNOWN_TYPE"),
    (step(type="jump"), "VALIDATION_ERROR"),
    (step(type="exec"), "VALIDATION_ERROR"),
    (step(sandbox_image="mine"), "VALIDATION_ERROR"),
    ({"type": "step"}, "VALIDATION_ERROR"),
    ({"type": "reset", "version": 9}, "VALIDATION_ERROR"),
]


def test_invalid_message_has_the_code_of_openenv(served: Served) -> None:
    *answers, after = exchange(served.url, *(message for message, _ in INVALID), reset(index=0))
    assert [answer["data"]["code"] for answer in answers] == [code for _, code in INVALID]
    assert after["type"] == "observation"


@pytest.mark.slow
def test_huge_message_closes_its_own_session_only(served: Served) -> None:
    with connect(served.url.replace("http", "ws") + "/ws") as socket:
        socket.send(json.dumps(reset(episode_id="e" * 100_000_000)))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv()
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    assert exchange(served.url, reset(index=0))[0]["type"] == "observation"


def test_interactive_actions_are_refused_where_an_agent_works(served: Served) -> None:
    answer = exchange(served.url, reset(index=0), step(type="exec", command="ls"))[-1]
    assert "this server has no action 'exec': it has run_agent" in answer["data"]["message"]


def test_task_api_lists_what_an_agent_may_see(served: Served) -> None:
    with httpx.Client(base_url=served.url) as http:
        assert http.get("/list_environments").json() == ["swe"]
        assert http.get("/swe/splits").json() == [{"name": "train", "type": "train"}]
        assert http.post("/swe/num_tasks", json={"split": "train"}).json() == {"num_tasks": 6}
        tasks = http.post("/swe/tasks", json={"split": "train"}).json()["tasks"]
        assert [task["id"] for task in tasks] == TASKS
        part = http.post("/swe/task_range", json={"split": "train", "start": 2, "stop": 4}).json()["tasks"]
        assert part == tasks[2:4]
        one = http.post("/swe/task", json={"split": "train", "index": 5}).json()["task"]
        assert one == tasks[5]
        shown = {"id", "index", "split", "repo", "base_commit", "problem_statement", "workdir"}
        assert one.keys() == shown, "neither the patch nor the tests"
        wrong = http.post("/swe/num_tasks", json={"split": "nope"})
        assert (wrong.status_code, wrong.json()["detail"][:25]) == (400, "there is no split 'nope':")
        assert http.post("/swe/task", json={"split": "train", "index": 6}).status_code == 400


def test_http_client_without_a_session_names_its_episode(served: Served) -> None:
    """A step that runs out of time says that the episode goes on."""
    with httpx.Client(base_url=served.url, timeout=60) as http:
        http.post("/reset", json={"episode_id": "by-http", "index": 0}).raise_for_status()
        done = http.post("/step", json={"action": RUN, "episode_id": "by-http"}).json()
        assert (done["done"], done["reward"]) == (True, 1.0)
        refused = http.post("/step", json={"action": RUN})
        assert (refused.status_code, refused.json()) == (400, {"detail": "there is no episode: reset first"})
        assert http.get("/metadata").json()["name"] == "swe"
        assert http.get("/state").status_code == 200
        http.post("/reset", json={"episode_id": "slow", "index": 0})
        soon = http.post("/step", json={"action": RUN, "episode_id": "slow", "timeout_s": 0.001}).json()
        assert (soon["done"], soon["observation"]["status"]) == (False, "running")
        last = http.post("/step", json={"action": RUN, "episode_id": "slow"}).json()
        assert (last["done"], last["reward"]) == (True, 1.0)


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def call(url: str, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """What the tools of one session answer."""
    asked = [rpc("tools/call", name=name, arguments=arguments) for name, arguments in calls]
    answers = exchange(url, reset(index=0), *({"type": "mcp", "data": one} for one in asked))
    return [answer["data"] for answer in answers[1:]]


def test_tools_run_a_rollout_and_describe_the_server(served: Served) -> None:
    capable, listed, ran, wrong = call(
        served.url,
        ("capabilities", {}),
        ("list_tasks", {"start": 1, "stop": 2}),
        ("run_rollout", {"task_id": TASKS[0]}),
        ("run_rollout", {"task_id": "nope"}),
    )
    told = capable["result"]["structured_content"]
    assert (told["agent"], told["interactive"], told["tasks"]) == ("oracle", False, 6)
    assert [task["id"] for task in listed["result"]["structured_content"]["result"]] == [TASKS[1]]
    assert ran["result"]["structured_content"]["reward"] == 1.0
    assert "there is no task 'nope'" in json.dumps(wrong)
    with httpx.Client(base_url=served.url) as http:
        tools = http.post("/mcp", json=rpc("tools/list")).json()
    names = {tool["name"] for tool in tools["result"]["tools"]}
    assert names == {"run_rollout", "list_tasks", "capabilities"}
    schema = json.dumps(tools)
    assert "image" not in schema
    assert "key" not in schema


@pytest.mark.slow
def test_capacity_reached_is_told_as_openenv_does(tmp_path: Path) -> None:
    with serving(tmp_path / "run", sessions=2) as server:
        with server.client().sync() as one, server.client().sync() as two:
            one.reset(index=0)
            two.reset(index=0)
            with connect(server.url.replace("http", "ws") + "/ws") as socket:
                refused = json.loads(socket.recv())
        assert refused["data"]["code"] == "CAPACITY_REACHED"
        assert exchange(server.url, reset(index=0))[0]["type"] == "observation"


@pytest.mark.slow
def test_key_is_asked_of_all_but_the_health_check(tmp_path: Path) -> None:
    with serving(tmp_path / "run", key="a-long-secret-key") as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "a-long-secret-key"}):
            refused = httpx.get(f"{server.url}/metadata", headers=headers)
            assert refused.status_code == 401
            assert "a-long-secret-key" not in refused.text
        with pytest.raises(InvalidStatus) as closed:
            connect(server.url.replace("http", "ws") + "/ws").close()
        assert closed.value.response.status_code == 403
        with server.client(headers={"Authorization": "Bearer a-long-secret-key"}).sync() as env:
            assert env.reset(index=0).observation["status"] == "ready"


@pytest.mark.slow
def test_client_that_vanishes_loses_nothing(served: Served) -> None:
    """It is gone while its agent runs; the rollout ends on the host, and another client finds it."""
    with connect(served.url.replace("http", "ws") + "/ws") as socket:
        ask(socket, reset(episode_id="lonely", index=3))
        socket.send(json.dumps(step(**RUN)))
        wait_until((served.out / "rollouts" / "lonely").exists)
        socket.socket.shutdown(SHUT_RDWR)  # no farewell
    wait_until(lambda: served.outcomes.get("lonely") == "resolved")
    again = exchange(served.url, reset(episode_id="lonely"))[0]["data"]
    assert (again["done"], again["reward"]) == (True, 1.0)


@pytest.mark.slow
def test_server_that_starts_again_answers_for_finished_episodes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with serving(out) as server:
        before = exchange(server.url, reset(episode_id="kept", index=2), step(**RUN))[-1]
    with serving(out, split="other") as server:
        (after,) = exchange(server.url, reset(episode_id="kept"))
        assert after["data"]["done"] is True
        for name in ("reward", "outcome", "patch", "tests", "seconds"):
            one, two = ({**answer["data"], **answer["data"]["observation"]} for answer in (before, after))
            assert one.get(name) == two.get(name)


@pytest.mark.slow
def test_web_interface_plays_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls the environment from a thread."""
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", "true")
    with serving(tmp_path / "run") as server, httpx.Client(timeout=60) as http:
        assert http.get(f"{server.url}/web/").status_code == 200
        http.post(f"{server.url}/web/reset", json={"index": 0}).raise_for_status()
        last = http.post(f"{server.url}/web/step", json={"action": RUN}).json()
    assert (last["done"], last["reward"]) == (True, 1.0)


FRAMES = [
    ("[1]", "VALIDATION_ERROR", "a message is a JSON object"),
    (b"{}", "INVALID_JSON", "this one is binary"),
    ("[" * 100_000, "INVALID_JSON", "cannot be read"),
    ('{"type": "reset", "data": {"seed": ' + "1" * 5001 + "}}", "INVALID_JSON", "cannot be read"),
    ('{"type": "reset", "data": {"episode_id": "\\ud800"}}', "INVALID_JSON", "is not valid Unicode"),
    ('{"type": "reset", "data": {"seed": NaN}}', "EXECUTION_ERROR", "the seed is nan"),
    ('{"type": "reset", "data": {"self": 1}}', "EXECUTION_ERROR", "reset takes no 'self'"),
]


def test_frame_that_openenv_does_not_survive_is_answered(served: Served) -> None:
    *answers, after = exchange(served.url, *(frame for frame, *_ in FRAMES), reset(index=0))
    for answer, (_, code, says) in zip(answers, FRAMES, strict=True):
        assert (answer["data"]["code"], says in answer["data"]["message"]) == (code, True)
    assert after["type"] == "observation"


def test_client_that_sends_far_ahead_is_closed(served: Served) -> None:
    with connect(served.url.replace("http", "ws") + "/ws") as socket:
        socket.send(json.dumps(reset(index=0)))

        def talk() -> None:
            for _ in range(50):  # the server may close before the last is sent
                socket.send(json.dumps(step(**RUN)))
            list(iter(socket.recv, None))

        with pytest.raises(ConnectionClosed) as closed:
            talk()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason[:14]) == (1008, "send a message")


def test_http_request_with_bad_values_is_refused(served: Served) -> None:
    for path, body in (
        ("/reset", '{"seed": NaN}'),
        ("/step", '{"action": {}, "timeout_s": Infinity}'),
        ("/swe/task", '{"split": "train", "index": NaN}'),
        ("/reset", '{"episode_id": "\\ud800"}'),
        ("/reset", '{"self": 1}'),
        ("/step", '{"action": {"type": "jump"}}'),
    ):
        answer = httpx.post(f"{served.url}{path}", content=body, headers=JSON)
        assert answer.status_code in (400, 422), answer.text
        assert "detail" in answer.json()
        assert "Traceback" not in answer.text
    answer = httpx.post(f"{served.url}/reset", json={"episode_id": "e" * 1_000_000})
    assert answer.status_code == 422
    assert len(answer.content) < 1000


@pytest.mark.slow
def test_tool_answers_its_own_rollout_and_keeps_the_episode(served: Served) -> None:
    """Several calls of one session at once."""
    made = httpx.post(f"{served.url}/mcp", json=rpc("openenv/session/create"))
    session = made.json()["result"]["session_id"]

    def ask(index: int) -> Any:
        chosen = {"index": index, "episode_id": f"parallel{index}"}
        body = rpc("tools/call", name="run_rollout", arguments=chosen, session_id=session)
        return httpx.post(f"{served.url}/mcp", json=body, timeout=60).json()

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(ask, range(4)))
    found = [answer["result"]["structured_content"] for answer in answers]
    assert [one["episode_id"] for one in found] == [f"parallel{index}" for index in range(4)]
    assert [one["task_id"] for one in found] == TASKS[:4]
    assert {one["reward"] for one in found} == {1.0}


@pytest.mark.slow
def test_id_without_a_task_has_the_same_task_after_a_restart(tmp_path: Path) -> None:
    names = [f"e{number}" for number in range(8)]
    found = []
    for _ in range(2):
        with serving(tmp_path / "run") as server:
            answers = exchange(server.url, *(reset(episode_id=name) for name in names))
            found.append([answer["data"]["observation"]["task_id"] for answer in answers])
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@pytest.mark.slow
def test_cancelled_episode_stays_cancelled_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path / "run", interactive=True) as server:
        exchange(server.url, reset(episode_id="gone", index=0), step(type="exec", command="true"))
        httpx.delete(f"{server.url}/sessions/gone").raise_for_status()
        wait_until(lambda: server.outcomes.get("gone"))
    with serving(tmp_path / "run", interactive=True) as server:
        (after,) = exchange(server.url, reset(episode_id="gone"))
        assert (after["data"]["done"], after["data"]["observation"]["reason"]) == (True, "stopped")


def test_wrong_mode_of_openenv_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_MODE", "foo")
    with pytest.raises(ConfigError, match="OPENENV_MODE is 'foo': set it to"):
        make_app(None, ServerConfig())  # type: ignore[arg-type]  # it never gets so far


def test_key_that_no_header_carries_is_refused_and_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "two words")
    with pytest.raises(ConfigError, match="cannot carry: set another") as refused:
        OpenEnvWorker(ServerConfig(key_env="THE_KEY"))
    assert "two words" not in str(refused.value)
