"""PlaySource: the tasks of an OpenEnv server, read through its Task API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from swe_core.api.task import Task
from swe_core.errors import ConfigError, TaskError
from swe_core.system.printable import one_line
from swe_openenv.play.address import SPLIT, Address
from swe_openenv.play.config import PlayTasksConfig

PAGE = 100
"""Tasks of one request."""
MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of the largest answer."""
STATEMENTS = (
    *("problem_statement", "instruction", "prompt", "question"),
    *("description", "issue", "goal", "task"),
)
"""Fields of a task that may hold its text; the first one that does counts."""
IDS = ("instance_id", "task_id", "id", "name")
"""Fields that may hold its id; without one, it is made of environment, split and index."""
VERDICT = "reward"
"""The one test id of such a task."""

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_NOT_IMPLEMENTED, _NOT_FOUND, _OK = 501, 404, 200


class PlaySource:
    """The tasks of one split of one environment.

    Raises:
        ConfigError: The settings name no server.
    """

    recording: Path | None = None

    def __init__(self, config: PlayTasksConfig) -> None:
        if config.url is None:
            raise ConfigError(
                "the tasks 'openenv' need the address of an OpenEnv server: "
                "pass --set tasks.openenv.url=http://HOST:PORT"
            )
        self._config = config
        self._url = config.url

    def tasks(self) -> Iterator[Task]:
        """Return the tasks in the server's order, after reading all.

        Raises:
            TaskError: The server does not answer, has no Task API, or a task has no text.
        """
        with httpx.Client(timeout=self._config.timeout, follow_redirects=True) as client:
            api = _TaskApi(client, self._url)
            env = self._environment(api)
            split = self._split(api, env)
            specs = api.specs(env, split)
        tasks: dict[str, Task] = {}
        for index, spec in enumerate(specs):
            task = self._task(env, split, index, spec)
            if task.instance_id in tasks:
                raise TaskError(
                    f"the OpenEnv server {self._url!r} has two tasks with the id {task.instance_id!r} in the "
                    f"split {split!r}; every task needs an id of its own"
                )
            tasks[task.instance_id] = task
        return iter(tasks.values())

    def _environment(self, api: _TaskApi) -> str:
        names = api.environments()
        wanted = self._config.env_name
        if wanted is not None:
            if wanted not in names:
                raise TaskError(
                    f"the OpenEnv server {self._url!r} has no environment {wanted!r} "
                    f"(tasks.openenv.env_name); there are: {_enumerated(names)}"
                )
            return wanted
        if len(names) != 1:
            raise TaskError(
                f"the OpenEnv server {self._url!r} has {len(names)} environments ({_enumerated(names)}): "
                "choose one with --set tasks.openenv.env_name=NAME"
            )
        return names[0]

    def _split(self, api: _TaskApi, env: str) -> str:
        names = api.splits(env)
        wanted = self._config.split
        if wanted is not None and wanted not in names:
            raise TaskError(
                f"the environment {env!r} of {self._url!r} has no split {wanted!r}; there are: "
                f"{_enumerated(names)}"
            )
        likely = [name for name in ("test", "train") if name in names]
        found = wanted or (names[0] if len(names) == 1 else next(iter(likely), None))
        if found is None:
            raise TaskError(
                f"the environment {env!r} of {self._url!r} has the splits {_enumerated(names)}: choose one "
                "with --split NAME"
            )
        if not Address(self._url, found, 0).fits_image or not SPLIT.fullmatch(found):
            raise TaskError(
                f"the split {found!r} of {self._url!r} cannot be addressed: its name and the server's URL "
                "may have letters, digits and . _ - only"
            )
        return found

    def _task(self, env: str, split: str, index: int, spec: Any) -> Task:
        place = f"the task {index} of the split {split!r} of {self._url!r}"
        if isinstance(spec, str):
            spec = {"problem_statement": spec}
        if not isinstance(spec, Mapping):
            raise TaskError(f"{place} is {type(spec).__name__}, expected an object or a text")
        statement = _first(spec, STATEMENTS)
        if statement is None:
            raise TaskError(f"{place} has no text for an agent: expected one of {', '.join(STATEMENTS)}")
        name = _first(spec, IDS) or f"{env}-{split}-{index}"
        try:
            return Task(
                instance_id=_ODD.sub("-", name).strip("-._")[:200] or f"task-{index}",
                repo=_first(spec, ("repo",)) or env,
                base_commit=_first(spec, ("base_commit",)) or "HEAD",
                problem_statement=statement,
                patch=_first(spec, ("patch",)) or "",
                test_patch="",
                fail_to_pass=(VERDICT,),
                pass_to_pass=(),
                image=str(Address(self._url, split, index)),
                workdir=_first(spec, ("workdir",)) or self._config.workdir,
                test_command="true",
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise TaskError(f"{place}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


class _TaskApi:
    """The requests of the Task API. Each raises `TaskError`."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self._url = url

    def environments(self) -> list[str]:
        names = self._ask("GET", "/list_environments")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise self._wrong("/list_environments", names, "a list of names")
        return names

    def splits(self, env: str) -> list[str]:
        path = f"/{quote(env, safe='')}/splits"
        found = self._ask("GET", path)
        names = [split.get("name") if isinstance(split, dict) else split for split in _listed(found)]
        if not names or not all(isinstance(name, str) for name in names):
            raise self._wrong(path, found, "a list of splits with names")
        return [str(name) for name in names]

    def specs(self, env: str, split: str) -> list[Any]:
        """Return the tasks of a split, page by page."""
        path = f"/{quote(env, safe='')}/num_tasks"
        answer = self._ask("POST", path, {"split": split})
        count = answer.get("num_tasks") if isinstance(answer, dict) else None
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise self._wrong(path, answer, 'such as {"num_tasks": 3}')
        specs: list[Any] = []
        path = f"/{quote(env, safe='')}/task_range"
        while len(specs) < count:
            start, stop = len(specs), min(len(specs) + PAGE, count)
            answer = self._ask("POST", path, {"split": split, "start": start, "stop": stop})
            page = answer.get("tasks") if isinstance(answer, dict) else None
            if not isinstance(page, list) or len(page) != stop - start:
                raise self._wrong(path, answer, f"{stop - start} tasks")
            specs += page
        return specs

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        try:
            with self._client.stream(method, self._url + path, json=body) as response:
                data = bytearray()
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > MAX_ANSWER:
                        raise TaskError(
                            f"the OpenEnv server {self._url!r} answered {path} with more than {MAX_ANSWER} "
                            "bytes"
                        )
        except httpx.HTTPError as error:
            said = one_line(f"{type(error).__name__} {error}".rstrip())
            raise TaskError(
                f"the OpenEnv server {self._url!r} does not answer {path}: {said}; check that it runs and "
                "that tasks.openenv.url leads to it"
            ) from None
        text = bytes(data).decode(errors="replace")
        if response.status_code in (_NOT_IMPLEMENTED, _NOT_FOUND):
            raise TaskError(
                f"the OpenEnv server {self._url!r} has no Task API ({path}: {response.status_code}), so it "
                "lists no tasks: use one whose environment has list_splits, num_tasks and get_task_range"
            )
        if response.status_code != _OK:
            raise TaskError(
                f"the OpenEnv server {self._url!r} answered {path} with {response.status_code}: "
                f"{one_line(text)}"
            )
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise self._wrong(path, text, "JSON") from None

    def _wrong(self, path: str, answer: object, expected: str) -> TaskError:
        return TaskError(
            f"the OpenEnv server {self._url!r} answered {path} with {one_line(repr(answer), 200)}, "
            f"expected {expected}: is it an OpenEnv server?"
        )


def _listed(found: object) -> Sequence[Any]:
    return found if isinstance(found, list) else ()


def _first(spec: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first of these fields that holds text; an id may be a number."""
    for name in names:
        value = spec.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and name in IDS:
            value = str(value)
        if isinstance(value, str) and value.strip():
            return value
    return None


def _enumerated(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"
