"""HfSandbox: a running Hugging Face Sandbox."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, BinaryIO
from weakref import WeakSet

import anyio
import anyio.from_thread
import anyio.to_thread
import httpx
from anyio.abc import TaskGroup
from huggingface_hub import Sandbox as HubSandbox
from huggingface_hub.errors import SandboxError as HubSandboxError

from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Process, Sandbox, SandboxSpec
from swe_core.errors import SandboxBroken, SandboxDied, SandboxError
from swe_core.sandboxing.kill_tree import KILL_TREE
from swe_core.sandboxing.relay.pull_relay import reach_by_pull
from swe_core.sandboxing.relay.transport import HttpTransport
from swe_sandbox_hf.archives import parts_of, size_of
from swe_sandbox_hf.client import ATTEMPTS, TRANSPORT, Client, Killed, is_transient
from swe_sandbox_hf.feed import Garbled
from swe_sandbox_hf.life import Life
from swe_sandbox_hf.process import HfProcess

INLINE = 128 * 1024
"""Maximum bytes of standard input that the request that starts a command carries."""
FOLLOWERS = 14
"""Maximum number of concurrent commands per sandbox; more wait. The client opens at most 18 connections to a
sandbox's server. Each running command holds one, and a kill needs one."""
UPLOADS = 4
"""Maximum number of parts uploaded at once."""
KILL_TIMEOUT = 60.0
"""Seconds that a kill from inside may take."""

_NOT_STARTED, _GONE, _NEVER = 73, 74, 75
_KILLED = 137
_BAD_REQUEST = 400
_SH = "/bin/sh"
_REPOSITORY = 'tar -x -z -f - -C "$1"'
_KILL_ALL = "i=0; while [ $i -lt 20 ]; do kill -9 -1; i=$((i+1)); done 2>/dev/null; exit 0"


def _script(name: str) -> str:
    return (resources.files("swe_sandbox_hf") / "inside" / name).read_text()


_LAUNCH, _SUPERVISE, _FOLLOW = _script("launch.sh"), _script("supervise.sh"), _script("follow.sh")
_KILL, _SETUP, _ASSET = _script("kill.sh"), _script("setup.sh"), _script("asset.sh")


