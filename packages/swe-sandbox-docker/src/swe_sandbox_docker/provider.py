"""DockerProvider: opens, destroys and reaps containers."""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from docker.errors import APIError, NotFound
from docker.errors import ImageNotFound as Absent

from swe_core.api.sandbox import Sandbox, SandboxEntry, SandboxSpec
from swe_core.errors import ImageNotFound, PolicyRefused, SandboxError
from swe_core.sandboxing.background import background_task_group
from swe_core.sandboxing.relay.unix_socket import require_room
from swe_core.system.process_owner import LABEL, current_owner, is_orphaned, process_state
from swe_sandbox_docker.client import Client, reason, resolve_host
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.container import (
    FILTERED,
    User,
    check,
    create,
    fill,
    require_limits,
    resolve_user,
)
from swe_sandbox_docker.images import Images
from swe_sandbox_docker.lifeline import Lifeline, ShellEnded
from swe_sandbox_docker.sandbox import DockerSandbox
from swe_sandbox_docker.seccomp import MACHINES, profile

logger = logging.getLogger(__name__)

_DIRECTORY = "swe-docker-"
_RANDOM = "00000000"  # as long as the random part of mkdtemp
_SHARED = "s"
_OWNER = "owner"
_CONFLICT = 409
_TRUST = "set sandbox.docker.seccomp to 'engine' to trust its own"


class DockerProvider:
    """One container per sandbox, on a Docker Engine of this host. It connects at the first use."""

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._connecting = threading.Lock()
        self._connected: tuple[Client, Images] | None = None
        self._quota = True  # until the engine refuses one

    def _connect(self) -> tuple[Client, Images]:
        """Return the client and the images, after connecting once. Blocking."""
        with self._connecting:
            if self._connected is None:
                client = Client(resolve_host(self._config.host))
                self._connected = client, Images(client, self._config.pull)
            return self._connected

    def check_supported(self, spec: SandboxSpec) -> None:
        """See `SelectiveProvider.check_supported`. The engine's limits are checked once it is connected."""
        require_room(Path(tempfile.gettempdir(), f"{_DIRECTORY}{_RANDOM}", _SHARED))
        if self._connected is not None:
            require_limits(self._connected[0])
            self._seccomp(self._connected[0], spec)

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
        client, images = await anyio.to_thread.run_sync(self._connect)
        image = check(spec, client)
        seccomp = self._seccomp(client, spec)
        found = await images.ensure(image)
        configured = found["Config"].get("User") or ""
        name = f"swe-core-{secrets.token_hex(6)}"
        with _socket_directory() as sockets:
            try:
                user = await client.call(self._make, client, name, spec, image, configured, sockets, seccomp)
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
                    await self._remove(client, name)

    def _make(
        self,
        client: Client,
        name: str,
        spec: SandboxSpec,
        image: str,
        configured: str,
        sockets: Path,
        seccomp: str | None,
    ) -> User:
        """Create and fill the container. After a failure, `open` removes what it leaves. Blocking."""
        quota = self._quota and client.limits.quota
        try:
            try:
                create(client, name, spec, image, sockets, quota=quota, seccomp=seccomp)
            except APIError as error:
                if "storage-opt" not in reason(error) or not self._quota:
                    raise
                self._quota = False
                logger.warning(_no_quota(client))
                create(client, name, spec, image, sockets, quota=False, seccomp=seccomp)
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

    async def _remove(self, client: Client, name: str) -> None:
        try:
            await client.call(client.api.remove_container, name, force=True, v=True)
        except NotFound:
            return
        except (APIError, SandboxError) as error:
            if not (isinstance(error, APIError) and error.status_code == _CONFLICT):  # already being removed
                logger.warning("the container %s is left for the next run to remove: %s", name, reason(error))

    def notes(self) -> Sequence[str]:
        """See `SandboxProvider.notes`."""
        try:
            client, _ = self._connect()
        except SandboxError:
            return ()  # `open` will raise it
        found = []
        if not (self._quota and client.limits.quota):
            found.append(_no_quota(client))
        if not client.limits.swap:
            found.append(
                "The kernel does not account for swap: a container may use swap beyond its memory_mb."
            )
        if self._config.seccomp == "engine" or not client.limits.seccomp:
            found.append(
                f"The Docker Engine ({client.limits.version}), not swe-core, filters the system calls of a "
                "container: it may let code inside open AF_VSOCK sockets, which no network policy confines."
            )
        return found

    async def list(self) -> Sequence[SandboxEntry]:
        """See `SandboxProvider.list`."""
        _, found = await self._containers()
        return [_entry(container) for container in found]

    async def reap(self) -> int:
        """See `SandboxProvider.reap`."""
        client, found = await self._containers()
        abandoned = [container["Id"] for container in found if is_orphaned(container["Labels"][LABEL])]
        async with anyio.create_task_group() as removals:
            for container in abandoned:
                removals.start_soon(self._remove, client, container)
        await anyio.to_thread.run_sync(_reap_directories)
        return len(abandoned)

    async def _containers(self) -> tuple[Client, Sequence[Mapping[str, Any]]]:
        """Return the client, and the engine's containers that are sandboxes.

        Raises:
            SandboxError: No engine answers.
        """
        client, _ = await anyio.to_thread.run_sync(self._connect)
        return client, await client.call(client.api.containers, all=True, filters={"label": LABEL})


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


@contextmanager
def _socket_directory() -> Iterator[Path]:
    """Provide a directory for the container, inside a private one that names its owner process."""
    private = Path(tempfile.mkdtemp(prefix=_DIRECTORY))
    try:
        (private / _OWNER).write_text(current_owner())
        shared = private / _SHARED
        shared.mkdir()
        shared.chmod(0o755)  # despite the umask: the sandbox's user must reach the socket
        yield shared
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _reap_directories() -> None:
    for private in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY}*"):
        try:
            owner = (private / _OWNER).read_text()
        except OSError:
            continue  # another user's, or incomplete
        if is_orphaned(owner):
            shutil.rmtree(private, ignore_errors=True)
