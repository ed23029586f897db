"""Boxes: the place where a local job executes, in bubblewrap or in Docker."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

from swe_core.api.sandbox import SandboxSpec
from swe_core.builtin.local import seccomp
from swe_core.builtin.local.bwrap import HOSTNAME, Binds, default_path, find_bwrap, identity_files, why_not
from swe_core.builtin.local.control import sealed

SHARED = "/run/box"
"""Directory in a box that is shared with this process."""
SOCKET = "server.sock"
_CONFIG = "config.json"
_DOCKER = shlex.split("docker --log-level error")
_PATIENCE = 10.0
_PROGRAM = Path(__file__).with_name("program")
_INSIDE = "/.swe/program"
_START = "import sys; sys.path.insert(0, '/.swe'); from program.main import main; main()"
_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETPCAP")
# /usr is the host's own and read-only; everything else is new.
_NAMESPACES = ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv")


class NoBox(Exception):
    """A job cannot execute; the message says why."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command of a box.

    Args:
        argv: A plain job's command; unused for a sandbox.
        env: Its environment with secrets, passed through a file that is deleted as soon as it is read.
        server: Run this server instead, which listens on the socket `SOCKET`: settings of
            `program/main.py`.
    """

    argv: Sequence[str]
    env: dict[str, str]
    server: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of this machine that a box sees read-only at the absolute path `target`."""

    source: Path
    target: str


class Boxes:
    """Make boxes.

    Attributes:
        images: Images that run in bubblewrap with this machine's programs. Other images must exist in the
            Docker Engine.
    """

    def __init__(self) -> None:
        self.images = {"python:3.12", "python:3.11", "ghcr.io/astral-sh/uv:python3.12-bookworm"}

    @asynccontextmanager
    async def open(
        self, name: str, image: str, directory: Path, command: Command, mounts: Sequence[Mount] = ()
    ) -> AsyncIterator[Process]:
        """Run a box: a process whose stdout is the job's log and whose exit code is the job's.

        Raises:
            NoBox: There is no such image, or no engine for it.
        """
        local = image in self.images
        if not local and not await _docker_has(image):
            raise NoBox(f"Failed to pull the image {image!r}: manifest unknown")
        shared = directory / "shared"
        await anyio.to_thread.run_sync(_write, shared, command)
        rules = None
        try:
            if local:
                machine = seccomp.this_machine()
                rules = sealed(seccomp.program(machine)) if machine is not None else None
                argv = await anyio.to_thread.run_sync(_bubblewrap, directory, command.server, mounts, rules)
            else:
                argv = _docker(name, image, shared, command.server, mounts)
            process = await anyio.open_process(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=() if rules is None else (rules,),
            )
        finally:
            if rules is not None:
                os.close(rules)
        try:
            yield process
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    if local:
                        await _kill(process)
                    else:
                        await anyio.run_process([*_DOCKER, "rm", "--force", name], check=False)
                with anyio.move_on_after(_PATIENCE):
                    await process.wait()
                await process.aclose()  # kills what is left of it


async def _kill(process: Process) -> None:
    """Kill bubblewrap's child, process 1 inside: bubblewrap then ends after all processes inside."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    with suppress(OSError):
        for pid in (await anyio.Path(children).read_text()).split():
            os.kill(int(pid), signal.SIGKILL)
            return
    process.kill()


def _write(shared: Path, command: Command) -> None:
    """Write what the program inside reads first."""
    shared.mkdir(parents=True)
    shared.chmod(0o777)  # the image's user is unknown; the directory above is private
    server = None if command.server is None else {**command.server, "socket": f"{SHARED}/{SOCKET}"}
    config = {"command": list(command.argv), "env": command.env, "server": server}
    (shared / _CONFIG).write_text(json.dumps(config))


def _bubblewrap(
    directory: Path, server: object | None, mounts: Sequence[Mount], rules: int | None
) -> list[str]:
    """Return the argv of a box in bubblewrap.

    Raises:
        NoBox: It does not work here.
    """
    program = find_bwrap()
    obstacle = why_not(program)
    if program is None or obstacle is not None:
        raise NoBox(f"{obstacle}; local boxes need it for images that are not Docker's")
    files = directory / "etc"
    files.mkdir()
    identity: list[str] = []
    for path, text in identity_files("none").items():
        file = files / Path(path).name
        file.write_text(text)
        identity += ["--ro-bind", str(file), path]
    binds = Binds(SandboxSpec(network="none"), files, _PROGRAM / "main.py")
    late = [word for held, target in binds.late for word in ("--symlink", held, target)]
    return [
        *(program, *_NAMESPACES, "--uid", "0", "--gid", "0", "--hostname", HOSTNAME),
        *(word for capability in _CAPABILITIES for word in ("--cap-add", capability)),
        # The server is process 1, as in a container, so that it reaps orphans and `kill -9 -1` spares it.
        *(("--as-pid-1",) if server is not None else ()),
        *(() if rules is None else ("--seccomp", str(rules))),
        *("--dir", "/root", "--dir", "/home"),
        *("--perms", "1777", "--tmpfs", "/tmp", "--perms", "1777", "--tmpfs", "/var/tmp"),
        *(*binds.arguments, *late, *identity, "--perms", "1777", "--tmpfs", "/dev/shm"),
        *("--ro-bind", str(_PROGRAM), _INSIDE, "--bind", str(directory / "shared"), SHARED),
        *(word for mount in mounts for word in ("--ro-bind", str(mount.source), mount.target)),
        *("--setenv", "PATH", default_path(), "--setenv", "HOME", "/root", "--setenv", "LANG", "C.UTF-8"),
        *("--chdir", "/", "--", os.path.realpath(sys.executable), "-I", "-S"),
        *("-c", _START, f"{SHARED}/{_CONFIG}"),
    ]


def _docker(name: str, image: str, shared: Path, server: object | None, mounts: Sequence[Mount]) -> list[str]:
    """Return the argv of a box in Docker."""
    binds = [
        *(f"type=bind,source={mount.source},target={mount.target},readonly" for mount in mounts),
        f"type=bind,source={shared},target={SHARED}",
        f"type=bind,source={_PROGRAM},target={_INSIDE},readonly",
    ]
    return [
        *(*_DOCKER, "run", "--rm", "--name", name, "--network", "none", "--pull", "never"),
        *(("--init",) if server is None else ()),
        *(word for bind in binds for word in ("--mount", bind)),
        *("--entrypoint", "python3", image, "-I", "-S", "-c", _START, f"{SHARED}/{_CONFIG}"),
    ]


async def _docker_has(image: str) -> bool:
    try:
        asked = await anyio.run_process([*_DOCKER, "image", "inspect", image], check=False)
    except FileNotFoundError:
        return False
    return asked.returncode == 0
