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

    Providers that share the host's disk mount it; others upload it, once per `digest` where they can.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    path: Path
    digest: str = Field(description="changes whenever the content does; a cache key")


class SandboxSpec(BaseModel):
    """What a rollout asks of a provider. Serialisable, so that a rollout can be run elsewhere.

    A provider that cannot enforce one of these raises `PolicyRefused` instead of ignoring it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    image: str | None = None
    repository: Path | None = Field(
        default=None, description="host directory copied (privately, writably) to `workdir`"
    )
    workdir: str = "/testbed"
    assets: tuple[Asset, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, description="environment of every process inside")
    network: Network = "llm"
    memory_mb: int = Field(default=4096, gt=0, description="memory of the whole sandbox, MiB")
    cpus: float = Field(default=2.0, gt=0)
    pids: int = Field(default=512, gt=0, description="processes and threads at once")
    disk_mb: int = Field(default=4096, gt=0, description="what the sandbox may write, MiB")
    write_protect: bool = Field(default=False, description="whether `Sandbox.protect` is to be used")
    labels: dict[str, str] = Field(default_factory=dict, description="shown by the provider's own tools")

    def for_grading(self) -> SandboxSpec:
        """Return the same sandbox for a grader: without a network and without the agent's assets."""
        return self.model_copy(update={"network": "none", "assets": ()})


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The end of one command.

    Args:
        exit_code: The command's own exit code; 128+N where signal N killed it.
        stdout: At most `max_output` bytes, from the start.
        stderr: The same for standard error.
        truncated: Whether either stream was longer than what is kept.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False

    @property
    def text(self) -> str:
        """stdout as text, undecodable bytes replaced."""
        return self.stdout.decode(errors="replace")


