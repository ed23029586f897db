"""DockerProvider: opens, destroys and reaps containers."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from docker.errors import APIError
from docker.errors import ImageNotFound as Absent
from docker.types import Mount

from swe_core.api.sandbox import Sandbox, SandboxEntry, SandboxSpec
from swe_core.errors import ImageNotFound, PolicyRefused, SandboxError
from swe_core.sandboxing.background import background_task_group
from swe_core.system.process_owner import LABEL, process_state
from swe_sandbox_docker import directories
from swe_sandbox_docker.address import resolve
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.container import (
    FILTERED,
    User,
    check,
    create,
    fill,
    require_limits,
    resolve_user,
    shared_mounts,
)
from swe_sandbox_docker.directories import require_short_path, shared_directory
from swe_sandbox_docker.engine import Engine
from swe_sandbox_docker.lifeline import Lifeline, ShellEnded
from swe_sandbox_docker.sandbox import DockerSandbox
from swe_sandbox_docker.seccomp import MACHINES, profile

logger = logging.getLogger(__name__)

_TRUST = "set sandbox.docker.seccomp to 'engine' to trust its own"


class DockerProvider:
    """One container per sandbox, on the Docker Engine of the environment. It connects at the first use.

    Raises:
        ConfigError: The address of the engine is wrong, or of a kind that cannot be used.
    """

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._address = resolve()
        self._engine: Engine | None = None
        self._connecting = threading.Lock()

    def _connect(self) -> Engine:
        """Return the engine, connected again if it has once not answered. Blocking.

        Raises:
            SandboxError: It does not answer.
        """
        with self._connecting:
            if self._engine is None or self._engine.client.trouble is not None:
                self._engine = Engine(self._address, self._config)
            return self._engine

    async def _connected(self) -> Engine:
        return await anyio.to_thread.run_sync(self._connect, abandon_on_cancel=True)

    def check_supported(self, spec: SandboxSpec) -> None:
        """See `SelectiveProvider.check_supported`. The engine's limits are checked once it is connected."""
        require_short_path()
        if self._engine is not None:
            require_limits(self._engine.client)
            self._seccomp(self._engine.client, spec)

    def _seccomp(self, client: Client, spec: SandboxSpec) -> str | None:
        """Return the seccomp profile for a container of `spec`, or None for the engine's own.

        Raises:
            PolicyRefused: `spec` needs swe-core's profile, and the engine cannot apply it.
        """
        if self._config.seccomp == "engine":
            return None
        if not client.limits.seccomp and spec.network != "full":
            raise _unfiltered(client, spec)
        return profile() if client.limits.seccomp else None

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`."""
        image = check(spec)
        engine = await self._connected()
        client = engine.client
        require_limits(client)
        seccomp = self._seccomp(client, spec)
        found = await engine.images.ensure(image)
        configured = found["Config"].get("User") or ""
        name = f"swe-core-{secrets.token_hex(6)}"
        with ExitStack() as shared:
            sockets: Path | None = None
            if await engine.shares_files(image):
                sockets = shared.enter_context(shared_directory())
                mounts = shared_mounts(spec, sockets)
                if seccomp and client.limits.podman:
                    file = sockets.with_name("seccomp.json")  # it takes a path, not the profile itself
                    await anyio.Path(file).write_text(seccomp)
                    seccomp = str(file)
            else:
                mounts = await engine.assets.mounts(spec.assets, image)
            try:
                user = await client.call(self._make, engine, name, spec, image, configured, mounts, seccomp)
                async with background_task_group() as tasks:
                    lifeline = Lifeline(client, name, tasks)
                    said = await self._start(lifeline, image)
                    if seccomp and FILTERED not in said and spec.network != "full":
                        raise _unfiltered(client, spec)
                    sandbox = DockerSandbox(client, name, spec, user, sockets, tasks, lifeline)
                    sandbox.image_id = found["Id"]
                    yield sandbox
            finally:
                with anyio.CancelScope(shield=True):
                    await engine.remove(name)

    def _make(
        self,
        engine: Engine,
        name: str,
        spec: SandboxSpec,
        image: str,
        configured: str,
        mounts: Sequence[Mount],
        seccomp: str | None,
    ) -> User:
        """Create and fill the container. After a failure, `open` removes what it leaves. Blocking."""
        client = engine.client
        try:
            try:
                create(client, name, spec, image, mounts, quota=engine.quota, seccomp=seccomp)
            except APIError as error:
                if "storage-opt" not in reason(error) or not engine.quota:
                    raise
                engine.quota = False
                logger.warning(_no_quota(client))
                create(client, name, spec, image, mounts, quota=False, seccomp=seccomp)
            user = resolve_user(client, name, configured)
            fill(client, name, user, spec)
        except Absent:
            raise ImageNotFound(f"the image {image!r} was removed while a sandbox of it was opened") from None
        except APIError as error:
            raise _cannot_open(image, error) from None
        return user

    async def _start(self, lifeline: Lifeline, image: str) -> bytes:
        try:
            return await lifeline.start()
        except APIError as error:
            raise _cannot_open(image, error) from None
        except ShellEnded as ended:
            raise SandboxError(
                f"cannot open a sandbox of the image {image!r}: its shell (sh) does not run on this "
                f"machine: {ended}"
            ) from None

    def notes(self) -> Sequence[str]:
        """See `SandboxProvider.notes`."""
        with suppress(SandboxError):  # `open` will raise it
            return list(self._notes_of(self._connect()))
        return ()

    def _notes_of(self, engine: Engine) -> Iterator[str]:
        limits = engine.client.limits
        if not engine.quota:
            yield _no_quota(engine.client)
        if not limits.swap:
            yield "The kernel does not account for swap: a container may use swap beyond its memory_mb."
        if self._config.seccomp == "engine" or not limits.seccomp:
            yield (
                f"The Docker Engine ({limits.version}), not swe-core, filters the system calls of a "
                "container: it may let code inside open AF_VSOCK sockets, which no network policy confines."
            )

    async def list(self) -> Sequence[SandboxEntry]:
        """See `SandboxProvider.list`."""
        engine = await self._connected()
        return [_entry(container) for container in await engine.containers()]

    async def reap(self) -> int:
        """See `SandboxProvider.reap`."""
        engine = await self._connected()
        count = await engine.reap()
        await anyio.to_thread.run_sync(directories.reap)
        return count


def _entry(container: Mapping[str, Any]) -> SandboxEntry:
    return SandboxEntry(
        id=container["Names"][0].removeprefix("/"),
        owner=process_state(container["Labels"][LABEL]),
        image=container["Image"],
        created=datetime.fromtimestamp(container["Created"], UTC),
        details={"status": container["Status"]},
    )


def _unfiltered(client: Client, spec: SandboxSpec) -> PolicyRefused:
    return PolicyRefused(
        f"the Docker Engine at {client.host!r} does not apply swe-core's seccomp profile, and without it the "
        f"network policy {spec.network!r} has ways around it: use an engine with seccomp and runc on "
        f"{' or '.join(MACHINES)}, or {_TRUST}"
    )


def _cannot_open(image: str, error: APIError) -> SandboxError:
    said = f"cannot open a sandbox of the image {image!r}: {reason(error)}"
    if "seccomp" not in reason(error):
        return SandboxError(said)
    return PolicyRefused(f"{said}; use an engine that takes swe-core's profile, or {_TRUST}")


def _no_quota(client: Client) -> str:
    return (
        f"The storage of the Docker Engine ({client.limits.storage}) has no quotas: disk_mb bounds each file "
        "that a sandbox writes, not their sum."
    )
