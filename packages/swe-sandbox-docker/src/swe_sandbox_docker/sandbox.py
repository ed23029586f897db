"""DockerSandbox: a running container."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from weakref import WeakSet

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, TaskGroup
from docker.errors import APIError

from swe_core.api.sandbox import Process, Sandbox, SandboxSpec
from swe_core.errors import SandboxBroken, SandboxDied, SandboxError
from swe_core.sandboxing.kill_tree import KILL_TREE, MARK
from swe_core.sandboxing.relay import reach_by_socket
from swe_core.sandboxing.relay.bridge import reach_by_bridge
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.container import SOCKET_DIR, User, as_keepers
from swe_sandbox_docker.lifeline import Lifeline, ShellEnded
from swe_sandbox_docker.process import Death, DockerProcess
from swe_sandbox_docker.streams import CommandStream

KILL_TIMEOUT = 10.0
"""Seconds that a kill from inside may take; afterwards the container is restarted."""
START_TIMEOUT = 30.0
"""Seconds until the shell of a restarted container must print `READY`."""

_TRUST_AND_READ = (
    "git config --global --add safe.directory '*' >/dev/null 2>&1; exec tar -c -f - -C / --no-recursion -T -"
)
_MAX_PROTECTED = 256 * 1024 * 1024
_BAD_REQUEST = 400
_SIGNALLED = 128


class DockerSandbox(Sandbox):
    """A running container.

    Args:
        container: The container's name.
        user: The user of commands.
        sockets: The host directory that is mounted at `SOCKET_DIR`; None if the engine shares no files.
        tasks: The task group that serves the sandbox's commands.
        lifeline: The connection that keeps the container running.
    """

    def __init__(
        self,
        client: Client,
        container: str,
        spec: SandboxSpec,
        user: User,
        sockets: Path | None,
        tasks: TaskGroup,
        lifeline: Lifeline,
    ) -> None:
        self.id = container
        self.spec = spec
        self._client = client
        self._user = user
        self._sockets = sockets
        self._tasks = tasks
        self._lifeline = lifeline
        self._processes: WeakSet[DockerProcess] = WeakSet()
        self._restarting = anyio.Lock()

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        """See `Sandbox.start`."""
        mark = secrets.token_hex(8)
        environment = {**(env or {}), MARK: mark}
        exec_id, connection, first = await self._exec(
            argv, cwd or self.spec.workdir, environment, stdin=stdin is not None
        )
        process = DockerProcess(
            self._client, self.id, exec_id, mark, connection, first, self._death, self._kill_tree
        )
        self._processes.add(process)
        self._tasks.start_soon(process.run)
        if stdin is not None:
            self._tasks.start_soon(process.feed, stdin)
        return process

    async def _exec(
        self, argv: Sequence[str], cwd: str, env: Mapping[str, str], *, stdin: bool
    ) -> tuple[str, ByteStream, bytearray]:
        """Start a command. Return the engine's id of it, its connection, and the output that came at once."""
        async with self._restarting:  # until then, the engine refuses
            pass
        try:
            created = await self._client.call(
                self._client.api.exec_create,
                self.id,
                list(argv),
                stdin=stdin,
                user=self._user.name,
                environment=dict(env),
                workdir=cwd,
            )
        except APIError as error:
            kind = SandboxDied if error.status_code in (404, 409) else SandboxError
            death = await self._death() or Death(reason(error), kind)
            raise death.kind(f"cannot run {argv[0]!r} in the sandbox {self.id!r}: {death.why}") from None
        streams = {"Detach": False, "Tty": False}
        connection, first = await self._client.hijack(f"/exec/{created['Id']}/start", streams)
        return created["Id"], connection, first

    async def kill_all(self) -> None:
        """See `Sandbox.kill_all`. This restarts the container, which keeps its files.

        A restart needs nothing inside but the shell, and no process survives it.
        """
        for process in self._processes:
            process.condemned = True
        async with self._restarting:
            await self._restart()

    async def _restart(self) -> None:
        broken = f"the code inside broke the sandbox {self.id!r}"
        try:
            await self._client.call(self._client.api.stop, self.id, timeout=0)
            with anyio.move_on_after(
                START_TIMEOUT
            ):  # the agent may have replaced the shell with a silent one
                await self._lifeline.start()
        except ShellEnded as ended:
            if ended.code > _SIGNALLED:
                raise SandboxDied(f"the sandbox {self.id!r} was killed while it started again") from None
            raise SandboxBroken(f"{broken}: its shell (sh) no longer runs: {ended}") from None
        except APIError as error:
            if _is_about_files(error):
                raise SandboxBroken(f"{broken}: it does not start again: {reason(error)}") from None
            raise SandboxDied(
                f"the sandbox {self.id!r} does not start again after all its processes were killed: "
                f"{reason(error)}"
            ) from None

    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        """See `Sandbox.reach`."""
        if self._sockets is not None:
            return reach_by_socket(self, endpoint, self._sockets, SOCKET_DIR)
        return reach_by_bridge(self, endpoint, self._bridge)

    async def _bridge(self, argv: list[str]) -> ByteStream:
        _, connection, first = await self._exec(argv, "/", {}, stdin=True)
        return CommandStream(connection, first)

    async def protect(self, paths: Sequence[str]) -> bool:
        """See `Sandbox.protect`. The keeper becomes the owner of the files and of their directories.

        The directories are those up to the top of the repository, and get the sticky bit. Code inside lacks
        the capabilities to override this, even as root. The git configuration gets a `safe.directory`, so
        that git still works in a repository of another owner.
        """
        top = posixpath.normpath(self.spec.workdir)
        above = {above for path in paths for above in _directories(path, top)}
        archive = await self.exec(
            ["sh", "-c", _TRUST_AND_READ],
            stdin="".join(f"{path.lstrip('/')}\n" for path in (*sorted(above), *paths)).encode(),
            cwd="/",
            max_output=_MAX_PROTECTED,
        )
        if archive.exit_code != 0 or archive.truncated:
            raise SandboxError(f"the files to protect in the sandbox {self.id!r} could not be read")
        owned = await anyio.to_thread.run_sync(as_keepers, archive.stdout)
        try:
            await self._client.call(self._client.api.put_archive, self.id, "/", owned)
        except APIError as error:
            raise SandboxError(
                f"files of the sandbox {self.id!r} could not be protected: {reason(error)}"
            ) from None
        return True

    async def _death(self) -> Death | None:
        """Return why the container does not run, or None if it runs.

        Code inside cannot signal the container's first process, but can use up the memory of all.
        """
        try:
            container = await self._client.call(self._client.api.inspect_container, self.id)
        except APIError as error:
            return Death(reason(error))
        state = container["State"]
        if state["Running"]:
            return None
        if state.get("OOMKilled"):
            return Death("the code inside used up the memory (resources.memory_mb)", SandboxBroken)
        if state["ExitCode"] == 0:
            why = "the connection that keeps its container up was closed, as when the Docker Engine restarts"
            return Death(why)
        return Death(f"its container ended with exit code {state['ExitCode']}")

    async def _kill_tree(self, mark: str) -> None:
        """Kill the processes that carry `mark` from inside. If this fails, kill everything from outside."""
        with anyio.move_on_after(KILL_TIMEOUT):
            process = await self.start(["sh", "-c", KILL_TREE, "sh", mark], cwd="/")
            async for _ in process.output():
                pass
            if await process.wait() == 0:
                return
        with suppress(SandboxBroken):  # all processes are dead; the next use reports the error
            await self.kill_all()


def _directories(path: str, top: str) -> Iterator[str]:
    """Yield the directories above `path` up to `top`; none if `path` is not below `top`."""
    while (path := posixpath.dirname(path)) == top or path.startswith(f"{top}/"):
        yield path


def _is_about_files(error: APIError) -> bool:
    """Return whether a restart failed because of the container's files.

    The engine answers 400 if a program or a mount point is missing, and 500 if the working directory is a
    file.
    """
    return error.status_code == _BAD_REQUEST or "is not a directory" in reason(error)
