"""FollowedSandbox: the base of sandboxes whose commands run detached inside and are followed from here."""

from __future__ import annotations

import base64
import secrets
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, BinaryIO
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Process, Sandbox, SandboxSpec
from swe_core.errors import SandboxBroken, SandboxDied, SandboxError
from swe_core.sandboxing.followed.archives import parts_of, size_of
from swe_core.sandboxing.followed.failures import Garbled, Killed
from swe_core.sandboxing.followed.process import FollowedProcess
from swe_core.sandboxing.kill_tree import KILL_TREE

ATTEMPTS = 9
"""Attempts to follow a command, and to kill everything, that bring nothing new."""
INLINE = 128 * 1024
"""Maximum bytes of standard input that the request that starts a command carries."""
UPLOADS = 4
"""Maximum number of parts uploaded at once."""
KILL_TIMEOUT = 60.0
"""Seconds that a kill from inside may take."""
PLACES = ("/var/tmp", "/tmp")
"""Where the files of commands may lie inside."""

_NOT_STARTED, _GONE, _NEVER = 73, 74, 75
_KILLED = 137
_SH = "/bin/sh"
_REPOSITORY = 'tar -x -z -f - -C "$1"'
_KILL_ALL = "i=0; while [ $i -lt 20 ]; do kill -9 -1; i=$((i+1)); done 2>/dev/null; exit 0"


def _script(name: str) -> str:
    return (resources.files("swe_core.sandboxing.followed") / "inside" / name).read_text()


_LAUNCH, _SUPERVISE, _FOLLOW = _script("launch.sh"), _script("supervise.sh"), _script("follow.sh")
_KILL, _SETUP, _ASSET = _script("kill.sh"), _script("setup.sh"), _script("asset.sh")


