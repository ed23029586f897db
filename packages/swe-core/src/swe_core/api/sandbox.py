"""Where untrusted code runs: SandboxSpec, SandboxProvider, Sandbox, Process, ExecResult."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import anyio
from pydantic import BaseModel, ConfigDict, Field

from swe_core.errors import SandboxError, SandboxTimeout
from swe_core.system.detached import closed
from swe_core.system.process_owner import OwnerState

Network = Literal["llm", "none", "full"]
Stream = Literal["stdout", "stderr"]

ASSETS_DIR = "/opt/swe"
"""Where a sandbox shows the agent's assets, read-only: `ASSETS_DIR/<asset name>`."""
HOME_DIR = "/tmp/swe-home"
"""A private, writable directory inside every sandbox for the agent's own files; never in the repository."""

MAX_OUTPUT = 16 * 1024 * 1024


class Asset(BaseModel):
    """A host directory that every sandbox of a rollout sees read-only at `ASSETS_DIR/name`.

    Providers that share the host's disk mount it. Others upload it, if possible once per `digest`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    path: Path
    digest: str = Field(description="cache key, which changes with the content")


class SandboxSpec(BaseModel):
    """What a rollout requires of its sandbox. It is serialisable, so that another process can open it.

    A provider that cannot enforce a field raises `PolicyRefused`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    image: str | None = None
    repository: Path | None = Field(
        default=None, description="host directory, of which `workdir` is a private, writable copy"
    )
    workdir: str = "/testbed"
    assets: tuple[Asset, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, description="environment of every process inside")
    network: Network = "llm"
    memory_mb: int = Field(default=4096, gt=0, description="memory of the whole sandbox, MiB")
    cpus: float = Field(default=2.0, gt=0)
    pids: int = Field(default=512, gt=0, description="concurrent processes and threads")
    disk_mb: int = Field(default=4096, gt=0, description="writable space, MiB")
    write_protect: bool = Field(default=False, description="whether the caller will use `Sandbox.protect`")
    labels: dict[str, str] = Field(default_factory=dict, description="labels for the provider's own tools")

    def for_grading(self) -> SandboxSpec:
        """Return the same sandbox for a grader: without a network and without the agent's assets."""
        return self.model_copy(update={"network": "none", "assets": ()})


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The end of one command.

    Args:
        exit_code: The command's own exit code; 128+N if signal N killed it.
        stdout: The first bytes of standard output, at most `max_output`.
        stderr: The same for standard error.
        truncated: Whether bytes of a stream are missing.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False

    @property
    def text(self) -> str:
        """Return `stdout` as text, with undecodable bytes replaced."""
        return self.stdout.decode(errors="replace")


