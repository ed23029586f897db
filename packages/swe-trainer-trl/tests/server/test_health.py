"""What ends a weight sync that waits for a server which will never answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import NoReturn

import anyio
import httpx
import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from swe_core.errors import EngineUnavailable
from swe_testing.loopback import LoopbackServer
from swe_trainer_trl.server import health
from swe_trainer_trl.server.health import not_left_paused, watched

NOWHERE = "http://127.0.0.1:9"


class Stuck(LoopbackServer):
    """Answers `/pause` on request, and `/health` with the set status."""

    def __init__(self) -> None:
        super().__init__()
        self.health = 200
        self.looks = 0
        self.enough = 10**6
        self.go_on = anyio.Event()
        self.resumed = 0

    def routes(self) -> Iterable[web.RouteDef]:
        get = web.get("/pause", self._pause), web.get("/health", self._health)
        return [*get, web.post("/resume", self._resume)]

    async def _pause(self, request: web.Request) -> web.Response:
        await self.go_on.wait()
        return web.Response()

    async def _resume(self, request: web.Request) -> web.Response:
        self.resumed += 1
        return web.Response()

    async def _health(self, request: web.Request) -> web.Response:
        self.looks += 1
        if self.looks >= self.enough:
            self.go_on.set()
        return web.Response(status=self.health)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    monkeypatch.setattr(health, "_EVERY", 0.02)
    stuck = Stuck()
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(stuck):
        yield stuck
        portal.call(stuck.go_on.set)
    for thread in threading.enumerate():
        if thread.name == "swe-watch":
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("others", [(), (NOWHERE,)])
def test_dead_server_ends_the_wait(server: Stuck, others: tuple[str, ...]) -> None:
    server.health = 200 if others else 503
    says = f"'{NOWHERE}' died while it was given" if others else f"'{server.origin}' died .*503.* --resume"
    with pytest.raises(EngineUnavailable, match=says), watched(server.origin, *others):
        httpx.get(f"{server.origin}/pause", timeout=None)
    assert others or server.looks == 3


@pytest.mark.parametrize("status", [200, 500])
def test_live_server_has_no_deadline(server: Stuck, status: int) -> None:
    server.health, server.enough = status, 6
    with watched(server.origin):
        assert httpx.get(f"{server.origin}/pause", timeout=None).is_success


def test_who_is_dead(server: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine behind its proxy, a process that is missing, and a host that is switched off."""
    for server.health in (502, 504):
        assert health.dead(server.origin) == f"/health says {server.health}"
    assert health.dead(NOWHERE) == "it accepts no connection"

    def get(*arguments: object, **more: object) -> NoReturn:
        raise httpx.ConnectTimeout("nobody answers")

    monkeypatch.setattr(httpx, "get", get)
    assert health.dead("http://h") == "it accepts no connection"


def test_other_errors_are_reported_unchanged(server: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_EVERY", 60.0)
    server.health = 503
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), watched(server.origin):
            raise error
    with watched(server.origin):  # over before the first look
        pass


@pytest.mark.parametrize(("error", "resumed"), [(KeyboardInterrupt, 1), (EngineUnavailable, 1), (None, 0)])
def test_server_is_let_go_on_where_a_sync_is_broken_off(
    server: Stuck, error: type[BaseException] | None, resumed: int
) -> None:
    with pytest.raises(error) if error else nullcontext(), not_left_paused(NOWHERE, server.origin):
        if error:
            raise error
    assert server.resumed == resumed
