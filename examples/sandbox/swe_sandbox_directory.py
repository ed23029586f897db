"""Sandbox: a directory of this host. It isolates nothing: commands run as your user, with your files.

Replace the directory by your containers or virtual machines, and the processes by theirs; the conformance
suite in test_directory.py says what they must do.

swe-core run -p examples/sandbox/swe_sandbox_directory.py --set sandbox.directory.unisolated=true
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from pydantic import Field

from swe_core import Component, Config, Process, Sandbox, SandboxEntry, SandboxProvider, SandboxSpec, hookimpl
from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Stream
from swe_core.errors import PolicyRefused, SandboxBroken, SandboxError
from swe_core.sandboxing.background import background_task_group
from swe_core.sandboxing.kill_tree import KILL_TREE, MARK
from swe_core.sandboxing.process import FedProcess
from swe_core.sandboxing.relay import require_network
from swe_core.system.process_owner import current_owner, is_orphaned, process_state

ROOT = Path(tempfile.gettempdir()) / "swe-directory"
OWNER = "owner"  # file with the process that opened a sandbox, so that a later run can reap it
CHUNK = 65536
LAST = 2**20 // CHUNK  # what a pipe holds at most is read after the end of a command
AS_A_SHELL = (
    "sh",
    "-c",
    'exec "$@"',
    "sh",
)  # exit code 127 or 126 for a program that is missing or no program


class DirectoryConfig(Config):
    unisolated: bool = Field(
        default=False, description="accept that code inside has your files, processes and network"
    )


class Command(FedProcess):
    """One running command, whose processes have its mark in their environment."""

    def __init__(
        self, mark: str, argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: bytes
    ) -> None:
        super().__init__(mark)
        self.mark = mark
        with tempfile.TemporaryFile() as given:  # unlike a pipe it never blocks
            given.write(stdin)
            given.seek(0)
            try:
                self.process = subprocess.Popen(
                    [*AS_A_SHELL, *argv],
                    cwd=cwd,
                    env={**env, MARK: mark},
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise SandboxError(f"{argv[0]!r} cannot be started in {cwd!r}: {error}") from None

    async def follow(self) -> int:
        """See `FedProcess.follow`. A background child that keeps the streams open delays nothing."""
        out, err, ended = self.process.stdout, self.process.stderr, os.pidfd_open(self.process.pid)
        if out is None or err is None:
            raise RuntimeError("the output of a command goes to pipes")
        pipes: dict[Stream, int] = {"stdout": out.fileno(), "stderr": err.fileno()}
        for pipe in pipes.values():
            os.set_blocking(pipe, False)
        try:
            while self.process.poll() is None:
                await until_readable(ended, *pipes.values())
                for stream, pipe in list(pipes.items()):
                    if not await self.pass_on(stream, pipe, 1):
                        del pipes[stream]
            for stream, pipe in pipes.items():
                await self.pass_on(stream, pipe, LAST)
        finally:
            os.close(ended)
            out.close()
            err.close()
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    async def pass_on(self, stream: Stream, pipe: int, chunks: int) -> bool:
        """Pass on what is in a pipe now. Return whether it is still open."""
        for _ in range(chunks):
            try:
                chunk = os.read(pipe, CHUNK)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            await self.put(stream, chunk)
        return True

    async def kill_tree(self) -> None:
        await kill_marked(self.mark)


class DirectorySandbox(Sandbox):
    """One open sandbox.

    The paths of a sandbox exist once on this host, so each stands for a directory of its own: in arguments,
    working directories and variables, not in the content of files.
    """

    def __init__(self, spec: SandboxSpec, directory: Path, tasks: TaskGroup) -> None:
        self.id, self.spec, self.tasks = directory.name, spec, tasks
        self.places = {
            spec.workdir: str(directory / "repository"),
            HOME_DIR: str(directory / "home"),
            ASSETS_DIR: str(directory / "assets"),
        }
        names = "|".join(map(re.escape, sorted(self.places, key=len, reverse=True)))
        self.pattern = re.compile(rf"(?<![\w./-])({names})(?![\w.-])")
        self.numbers = itertools.count()

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        path = os.environ.get("PATH", os.defpath)
        variables = {"PATH": path, "HOME": HOME_DIR, "LANG": "C.UTF-8", **self.spec.env, **(env or {})}
        command = Command(
            f"{self.id}.{next(self.numbers)}.",
            [self.here(word) for word in argv],
            self.here(cwd or self.spec.workdir),
            {name: self.here(value) for name, value in variables.items()},
            stdin or b"",
        )
        self.tasks.start_soon(command.run)
        return command

    async def kill_all(self) -> None:
        await kill_marked(f"{self.id}.")

    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        require_network(self)
        return nullcontext(endpoint)  # the network is the host's own

    def here(self, text: str) -> str:
        """Return `text` with the paths of this host."""
        return self.pattern.sub(lambda found: self.places[found[1]], text)


class DirectoryProvider:
    """Opens sandboxes. One instance serves a whole run."""

    def __init__(self, config: DirectoryConfig) -> None:
        self.unisolated = config.unisolated

    def notes(self) -> Sequence[str]:
        return ["'directory' isolates nothing: code inside has your files, processes and network."]

    def check_supported(self, spec: SandboxSpec) -> None:
        """Raise what `open` would raise, before a run starts."""
        if not self.unisolated:
            raise PolicyRefused(
                f"the sandbox 'directory' cannot enforce the network policy {spec.network!r} or any limit: "
                "set sandbox.directory.unisolated=true to accept that, or choose another sandbox"
            )

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.check_supported(spec)
        ROOT.mkdir(mode=0o700, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=ROOT))
        try:
            (directory / OWNER).write_text(current_owner())
            with anyio.CancelScope(shield=True):  # a thread cannot be cancelled
                await anyio.to_thread.run_sync(fill, directory, spec)
            async with background_task_group() as tasks:
                sandbox = DirectorySandbox(spec, directory, tasks)
                try:
                    yield sandbox
                finally:
                    with anyio.CancelScope(shield=True):
                        await sandbox.kill_all()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove, directory)

    async def list(self) -> Sequence[SandboxEntry]:
        return [SandboxEntry(id=path.name, owner=process_state(owner)) for path, owner in kept()]

    async def reap(self) -> int:
        abandoned = [path for path, owner in kept() if is_orphaned(owner)]
        for path in abandoned:
            await kill_marked(f"{path.name}.")
            await anyio.to_thread.run_sync(remove, path)
        return len(abandoned)


def kept() -> list[tuple[Path, str]]:
    """Return the directory of each sandbox with its owner."""
    found = []
    for path in ROOT.glob("*"):
        try:
            found.append((path, (path / OWNER).read_text()))
        except OSError:  # another process makes or removes it
            continue
    return found


def fill(directory: Path, spec: SandboxSpec) -> None:
    """Make what a new sandbox has: the private copy of the repository, the home, the assets."""
    (directory / "home").mkdir(mode=0o700)
    (directory / "assets").mkdir()
    for asset in spec.assets:
        (directory / "assets" / asset.name).symlink_to(asset.path)
    if spec.repository is None:
        (directory / "repository").mkdir()
        return
    try:
        shutil.copytree(spec.repository, directory / "repository", symlinks=True)
    except OSError as error:
        raise SandboxError(f"the repository {str(spec.repository)!r} cannot be copied: {error}") from None


def remove(directory: Path) -> None:
    for path, folders, _ in os.walk(directory):  # code inside may have taken its own rights away
        for folder in folders:
            if not os.path.islink(os.path.join(path, folder)):
                os.chmod(os.path.join(path, folder), 0o700)
    shutil.rmtree(directory, ignore_errors=True)


async def kill_marked(mark: str) -> None:
    """Kill all processes whose mark begins with `mark`, and their children."""
    done = await anyio.run_process(["sh", "-c", KILL_TREE, "sh", mark], check=False)
    if done.returncode != 0:
        raise SandboxBroken(f"the processes {mark!r} cannot be killed: they multiply too fast")


async def until_readable(*descriptors: int) -> None:
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    for descriptor in descriptors:
        loop.add_reader(descriptor, changed.set)
    try:
        await changed.wait()
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)


@hookimpl
def swe_sandboxes() -> list[Component[SandboxProvider]]:
    summary = "a directory of this host; isolates nothing"
    return [Component("directory", DirectoryProvider, DirectoryConfig, summary)]
