"""The tasks `openenv`: a real server's, and what bad servers say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from swe_core.errors import ConfigError, TaskError
from swe_openenv.play import source as module
from swe_openenv.play.address import Address
from swe_openenv.play.config import PlayTasksConfig
from swe_openenv.play.source import PlaySource

from .playground import Played, demo_tasks, serving

Answer = Callable[[str, dict[str, Any]], tuple[int, bytes]]


def source(url: str, **settings: Any) -> PlaySource:
    return PlaySource(PlayTasksConfig(url=url, timeout=20, **settings))


def refusal(url: str, **settings: Any) -> str:
    """What reading the tasks raises: one line."""
    with pytest.raises(TaskError) as caught:
        source(url, **settings).tasks()
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 600
    return said


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Serve these answers: path and JSON body to status and body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = (await receive()).get("body") or b"{}"
        status, said = answer(scope["path"], json.loads(body))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": said})

    with serving(app) as url:
        yield url


def bench(specs: list[Any], **other: Any) -> Answer:
    """A small server: its only split has `specs`; `other` replaces answers by the end of their path."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        found: dict[str, Any] = {
            "list_environments": ["bench"],
            "splits": [{"name": "all", "type": "test"}],
            "num_tasks": {"num_tasks": len(specs)},
            "task_range": {"tasks": specs[body.get("start", 0) : body.get("stop")]},
            **other,
        }
        said = found[path.rpartition("/")[2]]
        return said if isinstance(said, tuple) else (200, json.dumps(said).encode())

    return answer


def test_tasks_of_a_server(played: Played) -> None:
    found = list(source(played.url).tasks())  # its splits are train and test
    assert [task.instance_id for task in found] == [task.instance_id for task in demo_tasks()]
    first, known = found[0], demo_tasks()[0]
    assert first.problem_statement == known.problem_statement
    assert first.image is not None
    assert Address.parse(first.image) == Address(played.url, "test", 0)
    assert (first.base_commit, first.fail_to_pass, first.workdir) == ("HEAD", ("reward",), "/testbed")


def test_many_tasks_come_in_pages(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    stream = httpx.Client.stream

    def counted(client: httpx.Client, method: str, url: str, **more: Any) -> Any:
        paths.append(url.rpartition("/")[2])
        return stream(client, method, url, **more)

    monkeypatch.setattr(httpx.Client, "stream", counted)
    found = list(source(played.url, split="train").tasks())
    assert [task.instance_id for task in found] == [f"many-{number}" for number in range(250)]
    assert found[249].image == f"{played.url}/train/249"
    assert paths == ["list_environments", "splits", "num_tasks", *["task_range"] * 3]


@pytest.mark.parametrize(
    ("spec", "name", "statement"),
    [
        ("Fix it.", "bench-all-0", "Fix it."),
        ({"question": "Why?", "task_id": 7}, "7", "Why?"),
        ({"prompt": "", "goal": "Go.", "id": "a/b c:☃d"}, "a-b-c-d", "Go."),
        ({"instruction": "Do.", "id": "..//.."}, "task-0", "Do."),
        ({"instruction": "Do.", "id": "x" * 500}, "x" * 200, "Do."),
    ],
)
def test_specs_of_many_shapes(spec: Any, name: str, statement: str) -> None:
    with answering(bench([spec])) as url:
        (task,) = source(url).tasks()
    assert (task.instance_id, task.problem_statement) == (name, statement)


def test_spec_may_know_more() -> None:
    spec = {
        "prompt": "Do.",
        "workdir": "/repo",
        "base_commit": "a" * 40,
        "repo": "acme/bolt",
        "patch": "diff",
    }
    with answering(bench([spec])) as url:
        (task,) = source(url, workdir="/elsewhere").tasks()
    assert (task.workdir, task.base_commit, task.repo, task.patch) == ("/repo", "a" * 40, "acme/bolt", "diff")


@pytest.mark.parametrize(
    ("answer", "settings", "said"),
    [
        (bench([], list_environments=["one", "two"]), {}, "env_name"),
        (bench([]), {"env_name": "other"}, "'bench'"),
        (bench([]), {"split": "other"}, "'all'"),
        (bench([], splits=["dev", "extra"]), {}, "--split"),
        (bench([], splits=["odd/name"]), {}, "cannot be addressed"),
        (bench([], splits=[]), {}, "a list of splits"),
        (bench([], splits={"train": 1}), {}, "a list of splits"),
        (bench([], splits=(501, b'{"detail":"list_splits is not supported"}')), {}, "no Task API"),
        (bench([], list_environments=(404, b"<html>")), {}, "no Task API"),
        (bench([], list_environments=(500, b"<b>oh\n\x1b[31mno</b>")), {}, "500: <b>oh no</b>"),
        (bench([], list_environments=(200, b"<html>hello</html>")), {}, "expected JSON"),
        (bench([], list_environments=(200, b"[" * 100_000)), {}, "expected JSON"),
        (bench([], list_environments={"a": 1}), {}, "a list of names"),
        (bench([], num_tasks={"num_tasks": "many"}), {}, '{"num_tasks": 3}'),
        (bench([], num_tasks={"num_tasks": 10**9}), {}, "expected 100 tasks"),
        (bench(["a"], task_range={"tasks": ["a", "b"]}), {}, "expected 1 tasks"),
        (bench([7]), {}, "expected an object or a text"),
        (bench([{"id": "a", "prompt": " "}]), {}, "problem_statement, instruction, prompt"),
        (
            bench([{"id": "a b", "prompt": "x"}, {"id": "a-b", "prompt": "y"}]),
            {},
            "two tasks with the id 'a-b'",
        ),
    ],
)
def test_bad_servers_are_named(answer: Answer, settings: dict[str, str], said: str) -> None:
    with answering(answer) as url:
        refused = refusal(url, **settings)
    assert said in refused
    assert url in refused


def test_huge_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER", 1000)
    with answering(bench([], list_environments=(200, b" " * 5000))) as url:
        assert "more than 1000 bytes" in refusal(url)


def test_absent_server_is_named() -> None:
    with answering(bench([])) as url:
        pass
    assert "check that it runs" in refusal(url)


def test_settings_need_a_server() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.openenv\.url"):
        PlaySource(PlayTasksConfig())


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://u:p@host", "http://host:abc", "http://a..b", "http://host\n"]
)
def test_wrong_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        PlayTasksConfig(url=url)


@pytest.mark.parametrize(
    "text", ["python:3.12", "http://host", "http://host/test", "http://host/test/x", "/a/0"]
)
def test_images_are_no_addresses(text: str) -> None:
    assert Address.parse(text) is None