class HfSandbox(Sandbox):
    """A running sandbox, in its own job or in that of a pool.

    Args:
        hub: The client's handle of the sandbox.
        job: The id of its job.
        namespace: The job's namespace.
        flavor: The job's hardware.
        pooled: Whether other sandboxes share the job.
        tasks: The task group that serves the sandbox's commands.
        http: The client for requests to ports inside.
    """

    def __init__(
        self,
        client: Client,
        hub: HubSandbox,
        job: str,
        namespace: str,
        flavor: str,
        spec: SandboxSpec,
        pooled: bool,
        tasks: TaskGroup,
        http: httpx.AsyncClient,
    ) -> None:
        self.id = hub.id
        self.spec = spec
        self.flavor = flavor
        self._client = client
        self._hub = hub
        self._life = Life(client, hub.id, job, namespace)
        self._pooled = pooled
        self._tasks = tasks
        self._http = http
        self._base = ""  # directory of the files of its commands
        self._files = ""  # the same directory, as a path for the files API
        self._drop = ""
        self._over: list[str] = []  # directories of finished commands, to be removed
        self._processes: WeakSet[HfProcess] = WeakSet()
        self._followers = anyio.CapacityLimiter(FOLLOWERS)

    async def prepare(self, archives: Mapping[str, BinaryIO | PurePosixPath]) -> None:
        """Create the directories of a sandbox, and unpack archives into them.

        Args:
            archives: Directory → its archive: an open file on this host, or a path inside.

        Raises:
            SandboxError: The image lacks a tool, or a directory cannot be made or filled.
        """
        name = f"swe-core-{secrets.token_hex(6)}"
        # In a pool only the home is writable, and paths of the files API are relative to it.
        argv = [name, HOME_DIR, self.spec.workdir, *([""] if self._pooled else ["/var/tmp", "/tmp"])]
        code, said, complaint = await self._inside(_SETUP, *argv)
        if code:
            place = "in a pool, where only its home is writable, " if self._pooled else ""
            why = self._client.line(complaint) or f"exit code {code}"
            raise SandboxError(f"cannot prepare the sandbox {self.id!r} {place}of {self.spec.image!r}: {why}")
        self._base, _, drop = said.strip().partition("\n")
        self._files = f"/{name}" if self._pooled else self._base
        for directory, archive in archives.items():
            await self._unpack(directory, archive)
        self._drop = drop  # only from now on: to unpack needs capabilities

    async def _unpack(self, directory: str, archive: BinaryIO | PurePosixPath) -> None:
        script = _ASSET if directory.startswith(f"{ASSETS_DIR}/") else _REPOSITORY
        argv, stdin = [_SH, "-c", script, "sh", directory], None
        if isinstance(archive, PurePosixPath):
            argv.append(str(archive))
        else:
            stdin = archive
        process = await self._start(argv, "/", {}, stdin)
        complaint = b"".join([chunk async for _, chunk in process.output()])
        code = await process.wait()
        if code:
            why = self._client.line(complaint.decode(errors="replace")) or f"exit code {code}"
            raise SandboxError(f"cannot unpack the files of {directory!r} in the sandbox {self.id!r}: {why}")

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        """See `Sandbox.start`."""
        given = {**self.spec.env, "HOME": HOME_DIR, **(env or {})}
        return await self._start(argv, cwd or self.spec.workdir, given, stdin)

    async def _start(
        self, argv: Sequence[str], cwd: str, env: dict[str, str], stdin: bytes | BinaryIO | None
    ) -> HfProcess:
        mark = secrets.token_hex(8)
        how, inline = await self._send(mark, stdin)
        over, self._over = self._over, []
        launch = [_SH, "-c", _LAUNCH, "sh", self._base, mark, how, cwd, self._drop, _SUPERVISE, _FOLLOW]
        launch += [" ".join(over), *argv]
        process = HfProcess(
            self.id, partial(self._follow, mark, launch, env, inline), partial(self._kill_tree, mark)
        )
        self._processes.add(process)
        self._tasks.start_soon(process.run)
        try:
            await process.started()
        except BaseException:  # also cancellation: clean up, then raise
            with anyio.CancelScope(shield=True), suppress(SandboxError):
                await process.kill()
            raise
        return process

    async def _send(self, mark: str, stdin: bytes | BinaryIO | None) -> tuple[str, str | None]:
        """Upload standard input if it is too long for the request.

        Returns:
            The argument STDIN of launch.sh, and the standard input that the request carries.
        """
        if stdin is None:
            return "none", None
        size = size_of(stdin)
        if isinstance(stdin, bytes) and size <= INLINE:
            return f"inline {size}", base64.b64encode(stdin).decode()
        places = anyio.Semaphore(UPLOADS)

        async def send(number: int, part: bytes) -> None:
            try:
                await self._ask(self._hub.files.write, f"{self._files}/{mark}/in.{number:06}", part)
            finally:
                places.release()

        with _first_error():
            async with anyio.create_task_group() as tasks:
                for number, part in enumerate(parts_of(stdin)):
                    await places.acquire()
                    tasks.start_soon(send, number, part)
        return f"parts {size}", None

    async def _follow(
        self, mark: str, launch: Sequence[str], env: dict[str, str], stdin: str | None, process: HfProcess
    ) -> None:
        """Start a command and follow it to its end. Resume at the last byte after each interruption."""
        feed = process.feed

        def hear(text: str) -> None:  # called in the thread that reads
            anyio.from_thread.run(process.hear, text)

        failures = 0
        async with self._followers:
            while feed.code is None:
                before = dict(feed.offsets)
                again = [str(feed.offsets["stdout"]), str(feed.offsets["stderr"])]
                try:
                    if feed.started:
                        argv = [_SH, "-c", _FOLLOW, "sh", f"{self._base}/{mark}", *again]
                        code, complaint = await self._client.follow(self._hub, argv, hear)
                    else:
                        code, complaint = await self._client.follow(
                            self._hub, launch, hear, env=env, stdin=stdin
                        )
                    failure: Exception | None = self._ended(process, code, complaint)
                except Exception as error:  # `_translated` translates or raises it
                    failure = error
                feed.broken()
                if feed.code is not None or failure is None:
                    break
                failures = 1 if feed.offsets != before else failures + 1
                if failures >= ATTEMPTS or not self._may_pass(failure):
                    raise await self._translated(failure, "run a command")
                await self._life.check()
                await anyio.sleep(self._pause(failures))
        self._over.append(mark)

    def _ended(self, process: HfProcess, code: int, complaint: str) -> Exception | None:
        """Return the error of a follower that ended with `code`, or None if the exit code is known."""
        if process.feed.code is not None:
            return None
        if code == _NOT_STARTED:
            return SandboxError(f"cannot run a command in the sandbox {self.id!r}: {complaint}")
        if code in (_GONE, _NEVER) and process.condemned:
            process.feed.code = _KILLED
            return None
        if code == _GONE:
            return SandboxBroken(
                f"the code inside broke the sandbox {self.id!r}: it removed the files of its commands"
            )
        if code == _NEVER:
            return Killed("it did not start")
        if code == _KILLED:
            return Killed("it was killed")
        return SandboxBroken(
            f"the code inside broke the sandbox {self.id!r}: its shell (sh) no longer runs: "
            f"{complaint or f'it exited with code {code} and no output'}"
        )

    @staticmethod
    def _may_pass(failure: Exception) -> bool:
        return is_transient(failure) or isinstance(failure, Garbled)

    @staticmethod
    def _pause(failures: int) -> float:
        return float(min(0.1 * 2 ** (failures - 1), 8.0)) + secrets.randbelow(100) / 1000

    async def kill_all(self) -> None:
        """See `Sandbox.kill_all`."""
        for process in self._processes:
            process.condemned = True
        failure: Exception = TimeoutError(f"killing everything inside took more than {KILL_TIMEOUT:g} s")
        with anyio.move_on_after(KILL_TIMEOUT):
            for failures in range(1, ATTEMPTS + 1):
                code, _, _ = await self._inside(_KILL_ALL)
                if code == 0:
                    return
                await anyio.sleep(self._pause(failures))
            failure = Killed("the command that kills everything inside was killed")
        raise await self._shell_error(failure)

    async def _kill_tree(self, mark: str) -> None:
        with anyio.move_on_after(KILL_TIMEOUT):
            code, _, _ = await self._inside(_KILL, KILL_TREE, mark, f"{self._base}/{mark}")
            if code == 0:
                return
        await self.kill_all()

    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        """See `Sandbox.reach`."""
        if self._pooled:
            raise SandboxError(
                f"the sandbox {self.id!r} belongs to a pool, where nothing can listen for the agent's "
                "LLM calls: leave out sandbox.hf.pool"
            )

        def connect(port: int) -> HttpTransport:
            url = self._hub.proxy_url_for(port, scheme=self._client.scheme)
            return HttpTransport(self._http, url, lambda: self._hub.proxy_headers)

        return reach_by_pull(self, endpoint, connect)

    async def keep_alive(self, seconds: float) -> None:
        """Send a request every `seconds`: for the service, a running command is no activity."""
        while True:
            await anyio.sleep(seconds)
            with suppress(SandboxError):  # the next use reports the error
                await self._ask(self._hub.processes)

    async def _inside(self, script: str, *argv: str) -> tuple[int, str, str]:
        """Run a script with all privileges of the server's user. The script must be safe to repeat.

        Raises:
            SandboxBroken: The shell inside no longer runs.
            SandboxError: The script could not be run.
        """
        command = [_SH, "-c", script, "sh", *argv]
        try:
            return await self._client.run(self._hub, command, between=self._life.check)
        except SandboxDied:
            raise
        except Exception as error:  # `_translated` translates or raises it
            raise await self._translated(error, "run a command") from error

    async def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return await self._client.call(function, *args, between=self._life.check)
        except SandboxDied:
            raise
        except Exception as error:  # `_translated` translates or raises it
            raise await self._translated(error, "exchange files") from error

    async def _translated(self, error: Exception, doing: str) -> SandboxError:
        """Translate an error of the client or of this package to a `SandboxError`.

        Raises:
            SandboxDied: The job does not run.
            Exception: `error` itself, if it is of another kind.
        """
        await self._life.check()
        if isinstance(error, SandboxError):
            return error
        status = getattr(error, "status_code", None)
        if status == _BAD_REQUEST and "spawn" in str(error):
            return SandboxBroken(
                f"the code inside broke the sandbox {self.id!r}: its shell (sh) no longer runs: "
                f"{self._client.reason(error)}"
            )
        if isinstance(error, Killed | Garbled):
            return await self._shell_error(error)
        if self._may_pass(error):
            return self._no_answer(error)
        if isinstance(error, TRANSPORT) or status is not None:
            return SandboxError(f"cannot {doing} in the sandbox {self.id!r}: {self._client.reason(error)}")
        raise error

    async def _shell_error(self, error: Exception) -> SandboxError:
        """Return the error for a shell that was killed or replaced at each attempt.

        If the job runs and its server answers, the code inside broke the shell.

        Raises:
            SandboxDied: The job does not run.
        """
        try:
            await self._client.call(self._hub.processes, between=self._life.check)
        except (TRANSPORT, HubSandboxError):
            await self._life.check()
            return self._no_answer(error)
        return SandboxBroken(
            f"the code inside broke the sandbox {self.id!r}: its shell (sh) no longer runs: "
            f"{self._client.reason(error)}"
        )

    def _no_answer(self, error: Exception) -> SandboxDied:
        return SandboxDied(
            f"the sandbox {self.id!r} no longer answers, after {ATTEMPTS} attempts: "
            f"{self._client.reason(error)}"
        )


@contextmanager
def _first_error() -> Iterator[None]:
    """Raise the first exception of a task group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