class Process(ABC):
    """A running command inside a sandbox."""

    @abstractmethod
    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield chunks of stdout and stderr as they come; ends when the command has ended.

        Back-pressure: a command whose output is not consumed blocks once the buffers are full. May be
        called once. A background child that keeps the streams open does not keep this from ending.

        Raises:
            SandboxDied: The sandbox went away.
        """

    @abstractmethod
    async def wait(self) -> int:
        """Wait for the command and return its exit code, 128+N where signal N killed it.

        Raises:
            SandboxDied: The sandbox went away.
        """

    @abstractmethod
    async def kill(self) -> None:
        """Kill the command and every process it started (SIGKILL). Does nothing when they have ended."""


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
    """One open sandbox. A provider implements `start`, `kill_all` and `reach`; the rest follows from them,
    and may be overridden where the provider has a better way.

    Paths inside are absolute POSIX paths. Every method raises `SandboxDied` when the sandbox is gone. Until
    it is closed, a shielded scope can use all of it, also when all around was cancelled: so commands are
    killed.
    """

    id: str
    spec: SandboxSpec
    image_id: str | None = None
    """What `spec.image` stood for when it was opened: a content id that changes whenever the image does."""
    flavor: str | None = None
    """What the provider bills by, such as a kind of hardware; None where nobody bills."""

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

        Args:
            argv: The program and its arguments; no shell is involved.
            cwd: Working directory, default `spec.workdir`.
            env: Added to `spec.env`.
            stdin: Fed to the command and closed; None is an empty standard input (never an open pipe).

        A program that cannot be found or executed is a command that fails, with exit code 127 or 126 as
        a shell would say, not an exception.
        """

    @abstractmethod
    async def kill_all(self) -> None:
        """Kill every process inside but the provider's own (SIGKILL). A fork bomb does not outrun it.

        The sandbox stays usable. What `reach` started may die with it.

        Raises:
            SandboxBroken: All were killed, but the sandbox cannot be used any more, and that is the deed of
                the code inside: it removed or replaced something that the provider needs there.
        """

    @abstractmethod
    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        """Make a host endpoint reachable from inside for the time of the context.

        Args:
            endpoint: URL of a server on this host, e.g. `http://127.0.0.1:8123`, without a path.

        Yields:
            The URL at which code inside the sandbox finds that server; nothing else becomes reachable.

        Raises:
            PolicyRefused: `spec.network` is `none`.
            SandboxError: The sandbox has no means to relay (no python3 and no node inside).
        """

    async def protect(self, paths: Sequence[str]) -> bool:
        """Keep code inside from changing or replacing these files, until the sandbox is closed. Used once,
        and only where `spec.write_protect` said so.

        Args:
            paths: Regular files.

        Returns:
            Whether they are protected now: not every provider can do it, and then nothing has changed.

        Raises:
            SandboxError: It failed.
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
        """Run a command to its end; arguments as in `start`.

        Args:
            timeout: Seconds; None is no limit of its own.
            max_output: Bytes kept per stream; more is read and thrown away, so the command never blocks.

        Raises:
            SandboxTimeout: The time was up; the process tree inside was killed.
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
            if exit_code is None:  # timed out, cancelled or failed: nothing of it may live on
                await closed(process.kill, f"the end of the command {argv[0]!r}", SandboxError)
        return ExecResult(
            exit_code, bytes(captured.parts["stdout"]), bytes(captured.parts["stderr"]), captured.truncated
        )

    async def read(self, path: str, *, max_bytes: int = MAX_OUTPUT) -> bytes:
        """The content of a file.

        Raises:
            SandboxError: It is not there, is not readable, or is larger than `max_bytes`.
        """
        done = await self.exec(["cat", "--", path], max_output=max_bytes)
        if done.exit_code != 0:
            reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
            raise SandboxError(f"cannot read {path!r} in the sandbox: {reason}")
        if done.truncated:
            raise SandboxError(f"{path!r} in the sandbox is larger than the {max_bytes} bytes allowed")
        return done.stdout

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file with these bytes and this mode; parents are made.

        Raises:
            SandboxError: The file could not be written (the disk is full, the path is read-only).
        """
        script = 'mkdir -p -- "$2" && cat >"$1" && chmod "$3" "$1"'
        argv = ["sh", "-c", script, "sh", path, posixpath.dirname(path) or "/", f"{mode:o}"]
        done = await self.exec(argv, stdin=data)
        if done.exit_code != 0:
            reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
            raise SandboxError(f"cannot write {path!r} in the sandbox: {reason}")

    async def put_archive(self, path: str, archive: bytes) -> None:
        """Unpack a tar archive (plain or gzip) into the directory `path`, which is made.

        Raises:
            SandboxError: It could not be unpacked.
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
    """One sandbox that exists, as `SandboxProvider.list` found it.

    Args:
        id: `Sandbox.id`; the provider's own tools know it by this name.
        owner: Whether the run that opened it lives. "unknown" where that cannot be judged from here, say
            because it runs on another host.
        image: What it was opened from, as the provider calls it; None where there is no image.
        flavor: `Sandbox.flavor`.
        created: When it was made, with a time zone; None where nobody wrote that down.
        details: What else helps to recognise it, such as its state; name → value.
    """

    id: str
    owner: OwnerState
    image: str | None = None
    flavor: str | None = None
    created: datetime | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class SandboxProvider(Protocol):
    """Opens sandboxes. One instance serves a whole run, many sandboxes at once."""

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Open one sandbox; leaving the context destroys it, shielded from cancellation.

        A rollout opens it in a task of its own, and waits for its end at most so many seconds as
        `swe_core.system.detached.SANDBOX_CLOSING` says.

        Everything opened is closed, also when a later step of opening fails.

        Raises:
            PolicyRefused: The provider cannot enforce something in `spec`.
            ImageNotFound: The image is absent and cannot be pulled.
            SandboxError: It could not be opened.
        """
        ...

    def notes(self) -> Sequence[str]:
        """Sentences about what this provider does not isolate on this machine; empty when nothing."""
        ...

    async def list(self) -> Sequence[SandboxEntry]:
        """The sandboxes that exist, of whichever run, as far as they bear its owner's label.

        Raises:
            SandboxError: They cannot be had, say because the service does not answer.
        """
        ...

    async def reap(self) -> int:
        """Destroy what runs that no longer live left behind, and return how many sandboxes that were: all
        those that `list` calls "gone". Those of a run that is alive, or cannot be judged, are not touched.

        Raises:
            SandboxError: They cannot be had, say because the service does not answer.
        """
        ...


@runtime_checkable
class SelectiveProvider(SandboxProvider, Protocol):
    """A provider that refuses some policy or limit, and can say so before anything is opened.

    Whoever has `refuse` is one; a provider that opens whatever it is asked for needs none.
    """

    def check_supported(self, spec: SandboxSpec) -> None:
        """Refuse what `open` would refuse of every sandbox of a run, as far as that is known by now.

        Asked when nothing is started yet, so of the settings alone, and once more after `reap`, which has
        found out what there is. Asks nobody, opens nothing.

        Args:
            spec: The network and the limits of all sandboxes of a kind; what comes from a task (image,
                repository, workdir) and the assets are not in it.

        Raises:
            PolicyRefused: The provider cannot enforce something in `spec`.
        """
        ...
