"""Spaces: hardware, secrets and variables, stage and logs. Nothing is really built."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import anyio
import orjson
from aiohttp import web

from swe_testing.hf.accounts import Accounts, Refused
from swe_testing.hf.hardware import HARDWARE
from swe_testing.hf.hub import Hub
from swe_testing.hf.repos import Repo, Space, now

_SPACE = "/api/spaces/{owner}/{name}"
_LOOK = 0.02
"""Seconds between two reads of a followed log."""
_APP_FILES = {"gradio": "app.py", "static": "index.html"}
_ALIVE = ("BUILDING", "RUNNING")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Spaces:
    """The runtime of Spaces. Commits, restarts and changes of settings rebuild a Space.

    A route's name is "spaces." and "runtime", "hardware", "flavors", "secrets", "variables", "sleep",
    "pause", "restart" or "logs".

    Args:
        hub: Their repositories; a test reads and changes `hub.space("tester/NAME")`.

    Attributes:
        build_seconds: Duration of a build.
    """

    def __init__(self, accounts: Accounts, hub: Hub) -> None:
        self._accounts = accounts
        self._hub = hub
        self._built: dict[str, str] = {}
        self.build_seconds = 0.0

    def stage(self, repo: Repo) -> str:
        """Return the stage of a Space; a Space without a build starts one."""
        space = _space(repo)
        if space.paused:
            return "PAUSED"
        if _APP_FILES.get(space.sdk, "Dockerfile") not in repo.files:
            return "NO_APP_FILE"
        if not re.search(rf"^sdk: *{space.sdk} *$", repo.files.get("README.md", b"").decode(), re.MULTILINE):
            return "CONFIG_ERROR"
        if self._built.get(repo.id) != repo.commits[-1].id:
            self._built[repo.id] = repo.commits[-1].id
            self._start(space)
        return (
            "BUILDING"
            if space.ready_at is not None and anyio.current_time() < space.ready_at
            else space.outcome
        )

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        yield web.get("/api/spaces/hardware", self._flavors, name="spaces.flavors")
        yield web.get(f"{_SPACE}/runtime", self._runtime, name="spaces.runtime")
        yield web.post(f"{_SPACE}/hardware", self._hardware, name="spaces.hardware")
        for what in ("secrets", "variables"):
            name = f"spaces.{what}"
            yield web.get(f"{_SPACE}/{what}", self._list, name=name)
            yield web.post(f"{_SPACE}/{what}", self._add, name=name)
            yield web.delete(f"{_SPACE}/{what}", self._remove, name=name)
        yield web.post(f"{_SPACE}/sleeptime", self._sleep, name="spaces.sleep")
        yield web.post(f"{_SPACE}/pause", self._pause, name="spaces.pause")
        yield web.post(f"{_SPACE}/restart", self._restart, name="spaces.restart")
        yield web.get(f"{_SPACE}/logs/{{which:build|run}}", self._logs, name="spaces.logs")

    async def _flavors(self, request: web.Request) -> web.Response:
        return web.json_response([HARDWARE[name] for name in self._hub.hardware])

    async def _runtime(self, request: web.Request) -> web.Response:
        return self._public(self._hub.readable(request, "space"))

    async def _hardware(self, request: web.Request) -> web.Response:
        repo, asked = await self._asked(request)
        self._hub.check_hardware(asked["flavor"])
        space = _space(repo)
        space.hardware = asked["flavor"]
        space.sleep_time = asked.get("sleepTimeSeconds", space.sleep_time)
        return self._started(repo)

    async def _list(self, request: web.Request) -> web.Response:
        repo = self._hub.writable(request, "space")
        return web.json_response(_values(_space(repo), _what(request)))

    async def _add(self, request: web.Request) -> web.Response:
        repo, asked = await self._asked(request)
        if not _KEY.fullmatch(asked["key"]):
            raise Refused(400, f"Invalid key {asked['key']!r}")
        _named(_space(repo), _what(request))[asked["key"]] = asked["value"]
        self._started(repo)
        return web.json_response(_values(_space(repo), _what(request)))

    async def _remove(self, request: web.Request) -> web.Response:
        repo, asked = await self._asked(request)
        _named(_space(repo), _what(request)).pop(asked["key"], None)
        self._started(repo)
        return web.json_response(_values(_space(repo), _what(request)))

    async def _sleep(self, request: web.Request) -> web.Response:
        repo, asked = await self._asked(request)
        _space(repo).sleep_time = asked["seconds"]
        return self._public(repo)

    async def _pause(self, request: web.Request) -> web.Response:
        repo = self._hub.writable(request, "space")
        _space(repo).paused = True
        return self._public(repo)

    async def _restart(self, request: web.Request) -> web.Response:
        repo = self._hub.writable(request, "space")
        _space(repo).paused = False
        return self._started(repo)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        repo = self._hub.writable(request, "space")
        space = _space(repo)
        lines = space.build_log if request.match_info["which"] == "build" else space.run_log
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        while sent < len(lines) or self.stage(repo) in _ALIVE:
            for line in lines[sent:]:
                event = orjson.dumps({"data": f"{line}\n", "timestamp": now()})
                await response.write(b"data: " + event + b"\n\n")
                sent += 1
            await anyio.sleep(_LOOK)
        return response

    async def _asked(self, request: web.Request) -> tuple[Repo, dict[str, Any]]:
        return self._hub.writable(request, "space"), orjson.loads(await request.read())

    def _start(self, space: Space) -> None:
        space.ready_at = anyio.current_time() + self.build_seconds
        space.restarts += 1

    def _started(self, repo: Repo) -> web.Response:
        """Start a Space again that was built before."""
        if repo.id in self._built:
            self._start(_space(repo))
        return self._public(repo)

    def _public(self, repo: Repo) -> web.Response:
        space, stage = _space(repo), self.stage(repo)
        current = space.hardware if stage in _ALIVE else None
        return web.json_response(
            {
                "stage": stage,
                "hardware": {"current": current, "requested": space.hardware},
                "gcTimeout": space.sleep_time,
                "storage": None,
                "replicas": {"requested": 1, "current": int(stage == "RUNNING")},
            }
        )


def _space(repo: Repo) -> Space:
    if repo.space is None:
        raise Refused(404, "Repository not found", "RepoNotFound")
    return repo.space


def _what(request: web.Request) -> str:
    return request.path.rpartition("/")[2]


def _named(space: Space, what: str) -> dict[str, str]:
    return space.secrets if what == "secrets" else space.variables


def _values(space: Space, what: str) -> dict[str, dict[str, str]]:
    """Return secrets or variables as the API shows them: of a secret, its name."""
    if what == "secrets":
        return {name: {"key": name, "updatedAt": now()} for name in space.secrets}
    return {
        name: {"key": name, "value": value, "updatedAt": now()} for name, value in space.variables.items()
    }