class Process(ABC):
    """A running command inside a sandbox."""

    @abstractmethod
    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield chunks of stdout and stderr as they arrive, until the command has ended.

        Callers may call this once. A command whose output is not consumed blocks when the buffers are full.
        A background child that keeps the streams open does not delay the end.

        Raises:
            SandboxDied: The sandbox no longer exists.
        """

    @abstractmethod
    async def wait(self) -> int:
        """Wait for the command and return its exit code, 128+N if signal N killed it.

        Raises:
            SandboxDied: The sandbox no longer exists.
        """

    @abstractmethod
    async def kill(self) -> None:
        """Kill the command and every process that it started (SIGKILL), if they still run."""


@dataclass(slots=True)
class _Capture:
    limit: int
    parts: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )
    truncated: bool = False

    def add(self, stream: Stream, chunk: bytes) -> None:
        room = self.limit - len(self.parts[stream])
        self.truncated |= len(chunk) > room
        if room > 0:
            self.parts[stream] += chunk[:room]


class Sandbox(ABC):
    """One open sandbox.

    A provider implements `start`, `kill_all` and `reach`. The other methods use these three; a provider may
    override them.

    Paths inside are absolute POSIX paths. Every method raises `SandboxDied` if the sandbox no longer exists.
    Until the sandbox is closed, every method works in a shielded scope, also after cancellation: this is how
    commands are killed.
    """

    id: str
    spec: SandboxSpec
    image_id: str | None = None
    """Content id of the image that `spec.image` named at the time of opening."""
    flavor: str | None = None
    """The unit that the provider bills, such as a kind of hardware; None if it bills nothing."""

    @abstractmethod
    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        """Start a command and return at once.

        A program that is missing or not executable raises no exception: the command ends with exit code 127
        or 126, as in a shell.

        Args:
            argv: The program and its arguments, without a shell.
            cwd: Working directory; None is `spec.workdir`.
            env: Variables to add to `spec.env`.
            stdin: Standard input, closed after these bytes. None is an empty input, not an open pipe.
        """

    @abstractmethod
    async def kill_all(self) -> None:
        """Kill every process inside except the provider's own (SIGKILL), also a fork bomb.

        The sandbox stays usable. Processes that `reach` started may die too.

        Raises:
            SandboxBroken: All processes are dead, but code inside removed or replaced something that the
                provider needs, so that the sandbox is no longer usable.
        """

    @abstractmethod
    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        """Make a host endpoint, and nothing else, reachable from inside while the context is open.

        Args:
            endpoint: URL of a server on this host, such as `http://127.0.0.1:8123`, without a path.

        Yields:
            The URL of that server for code inside the sandbox.

        Raises:
            PolicyRefused: `spec.network` is `none`.
            SandboxError: The sandbox cannot relay: it has neither python3 nor node.
        """

    async def protect(self, paths: Sequence[str]) -> bool:
        """Prevent code inside from changing or replacing these files until the sandbox is closed.

        Callers call this at most once, and only with `spec.write_protect`.

        Args:
            paths: Regular files.

        Returns:
            Whether the files are protected. Not every provider can do it; False means that nothing changed.

        Raises:
            SandboxError: The provider failed.
        """
        return False

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> ExecResult:
        """Run a command to its end. The first arguments are those of `start`.

        Args:
            timeout: Seconds; None sets no limit.
            max_output: Bytes to keep per stream. Further bytes are read and discarded, so the command never
                blocks.

        Raises:
            SandboxTimeout: The command exceeded `timeout`, and its process tree was killed.
        """
        captured = _Capture(max_output)
        process = await self.start(argv, cwd=cwd, env=env, stdin=stdin)
        exit_code: int | None = None
        try:
            with anyio.fail_after(timeout):
                async for stream, chunk in process.output():
                    captured.add(stream, chunk)
                exit_code = await process.wait()
        except TimeoutError:
            raise SandboxTimeout(
                f"the command {argv[0]!r} did not end within {timeout:g} s "
                "and was killed with all its children"
            ) from None
        finally:
            if exit_code is None:  # timed out, cancelled or failed: no process may survive
                await closed(process.kill, f"the end of the command {argv[0]!r}", SandboxError)
        return ExecResult(
            exit_code, bytes(captured.parts["stdout"]), bytes(captured.parts["stderr"]), captured.truncated
        )

    async def read(self, path: str, *, max_bytes: int = MAX_OUTPUT) -> bytes:
        """Return the content of a file.

        Raises:
            SandboxError: The file does not exist, is not readable, or is larger than `max_bytes`.
        """
        done = await self.exec(["cat", "--", path], max_output=max_bytes)
        if done.exit_code != 0:
            reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
            raise SandboxError(f"cannot read {path!r} in the sandbox: {reason}")
        if done.truncated:
            raise SandboxError(f"{path!r} in the sandbox is larger than the {max_bytes} bytes allowed")
        return done.stdout

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file, and create its parent directories.

        Raises:
            SandboxError: The file cannot be written: the disk is full, or the path is read-only.
        """
        script = 'mkdir -p -- "$2" && cat >"$1" && chmod "$3" "$1"'
        argv = ["sh", "-c", script, "sh", path, posixpath.dirname(path) or "/", f"{mode:o}"]
        done = await self.exec(argv, stdin=data)
        if done.exit_code != 0:
            reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
            raise SandboxError(f"cannot write {path!r} in the sandbox: {reason}")

    async def put_archive(self, path: str, archive: bytes) -> None:
        """Unpack a tar archive (plain or gzip) into the directory `path`, and create the directory.

        Raises:
            SandboxError: The archive cannot be unpacked.
        """
        script = 'mkdir -p -- "$1" && tar -x -f - -C "$1"'
        if archive[:2] == b"\x1f\x8b":
            script = script.replace("tar -x", "tar -x -z")
        done = await self.exec(["sh", "-c", script, "sh", path], stdin=archive)
        if done.exit_code != 0:
            reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
            raise SandboxError(f"cannot unpack an archive into {path!r} in the sandbox: {reason}")


@dataclass(frozen=True, slots=True)
class SandboxEntry:
    """An existing sandbox, as `SandboxProvider.list` returns it.

    Args:
        id: `Sandbox.id`, which is also its name in the provider's own tools.
        owner: State of the run that opened the sandbox; "unknown" if this host cannot tell, for example
            because the run is on another host.
        image: The image, as the provider names it; None without one.
        flavor: `Sandbox.flavor`.
        created: Time of creation, with a time zone; None if unknown.
        details: Further facts that identify the sandbox, such as its state; name → value.
    """

    id: str
    owner: OwnerState
    image: str | None = None
    flavor: str | None = None
    created: datetime | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class SandboxProvider(Protocol):
    """Opens sandboxes. One instance serves a whole run with many concurrent sandboxes."""

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Open one sandbox. Leaving the context destroys it, shielded from cancellation.

        If a step of opening fails, the provider closes everything that it opened before. A rollout opens its
        sandbox in a task of its own, and waits at most `swe_core.system.detached.SANDBOX_CLOSING` seconds
        for the end of that task.

        Raises:
            PolicyRefused: The provider cannot enforce something in `spec`.
            ImageNotFound: The image is absent and cannot be pulled.
            SandboxError: The provider failed.
        """
        ...

    def notes(self) -> Sequence[str]:
        """Return one sentence for each thing that this provider does not isolate on this machine."""
        ...

    async def list(self) -> Sequence[SandboxEntry]:
        """Return the existing sandboxes of all runs that have an owner's label.

        Raises:
            SandboxError: The provider cannot list them, for example because the service does not answer.
        """
        ...

    async def reap(self) -> int:
        """Destroy the sandboxes of runs that have ended (`list` calls their owner "gone").

        Sandboxes of runs that are alive or unknown stay.

        Returns:
            The number of destroyed sandboxes.

        Raises:
            SandboxError: The provider cannot list them, for example because the service does not answer.
        """
        ...


@runtime_checkable
class SelectiveProvider(SandboxProvider, Protocol):
    """A provider that refuses some policies or limits, and reports it before a sandbox is opened.

    Every provider with a method `check_supported` is one.
    """

    def check_supported(self, spec: SandboxSpec) -> None:
        """Raise what `open` would raise for every sandbox of a run, if this is known already.

        A run calls this before it starts anything, with the settings alone, and again after `reap`. The
        method opens nothing and sends no requests.

        Args:
            spec: Network and limits of all sandboxes of one purpose, without assets and without what comes
                from a task (image, repository, workdir).

        Raises:
            PolicyRefused: The provider cannot enforce something in `spec`.
        """
        ...
