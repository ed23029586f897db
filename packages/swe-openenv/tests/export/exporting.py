"""`swe-core openenv export` in this process, and a folder's server in another."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from swe_openenv.commands import openenv

BIN = Path(sys.executable).parent


def exported(*args: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(openenv, ["export", *args])


def openenv_cli(*args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run OpenEnv's own command line."""
    program = [str(BIN / "openenv"), *args]
    return subprocess.run(
        program, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


@contextmanager
def start(folder: Path, *command: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Start a folder's server with a command, in the folder; what still runs at the end is killed."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env={**os.environ, **env}, text=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def uvicorn(port: int = 0) -> list[str]:
    """The command of the folder's own Dockerfile, on loopback."""
    end = ("--timeout-graceful-shutdown", "2")
    return [str(BIN / "uvicorn"), "server.app:app", "--port", str(port), *end]


def url_of(process: subprocess.Popen[str]) -> str:
    """The address of a server, once it serves."""
    said = []
    for line in process.stderr or ():
        said.append(line)
        if found := re.search(r"Uvicorn running on (\S+)", line):
            return found[1]
    raise AssertionError("".join(said))


@contextmanager
def running(folder: Path, command: list[str], **env: str) -> Iterator[str]:
    """Serve an exported folder; yield the server's address. It must end at SIGTERM, without a traceback."""
    with start(folder, *command, **env) as process:
        try:
            yield url_of(process)
        finally:
            process.terminate()
            _, rest = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in rest
