"""DockerProvider: opens, destroys and reaps containers."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from docker.errors import APIError
from docker.errors import ImageNotFound as Absent
from docker.types import Mount

from swe_core.api.sandbox import Sandbox, SandboxEntry, SandboxSpec
from swe_core.errors import HostDied, ImageNotFound, PolicyRefused, SandboxError
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
from swe_sandbox_docker.hosts import Engine, Host, Hosts
from swe_sandbox_docker.lifeline import Lifeline, ShellEnded
from swe_sandbox_docker.sandbox import DockerSandbox
from swe_sandbox_docker.seccomp import MACHINES, profile

logger = logging.getLogger(__name__)

_TRUST = "set sandbox.docker.seccomp to 'engine' to trust its own"


class DockerProvider:
    """One container per sandbox, on the Docker Engines of the settings. It connects at the first use.

    Raises:
        ConfigError: The environment names an engine, and its address is wrong or its TLS files are missing.
    """

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._hosts = Hosts(resolve(config.hosts, config.tls), config)

    def check_supported(self, spec: SandboxSpec) -> None:
        """See `SelectiveProvider.check_supported`. An engine's limits are checked once it is connected."""
        require_short_path()
        for host in self._hosts.all:
            if host.engine is not None:
                require_limits(host.engine.client)
                self._seccomp(host.engine.client, spec)

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
        """See `SandboxProvider.open`. What one host cannot do is tried on the next."""
        image = check(spec)
        failed: list[Host] = []
        error: SandboxError | None = None
        async with AsyncExitStack() as stack:
            while (chosen := await self._hosts.choose(image, failed)) is not None:
                try:
                    sandbox = await stack.enter_async_context(self._open_on(*chosen, spec, image))
                    break
                except (HostDied, ImageNotFound) as caught:
                    failed.append(chosen[0])
                    error = caught
            else:
                raise _nowhere(image, error, len(failed))
            yield sandbox

    @asynccontextmanager
    async def _open_on(
        self, host: Host, engine: Engine, spec: SandboxSpec, image: str
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox on a live host."""
        client = engine.client
        host.opened += 1
        try:
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
                    user = await client.call(
                        self._make, engine, name, spec, image, configured, mounts, seccomp
                    )
                    async with background_task_group() as tasks:
                        lifeline = Lifeline(client, name, tasks)
                        said = await self._start(lifeline, image)
                        if seccomp and FILTERED not in said and spec.network != "full":
                            raise _unfiltered(client, spec)
                        if len(self._hosts.all) > 1:
                            tasks.start_soon(self._hosts.put_back)
                            tasks.start_soon(self._hosts.pull_ahead, image)
                        sandbox = DockerSandbox(client, name, spec, user, sockets, tasks, lifeline)
                        sandbox.image_id = found["Id"]
                        yield sandbox
                finally:
                    with anyio.CancelScope(shield=True):
                        await host.remove(name)
        finally:
            host.opened -= 1

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
            engine.images.present.pop(image, None)
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
        if not self._hosts.live:
            self._hosts.connect()  # `open` will raise what is wrong
        found: list[str] = []
        for host in self._hosts.all:
            if host.engine is not None:
                found += self._notes_of(host.engine)
            elif len(self._hosts.all) > 1:
                found.append(f"A Docker host is left out until it answers: {host.problem}.")
        return list(dict.fromkeys(found))

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
        """See `SandboxProvider.list`. Of several hosts, those that answer are listed."""
        several = len(self._hosts.all) > 1
        found = []
        for host, engine in await self._hosts.answering():
            details = {"host": host.address.url} if several else {}
            found += [_entry(container, details) for container in await engine.containers()]
        return found

    async def reap(self) -> int:
        """See `SandboxProvider.reap`. A host that does not answer is reaped when it does."""
        count = 0
        for _, engine in await self._hosts.answering():
            count += await engine.reap()
        await anyio.to_thread.run_sync(directories.reap)
        return count


def _entry(container: Mapping[str, Any], details: Mapping[str, str]) -> SandboxEntry:
    return SandboxEntry(
        id=container["Names"][0].removeprefix("/"),
        owner=process_state(container["Labels"][LABEL]),
        image=container["Image"],
        created=datetime.fromtimestamp(container["Created"], UTC),
        details={"status": container["Status"], **details},
    )


def _nowhere(image: str, error: SandboxError | None, tried: int) -> SandboxError:
    """Return the error for a sandbox that no live host could open; `error` is the last host's."""
    if isinstance(error, ImageNotFound):
        return (
            error if tried == 1 else ImageNotFound(f"no Docker host can provide the image {image!r}: {error}")
        )
    return SandboxError(f"no Docker host is left to open a sandbox of the image {image!r}: {error}")


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
