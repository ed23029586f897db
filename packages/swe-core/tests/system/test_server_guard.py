"""The server guard: no server outlives its owner."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

KEEPER = (sys.executable, "-m", "swe_core.system.server_guard")
SERVER = ("bash", "-c", "echo $$; sleep 600")


@pytest.fixture
def watched() -> Iterator[subprocess.Popen[bytes]]:
    """An owner that runs until the test ends it."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def kept(watched: int, *command: str) -> tuple[subprocess.Popen[str], int]:
    """Start a guard; also return a descriptor that is readable once its server has exited."""
    guard = subprocess.Popen(
        [*KEEPER, str(watched), *command], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert guard.stdout is not None
    return guard, os.pidfd_open(int(guard.stdout.readline()))


def gone(server: int) -> bool:
    ended = bool(select.select([server], [], [], 60)[0])
    os.close(server)
    return ended


def test_server_ends_with_its_owner(watched: subprocess.Popen[bytes]) -> None:
    guard, server = kept(watched.pid, *SERVER)
    with guard:
        watched.kill()
        assert gone(server)


def test_server_ends_on_sigterm_of_the_guard(watched: subprocess.Popen[bytes]) -> None:
    guard, server = kept(watched.pid, *SERVER)
    with guard:
        guard.terminate()
        assert gone(server)
    assert watched.poll() is None


TOLD_EARLY = """
import os, signal, subprocess
from swe_core.system import server_guard
start = subprocess.Popen
def told(*arguments, **options):
    server = start(*arguments, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return server
subprocess.Popen = told
server_guard.main()
"""


def test_server_ends_on_sigterm_during_start(watched: subprocess.Popen[bytes]) -> None:
    """The signal comes before the guard knows the pid of its server."""
    command = [sys.executable, "-c", TOLD_EARLY, str(watched.pid), "sleep", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as guard:
        assert guard.stdout is not None
        assert guard.stdout.read() == b""  # the server has it open as long as it lives
    assert guard.returncode == -signal.SIGKILL


def test_processes_left_by_the_server_end(watched: subprocess.Popen[bytes]) -> None:
    """A server whose workers outlive it, as those of vLLM do when it is killed."""
    guard, worker = kept(watched.pid, "bash", "-c", "sleep 600 & echo $!")
    with guard:
        assert gone(worker)
    assert guard.returncode == -signal.SIGKILL


def refused(*arguments: str, leads: bool = True) -> str:
    command = [*KEEPER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=leads)
    assert done.returncode == 1
    return done.stderr


def test_exited_owner_gets_no_server() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with suppress(ProcessLookupError):
        os.kill(ended.pid, 0)
        pytest.skip("its number was given away again")
    assert refused(str(ended.pid), "echo") == f"process {ended.pid} has exited, so 'echo' is not started\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((str(os.getpid()), "true"), "process group of its own"),
        (("twelve", "true"), "usage:"),
        ((str(os.getpid()), "/no/such"), "'/no/such' cannot be started: No such file"),
    ],
)
def test_guard_says_what_is_wrong(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(*arguments, leads=arguments[-1] != "true" or "usage" in says)
