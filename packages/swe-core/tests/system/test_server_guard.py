"""The keeper: no server outlives the process that it was started for."""

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
    """A process that lives until a test ends it."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def kept(watched: int, *command: str) -> tuple[subprocess.Popen[str], int]:
    """A keeper whose server runs, and a descriptor that is readable once the server has ended."""
    keeper = subprocess.Popen(
        [*KEEPER, str(watched), *command], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert keeper.stdout is not None
    return keeper, os.pidfd_open(int(keeper.stdout.readline()))


def gone(server: int) -> bool:
    ended = bool(select.select([server], [], [], 60)[0])
    os.close(server)
    return ended


def test_server_ends_with_the_process_that_it_is_for(watched: subprocess.Popen[bytes]) -> None:
    keeper, server = kept(watched.pid, *SERVER)
    with keeper:
        watched.kill()
        assert gone(server)


def test_server_ends_with_the_keepers_sigterm(watched: subprocess.Popen[bytes]) -> None:
    keeper, server = kept(watched.pid, *SERVER)
    with keeper:
        keeper.terminate()
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


def test_server_ends_with_a_sigterm_that_comes_while_it_starts(watched: subprocess.Popen[bytes]) -> None:
    """Its pid is known before the keeper has it."""
    command = [sys.executable, "-c", TOLD_EARLY, str(watched.pid), "sleep", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.read() == b""  # the server has it open as long as it lives
    assert keeper.returncode == -signal.SIGKILL


def test_what_the_server_leaves_behind_ends_too(watched: subprocess.Popen[bytes]) -> None:
    """A server whose workers outlive it, as those of vLLM do when it is killed."""
    keeper, worker = kept(watched.pid, "bash", "-c", "sleep 600 & echo $!")
    with keeper:
        assert gone(worker)
    assert keeper.returncode == -signal.SIGKILL


def refused(*arguments: str, leads: bool = True) -> str:
    done = subprocess.run(
        [*KEEPER, *arguments], capture_output=True, text=True, check=False, start_new_session=leads
    )
    assert done.returncode == 1
    return done.stderr


def test_a_process_that_has_ended_gets_no_server() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with suppress(ProcessLookupError):
        os.kill(ended.pid, 0)
        pytest.skip("its number was given away again")
    assert refused(str(ended.pid), "echo") == f"process {ended.pid} has ended, so 'echo' is not started\n"


def test_it_never_ends_the_group_of_who_started_it() -> None:
    assert "process group of its own" in refused(str(os.getpid()), "true", leads=False)


@pytest.mark.parametrize("arguments", [(), ("12",), ("twelve", "true")])
def test_usage(arguments: tuple[str, ...]) -> None:
    assert refused(*arguments).startswith("usage:")


def test_a_command_that_is_not_there() -> None:
    assert "'/no/such' cannot be started: No such file" in refused(str(os.getpid()), "/no/such")
