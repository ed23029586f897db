"""The guard of servers: one that dies is noticed, started again or waited for, and gets its weights first."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from swe_core.errors import EngineUnavailable, SweError
from swe_testing import waiting
from swe_testing.ports import held_port
from swe_testing.serving.start import missing
from swe_trainer_trl.config import ServerOptions
from swe_trainer_trl.server.health import ServerLost

from .test_vllm_server import started_as, stub

if TYPE_CHECKING:  # imports torch, which takes seconds
    from swe_trainer_trl.server.recovery import ServerRecovery
    from swe_trainer_trl.server.vllm_server import VLLMServer

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

A, B = "http://a", "http://b"
PATIENCE = 120.0


class Own:
    """A server that the guard restarts; `works` says whether a restart does."""

    def __init__(self, world: World, url: str) -> None:
        self._world = world
        self._url = url
        self.works = True

    def died(self) -> str | None:
        return f"{self._url} ended: out of memory" if self._url in self._world.dead else None

    def start(self) -> None:
        self._world.started.append(self._url)
        if not self.works:
            raise EngineUnavailable(f"{self._url} did not start")
        self._world.dead.discard(self._url)

    def close(self) -> None:
        self._world.closed.append(self._url)


@dataclass
class World:
    """Which servers are dead, and what the guard said and did."""

    dead: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    @contextmanager
    def guarded(self, servers: dict[str, Any], **options: float) -> Iterator[ServerRecovery]:
        from swe_trainer_trl.server.recovery import ServerRecovery

        def told(what: str) -> Callable[[str], None]:
            return lambda url: self.said.append(f"{what} {url}")

        with ServerRecovery(servers, ServerOptions(**options), told("lost"), told("back")) as guard:
            yield guard
        assert [thread.name for thread in threading.enumerate() if thread.name == "swe-guard"] == []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world, module = World(), "swe_trainer_trl.server.recovery"
    monkeypatch.setattr(f"{module}._EVERY", 0.002)
    monkeypatch.setattr(f"{module}.dead", lambda url: "it is gone" if url in world.dead else None)
    return world


until = partial(anyio.run, waiting.until)
"""Wait for what no event tells."""
THEIRS: dict[str, Any] = {A: None, B: None}


def test_weights_go_to_those_that_run_and_later_to_the_one_that_is_back(world: World) -> None:
    with world.guarded(THEIRS) as guard:
        first = guard.wait()
        assert guard.urls == guard.all_urls == [A, B]
        guard.has_weights(first, new=True)
        world.dead.add(B)
        until(lambda: world.said == [f"lost {B}"])
        assert not guard.needs_weights  # the other one has them
        second = guard.wait()
        assert second != first
        assert (guard.urls, guard.all_urls) == ([A], [A, B])
        guard.has_weights(second, new=True)
        world.dead.discard(B)
        until(lambda: guard.needs_weights)
        assert world.said == [f"lost {B}"]
        third = guard.wait()
        assert third not in (first, second)  # a group of processes must be formed anew
        assert guard.urls == [A, B]
        guard.has_weights(third, new=False)
        assert not guard.needs_weights
    assert world.said == [f"lost {B}", f"back {B}"]


@pytest.mark.parametrize("late", [True, False])
def test_server_that_dies_during_a_sync_has_no_weights(world: World, late: bool) -> None:
    """Nor has one that is back only then: it is not part of the sync."""
    with world.guarded(THEIRS) as guard:
        if late:
            changes = guard.wait()
            world.dead.add(B)
            assert guard.explains(ConnectionError("broken"))
        else:
            world.dead.add(B)
            until(lambda: bool(world.said))
            changes = guard.wait()
        world.dead.discard(B)
        until(lambda: guard.needs_weights)
        guard.has_weights(changes, new=True)
        assert world.said == [f"lost {B}"]
        assert late or guard.urls == [A]
        assert guard.needs_weights


def test_error_is_explained_by_the_death_of_a_server_that_took_part(world: World) -> None:
    with world.guarded(THEIRS) as guard:
        world.dead.add(B)
        until(lambda: bool(world.said))
        guard.wait()
        assert not guard.explains(ConnectionError("broken"))
        world.dead.add(A)
        assert guard.explains(ConnectionError("broken"))
        assert not guard.explains(SweError("the disk is full"))


def test_server_that_is_not_restarted_any_more_ends_nothing_while_another_runs(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    own = {url: Own(world, url) for url in (A, B)}
    own[B].works = False
    with world.guarded(own, restarts=2) as guard:
        world.dead.add(B)
        until(lambda: "until then the training continues without it" in caplog.text)
        assert world.started == [B, B]
        guard.has_weights(guard.wait(), new=True)
        assert guard.urls == [A]
        world.dead.add(A)
        until(lambda: guard.needs_weights)
        assert guard.urls == [A]
        guard.has_weights(guard.wait(), new=True)
        own[A].works = False
        world.dead.add(A)
        with pytest.raises(ServerLost, match=r"after 2 of 2 restarts; resume with --resume$"):
            until(lambda: guard.wait() > 99)
    assert world.said == [f"lost {B}", f"lost {A}", f"back {A}", f"lost {A}"]
    assert world.closed == [A, B]  # the guard ends no server that runs


def test_server_of_the_user_may_stay_away_while_another_runs(world: World) -> None:
    with world.guarded(THEIRS, away_timeout=0.01) as guard:
        world.dead.add(B)
        until(lambda: world.said == [f"lost {B}"])
        time.sleep(0.05)  # longer than it may, were it the only one
        guard.has_weights(guard.wait(), new=True)
        world.dead.discard(B)
        until(lambda: guard.needs_weights)
        guard.has_weights(guard.wait(), new=False)
        world.dead |= {A, B}
        with pytest.raises(ServerLost, match=r"for 0 s \(worker\.trl\.server\.away_timeout\)"):
            until(lambda: guard.wait() > 99)


def test_all_die_and_the_first_that_is_back_is_enough(world: World) -> None:
    with world.guarded(THEIRS) as guard:
        world.dead |= {A, B}
        until(lambda: sorted(world.said) == [f"lost {A}", f"lost {B}"])
        world.dead.discard(B)
        changes = guard.wait()
        assert guard.urls == [B]
        guard.has_weights(changes, new=False)
        assert world.said[-1] == f"back {B}"


@pytest.mark.parametrize("new", [True, False])
def test_only_new_weights_begin_the_count_of_restarts_anew(world: World, new: bool) -> None:
    """A server that its requests kill gets the same weights again each time."""
    with world.guarded({A: Own(world, A)}, restarts=1) as guard:
        world.dead.add(A)
        until(lambda: guard.needs_weights)
        guard.has_weights(guard.wait(), new=new)
        world.dead.add(A)
        if new:
            until(lambda: guard.needs_weights)
            return
        with pytest.raises(ServerLost, match=r"ended: .* after 1 of 1 restarts; resume with --resume$"):
            until(lambda: guard.wait() > 99)


@dataclass
class Bench(World):
    """The world of a stub of a server."""

    port: int = 0
    log: Path = Path()

    def server(self, command: list[str] | None = None) -> VLLMServer:
        from swe_trainer_trl.server.vllm_server import VLLMServer

        url = f"http://127.0.0.1:{self.port}"
        return VLLMServer(url, "m", self.log, command or stub(self.port), os.environ, PATIENCE)

    @contextmanager
    def serving(self, server: VLLMServer) -> Iterator[ServerRecovery]:
        """The recovery of a server that was started."""
        try:
            server.start()
            with self.guarded({server.url: server}) as guard:
                yield guard
        finally:
            server.close()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("swe_trainer_trl.server.recovery._EVERY", 0.02)
    return Bench(port=held_port(), log=tmp_path / "server.log")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGUSR1])
def test_started_server_is_restarted_and_needs_weights(bench: Bench, sent: signal.Signals) -> None:
    """Also one that says 503 from now on and never ends, as where vLLM's engine has died."""
    server = bench.server()
    with bench.serving(server) as guard:
        assert guard.wait() == 0
        guard.has_weights(0, new=True)
        os.kill(started_as(bench.log), sent)
        until(lambda: guard.needs_weights)
        assert bench.said == [f"lost {server.url}"]
        guard.has_weights(guard.wait(), new=True)
        assert not guard.needs_weights
    assert bench.said == [f"lost {server.url}", f"back {server.url}"]


def test_end_does_not_wait_for_a_start(bench: Bench) -> None:
    """A server that is just started again, and never gets healthy, is ended."""
    once = bench.log.with_name("once")
    script = f"import os, sys, time\nif os.path.exists({str(once)!r}):\n    time.sleep(1e6)\n"
    script += f"open({str(once)!r}, 'w')\nos.execv(sys.executable, sys.argv[1:])"
    server = bench.server([sys.executable, "-c", script, *stub(bench.port)])
    with bench.serving(server):
        os.kill(started_as(bench.log), signal.SIGKILL)
        until(lambda: bench.said == [f"lost {server.url}"])
        until(lambda: server.died() is None)
    assert server.died() is not None
