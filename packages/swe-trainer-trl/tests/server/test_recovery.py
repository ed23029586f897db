"""The guard: a server that dies is noticed, started again or waited for, and given weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from swe_core.errors import EngineUnavailable, SweError
from swe_core.system.ports import free_port
from swe_testing.serving.start import missing
from swe_trainer_trl.config import ServerOptions
from swe_trainer_trl.server.health import ServerLost

from .test_vllm_server import started_as, stub

if TYPE_CHECKING:  # imports torch, which takes seconds
    from swe_trainer_trl.server.recovery import ServerRecovery
    from swe_trainer_trl.server.vllm_server import VLLMServer

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PATIENCE = 120.0


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swe_trainer_trl.server.recovery._EVERY", 0.02)


@dataclass
class Bench:
    """A stub of a server, its guard, and what that said."""

    port: int
    log: Path
    said: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def server(self, command: list[str] | None = None) -> VLLMServer:
        from swe_trainer_trl.server.vllm_server import VLLMServer

        return VLLMServer(self.url, "m", self.log, command or stub(self.port), os.environ, PATIENCE)

    @contextmanager
    def guarded(self, server: VLLMServer | None, **options: float) -> Iterator[ServerRecovery]:
        """The recovery of a started server, or of a server of the user."""
        from swe_trainer_trl.server.recovery import ServerRecovery

        chosen = ServerOptions(**options)

        def told(what: str) -> Callable[[str], None]:
            return lambda url: self.said.append(what if url == self.url else f"{what} {url}")

        try:
            if server is not None:
                server.start()
            with ServerRecovery({self.url: server}, chosen, told("lost"), told("back")) as guard:
                yield guard
        finally:
            if server is not None:
                server.close()

    def kill(self) -> None:
        os.kill(started_as(self.log), signal.SIGKILL)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(free_port(), tmp_path / "server.log")


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_started_server_is_restarted_and_needs_weights(bench: Bench) -> None:
    with bench.guarded(bench.server()) as guard:
        assert guard.wait() == 0
        guard.has_weights(0, new=True)
        assert bench.said == []
        bench.kill()
        until(lambda: guard.needs_weights)
        assert bench.said == ["lost"]
        guard.has_weights(guard.wait(), new=True)
        assert not guard.needs_weights
    assert bench.said == ["lost", "back"]


def test_server_that_never_ends_is_killed_and_restarted(bench: Bench) -> None:
    """As where vLLM's engine has died and its HTTP server has not."""
    with bench.guarded(bench.server()) as guard:
        os.kill(started_as(bench.log), signal.SIGUSR1)  # it says 503 from now on
        until(lambda: guard.needs_weights)
    assert bench.said == ["lost"]


def test_weights_that_went_to_an_earlier_server_are_none(bench: Bench) -> None:
    with bench.guarded(bench.server()) as guard:
        bench.kill()
        until(lambda: guard.needs_weights)
        first = guard.wait()
        bench.log.write_text("")
        os.kill(_listening(bench), signal.SIGKILL)
        until(lambda: bench.said == ["lost", "lost"])
        guard.has_weights(first, new=True)
        assert bench.said == ["lost", "lost"]
        until(lambda: guard.needs_weights)


def _listening(bench: Bench) -> int:
    """The pid of the stub that serves, by its command."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0")
        if str(bench.port).encode() in words and b"swe_core.system.server_guard" not in words:
            return int(path.parent.name)
    raise AssertionError("none serves")


def test_server_is_started_again_so_often(bench: Bench) -> None:
    with bench.guarded(bench.server(), restarts=1) as guard:
        bench.kill()
        until(lambda: guard.needs_weights)
        os.kill(_listening(bench), signal.SIGKILL)
        with pytest.raises(ServerLost, match=r"'m' ended: .* after 1 of 1 restarts; resume with --resume$"):
            until(lambda: guard.wait() > 9)
    assert bench.said == ["lost", "lost"]


def test_new_weights_begin_the_count_anew(bench: Bench) -> None:
    with bench.guarded(bench.server(), restarts=1) as guard:
        for deaths in (1, 2, 3):
            os.kill(_listening(bench), signal.SIGKILL)
            until(lambda deaths=deaths: len(bench.said) == 2 * deaths - 1 and guard.needs_weights)
            guard.has_weights(guard.wait(), new=True)
    assert bench.said == ["lost", "back"] * 3


def test_server_killed_by_its_requests_is_not_restarted_for_ever(bench: Bench) -> None:
    """It gets the same weights again each time, for nothing is trained in between."""
    with bench.guarded(bench.server(), restarts=1) as guard:
        os.kill(_listening(bench), signal.SIGKILL)
        until(lambda: guard.needs_weights)
        guard.has_weights(guard.wait(), new=False)
        os.kill(_listening(bench), signal.SIGKILL)
        with pytest.raises(ServerLost, match=r"after 1 of 1 restarts; resume with --resume$"):
            until(lambda: guard.wait() > 9)


def test_exhausted_restarts_are_one_sentence(bench: Bench) -> None:
    with bench.guarded(bench.server(), restarts=0) as guard:
        bench.kill()
        with pytest.raises(ServerLost, match=r"^the vLLM server of 'm' ended: .*; resume with --resume$"):
            until(lambda: guard.wait() > 9)


@contextmanager
def theirs(bench: Bench) -> Iterator[subprocess.Popen[bytes]]:
    """A server that the user has started."""
    with bench.log.open("wb") as log, subprocess.Popen(stub(bench.port), stdout=log) as process:
        started_as(bench.log)
        try:
            yield process
        finally:
            process.kill()


def test_server_of_the_user_is_waited_for(bench: Bench) -> None:
    with theirs(bench) as first, bench.guarded(None) as guard:
        first.kill()
        until(lambda: bench.said == ["lost"])
        with theirs(bench):
            until(lambda: guard.needs_weights)
            guard.has_weights(guard.wait(), new=True)
    assert bench.said == ["lost", "back"]


def test_server_of_the_user_that_stays_away_is_a_sentence(bench: Bench) -> None:
    with theirs(bench) as process, bench.guarded(None, away_timeout=0.1) as guard:
        process.kill()
        said = f"the server '{bench.url}' is dead .* for 0 s .*: start it again, then resume with --resume"
        with pytest.raises(ServerLost, match=said):
            until(lambda: guard.wait() > 9)


def test_end_does_not_wait_for_a_start(bench: Bench) -> None:
    """A server that is just started again, and never gets healthy, is ended."""
    once = bench.log.with_name("once")
    script = f"import os, sys, time\nif os.path.exists({str(once)!r}):\n    time.sleep(1e6)\n"
    script += f"open({str(once)!r}, 'w')\nos.execv(sys.executable, sys.argv[1:])"
    server = bench.server([sys.executable, "-c", script, *stub(bench.port)])
    with bench.guarded(server):
        bench.kill()
        until(lambda: bench.said == ["lost"])
        until(lambda: server.died() is None)
    assert server.died() is not None
    assert [thread.name for thread in threading.enumerate() if thread.name == "swe-guard"] == []


def test_error_of_a_live_server_is_not_explained(bench: Bench) -> None:
    with bench.guarded(bench.server()) as guard:
        assert not guard.explains(EngineUnavailable("it failed"))
        assert not guard.explains(ConnectionError("broken"))
        bench.kill()
        assert guard.explains(ConnectionError("broken"))
        assert not guard.explains(SweError("the disk is full"))
