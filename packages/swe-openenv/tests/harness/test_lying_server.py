"""Sessions at a server that answers nonsense: nothing of it is trained, and the training ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from swe_core.errors import ConfigError, SweError
from swe_openenv.harness import SweSessionFactory, task_prompts
from swe_openenv.harness.health import TrainingStopped

from ..server.serving import BASIC
from .running import at

CAPABLE = {"interactive": False, "split": "train", "tasks": 1, "sampling": None}


def told(observation: Any, *, done: Any = False, reward: Any = None) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": observation, "done": done, "reward": reward}}


READY = told({"status": "ready"})
END = told({"outcome": "resolved", "ledger": {"trainable": 0}}, done=True, reward=1.0)


@contextmanager
def lying(
    reset: Any = READY, step: Any = END, trace: Any = None, pages: Any = None, capable: Any = CAPABLE
) -> Iterator[str]:
    """A server with these answers; its URL."""

    async def tools(request: Request) -> Response:
        return JSONResponse({"result": {"structured_content": capable}})

    async def entries(request: Request) -> Response:
        return JSONResponse(trace if trace is not None else {"entries": []}, 200 if trace is None else 502)

    async def ended(request: Request) -> Response:
        return JSONResponse({})

    async def names(request: Request) -> Response:
        return JSONResponse(["swe"])

    async def page(request: Request) -> Response:
        return JSONResponse(pages)

    async def play(connection: WebSocket) -> None:
        await connection.accept()
        while (kind := json.loads(await connection.receive_text())["type"]) != "close":
            answer = reset if kind == "reset" else step
            if answer is not None:
                await connection.send_text(json.dumps(answer))
        await connection.close()

    app = Starlette(
        routes=[
            Route("/mcp", tools, methods=["POST"]),
            Route("/list_environments", names),
            Route("/swe/task_range", page, methods=["POST"]),
            Route("/sessions/{id}/trace_entries", entries),
            Route("/sessions/{id}", ended, methods=["DELETE"]),
            WebSocketRoute("/ws", play),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def until_stopped(made: SweSessionFactory) -> list[float | None]:
    """The rewards of rollouts until the training stops, as TRL's worker goes on: at most ten."""
    rewards = []
    for number in range(10):
        try:
            session = made.create("t", seed=0, episode_id=f"e{number}")
        except SweError:
            continue
        try:
            session.wait_for_completion()
            session.fetch_training_trace()
            rewards.append(session.verify([]).env_reward)
        except TrainingStopped:
            return rewards
        finally:
            session.close()
    raise AssertionError("the training goes on for ever")


@pytest.mark.parametrize(
    "answers",
    [
        {"reset": [1]},
        {"reset": told(None)},
        {"reset": told([1])},
        {"reset": {"type": "observation", "data": None}},
        {"step": told({"outcome": "resolved"}, done=True, reward="1.0")},
        {"step": told({"outcome": "resolved"}, done=True, reward=True)},
        {"step": told({"outcome": "resolved"}, done=True, reward=float("nan"))},
        {"step": told({"outcome": "resolved"}, done=False, reward=1.0)},
        {"step": told(None, done=True, reward=1.0)},
        {"trace": "<html>"},
        {"trace": {"no": "entries"}},
    ],
)
def test_nonsense_is_no_reward_and_ends_the_training(answers: Mapping[str, Any]) -> None:
    with lying(**answers) as url, at(url, give_up_after=2, timeout=1) as made:
        assert set(until_stopped(made)) <= {None}


def test_answer_of_several_lines_is_one_sentence() -> None:
    refusal = {"type": "error", "data": {"message": "bad\nthing", "code": "EXECUTION_ERROR"}}
    with lying(reset=refusal) as url, at(url) as made, pytest.raises(SweError, match=r"^bad thing$"):
        made.create("t")


def test_server_that_never_answers_a_reset_is_given_up() -> None:
    """Until then there is no session that TRL could close."""
    with lying(reset=None) as url, at(url, timeout=0.5, give_up_after=2) as made:
        assert set(until_stopped(made)) <= {None}


@pytest.mark.parametrize("pages", [{"tasks": []}, {"tasks": "three"}, {"tasks": [1]}, {"no": "tasks"}, [1]])
def test_nonsense_for_tasks_is_one_sentence(pages: Any) -> None:
    with lying(pages=pages) as url, pytest.raises(ConfigError, match="does not list its tasks as OpenEnv's"):
        task_prompts(url=url)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:1", "ws://a", "http://a:b", "http://[::1", "http://a b", "http://a\n"]
)
def test_url_that_is_none_is_one_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        task_prompts(url=url)


@pytest.mark.parametrize("key", ["sekrit-key\n", "sekrit key", "sékrit"])
def test_key_that_no_header_carries_is_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_TEST_KEY", key)
    with pytest.raises(ConfigError, match="a header cannot carry") as refused:
        task_prompts(url="http://127.0.0.1:1", key_env="SWE_TEST_KEY")
    assert "krit" not in str(refused.value)


def test_sampling_without_a_temperature_is_one_sentence(tmp_path: Any) -> None:
    with pytest.raises(SweError, match=r"has no temperature"):
        SweSessionFactory(sets=BASIC, out=tmp_path / "run", sampling={"top_p": 1.0})


def test_session_of_a_closed_factory_has_no_end_and_raises_nothing() -> None:
    with lying() as url:
        with at(url) as made:
            session = made.create("t")
        assert session.wait_for_completion() == 1
        assert session.verify([]).env_reward is None