class FollowedSandbox(Sandbox):
    """A sandbox whose service runs one short request at a time.

    Each command runs in a session of its own, with its output in files. One request starts and follows it.
    After a broken connection another request resumes at the same byte, and the command does not notice.

    A provider implements `reach` and the methods below, which make the requests. It calls `prepare` before it
    hands the sandbox out.

    Args:
        id: The sandbox's id.
        tasks: The task group that serves the sandbox's commands.
        followers: Maximum number of concurrent commands; more wait.

    Attributes:
        unset: Variables of the service's own program that commands must not see.
    """

    unset: Sequence[str] = ()

    def __init__(self, id: str, spec: SandboxSpec, tasks: TaskGroup, followers: int) -> None:
        self.id = id
        self.spec = spec
        self._tasks = tasks
        self._base = ""  # directory of the files of its commands
        self._drop = ""
        self._worked = False  # whether a command has run, so that what is missing now was there
        self._over: list[str] = []  # directories of finished commands, to be removed
        self._processes: WeakSet[FollowedProcess] = WeakSet()
        self._followers = anyio.CapacityLimiter(followers)

    @abstractmethod
    async def request(
        self,
        argv: Sequence[str],
        hear: Callable[[str], Coroutine[Any, Any, None]],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> tuple[int, str]:
        """Run a command to its end, once.

        Args:
            hear: Called with each piece of standard output, ASCII text.
            stdin: Standard input, ASCII text.

        Returns:
            The exit code (137 if a signal killed the command) and the end of standard error as one line.

        Raises:
            BrokenOff: The stream ended before the command.
            Exception: The client's own, if the request is refused or unanswered.
        """

    @abstractmethod
    async def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        """Run a short command that is safe to repeat; repeat it after failures that `passes` names.

        Returns:
            The exit code, and the ends of standard output and standard error.

        Raises:
            Exception: As `request`, after the last attempt; or `SandboxDied` of `check`.
        """

    @abstractmethod
    async def upload(self, path: str, data: bytes) -> None:
        """Write a file below the directory of the commands' files; repeat it after failures that pass.

        Raises:
            SandboxError: The file cannot be written.
        """

    @abstractmethod
    async def check(self) -> None:
        """Check that the sandbox still runs.

        Raises:
            SandboxDied: It does not.
            SandboxError: The service refuses to tell.
        """

    @abstractmethod
    async def answers(self) -> bool:
        """Return whether the service answers: then code inside broke a shell that does not."""

    @abstractmethod
    def passes(self, error: Exception) -> bool:
        """Return whether another attempt may succeed."""

    @abstractmethod
    def reason(self, error: Exception) -> str:
        """Return an error as one line without credentials."""

    @abstractmethod
    def line(self, text: str) -> str:
        """Return `text` as one shortened line without credentials."""

    @abstractmethod
    def refusal(self, error: Exception, doing: str) -> SandboxError | None:
        """Return an error of the service's client as one sentence, or None if it is of another kind."""

    async def prepare(
        self,
        archives: Mapping[str, BinaryIO | PurePosixPath],
        *,
        places: Sequence[str] = PLACES,
        where: str = "",
    ) -> None:
        """Create the directories of a sandbox, and unpack archives into them.

        Args:
            archives: Directory → its archive: an open file on this host, or a path inside.
            places: Where the files of commands may lie: the first that can be written; "" is the home.
            where: Words for the error that say what is special about this sandbox.

        Raises:
            SandboxError: The image lacks a tool, or a directory cannot be made or filled.
        """
        name = f"swe-core-{secrets.token_hex(6)}"
        code, said, complaint = await self._inside(_SETUP, name, HOME_DIR, self.spec.workdir, *places)
        if code:
            why = self.line(complaint) or f"exit code {code}"
            raise SandboxError(f"cannot prepare the sandbox {self.id!r} {where}of {self.spec.image!r}: {why}")
        self._base, _, drop = said.strip().partition("\n")
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
            why = self.line(complaint.decode(errors="replace")) or f"exit code {code}"
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
    ) -> FollowedProcess:
        mark = secrets.token_hex(8)
        how, inline = await self._send(mark, stdin)
        over, self._over = self._over, []
        script = f"unset {' '.join(self.unset)}\n{_LAUNCH}" if self.unset else _LAUNCH
        launch = [_SH, "-c", script, "sh", self._base, mark, how, cwd, self._drop, _SUPERVISE, _FOLLOW]
        launch += [" ".join(over), *argv]
        process = FollowedProcess(
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
                await self.upload(f"{self._base}/{mark}/in.{number:06}", part)
            finally:
                places.release()

        with _first_error():
            async with anyio.create_task_group() as tasks:
                for number, part in enumerate(parts_of(stdin)):
                    await places.acquire()
                    tasks.start_soon(send, number, part)
        return f"parts {size}", None

    async def _follow(
        self,
        mark: str,
        launch: Sequence[str],
        env: dict[str, str],
        stdin: str | None,
        process: FollowedProcess,
    ) -> None:
        """Start a command and follow it to its end. Resume at the last byte after each interruption."""
        feed = process.feed
        failures = 0
        async with self._followers:
            while feed.code is None:
                before = dict(feed.offsets)
                again = [str(feed.offsets["stdout"]), str(feed.offsets["stderr"])]
                try:
                    if feed.started:
                        argv = [_SH, "-c", _FOLLOW, "sh", f"{self._base}/{mark}", *again]
                        code, complaint = await self.request(argv, process.hear)
                    else:
                        code, complaint = await self.request(launch, process.hear, env=env, stdin=stdin)
                    failure: Exception | None = self._ended(process, code, complaint)
                except Exception as error:  # `_translated` translates or raises it
                    failure = error
                self._worked |= feed.started
                feed.broken()
                if feed.code is not None or failure is None:
                    break
                failures = 1 if feed.offsets != before else failures + 1
                if failures >= ATTEMPTS or not self._may_pass(failure):
                    raise await self._translated(failure, "run a command")
                await self.check()
                await anyio.sleep(self._pause(failures))
        self._over.append(mark)

    def _ended(self, process: FollowedProcess, code: int, complaint: str) -> Exception | None:
        """Return the error of a follower that ended with `code`, or None if the exit code is known."""
        if process.feed.code is not None:
            return None
        if code == _NOT_STARTED:
            kind = SandboxBroken if self._worked else SandboxError
            return kind(f"cannot run a command in the sandbox {self.id!r}: {complaint}")
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

    def _may_pass(self, failure: Exception) -> bool:
        return self.passes(failure) or isinstance(failure, Garbled)

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

    async def _inside(self, script: str, *argv: str) -> tuple[int, str, str]:
        """Run a script with all privileges of the image's user. The script must be safe to repeat.

        Raises:
            SandboxBroken: The shell inside no longer runs.
            SandboxError: The script could not be run.
        """
        try:
            return await self.run([_SH, "-c", script, "sh", *argv])
        except SandboxDied:
            raise
        except Exception as error:  # `_translated` translates or raises it
            raise await self._translated(error, "run a command") from error

    async def _translated(self, error: Exception, doing: str) -> SandboxError:
        """Translate an error of the client or of this module to a `SandboxError`.

        Raises:
            SandboxDied: The sandbox does not run.
            Exception: `error` itself, if it is of another kind.
        """
        await self.check()
        if isinstance(error, SandboxError):
            return error
        if isinstance(error, Killed | Garbled):
            return await self._shell_error(error)
        if self._may_pass(error):
            return self._no_answer(error)
        refusal = self.refusal(error, doing)
        if refusal is None:
            raise error
        return refusal

    async def _shell_error(self, error: Exception) -> SandboxError:
        """Return the error for a shell that was killed or replaced at each attempt.

        If the sandbox runs and its service answers, the code inside broke the shell.

        Raises:
            SandboxDied: The sandbox does not run.
        """
        if not await self.answers():
            await self.check()
            return self._no_answer(error)
        return SandboxBroken(
            f"the code inside broke the sandbox {self.id!r}: its shell (sh) no longer runs: "
            f"{self.reason(error)}"
        )

    def _no_answer(self, error: Exception) -> SandboxDied:
        return SandboxDied(
            f"the sandbox {self.id!r} no longer answers, after {ATTEMPTS} attempts: {self.reason(error)}"
        )


@contextmanager
def _first_error() -> Iterator[None]:
    """Raise the first exception of a task group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
