"""Asynchronous client of the Docker Engine: docker-py in threads, and raw streams in the event loop.

docker-py blocks, so its calls run in worker threads. The streams of an exec are read here from the engine's
socket, for two reasons. A thread for each command would limit a run to some hundred commands, and docker-py's
own socket loses the data that arrives together with the head of the reply.
"""

from __future__ import annotations

import json
import os
import socket
import textwrap
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import docker
from anyio.abc import SocketStream
from docker.errors import APIError, DockerException

from swe_core.errors import SandboxDied, SandboxError
from swe_sandbox_docker.seccomp import MACHINES

DEFAULT_HOST = "unix:///var/run/docker.sock"
CALLS = 64
"""Maximum number of concurrent blocking calls; more wait."""
TIMEOUT = 120
"""Seconds that one call may take. Starting many containers on few cores is slow."""
_MAX_HEAD = 65536
_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the engine reports that it can enforce.

    Args:
        cpus: Number of processors.
        missing: Names of the limits that it cannot enforce.
        swap: Whether it can prevent a container from using swap beyond its memory.
        storage: Its storage driver and the file system under it.
        quota: Whether it may support a quota for all that a container writes.
        version: Its version.
        seccomp: Whether it can apply swe-core's seccomp profile to a container.
    """

    cpus: int
    missing: tuple[str, ...]
    swap: bool
    storage: str
    quota: bool
    version: str
    seccomp: bool


def resolve_host(configured: str | None) -> str:
    """Return the engine's address: the setting, else DOCKER_HOST, else Docker's default.

    Raises:
        SandboxError: The address is not a Unix socket. An engine on another machine cannot share directories
            and sockets.
    """
    host = configured or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    if not host.startswith("unix://"):
        raise SandboxError(
            f"the Docker Engine at {host!r} is not reached by a socket of this host, so sandboxes can share "
            "neither the agent's files nor the socket of its LLM endpoint with it; set DOCKER_HOST to "
            "unix:///PATH of an engine on this machine"
        )
    return host


class Client:
    """A client of one engine. Tasks of one event loop may share a client.

    Args:
        timeout: Seconds that one call may take.

    Raises:
        SandboxError: No engine answers at `host`.
    """

    def __init__(self, host: str, timeout: int = TIMEOUT) -> None:
        self.host = host
        self.socket = host.removeprefix("unix://")
        try:
            with socket.socket(socket.AF_UNIX) as probe:  # if this fails, docker-py would leak its socket
                probe.connect(self.socket)
            self.api = docker.APIClient(
                base_url=host, version="auto", timeout=timeout, max_pool_size=CALLS, num_pools=1
            )
            self.limits = _limits(self.api.info())
        except (DockerException, OSError) as error:
            raise SandboxError(
                f"no Docker Engine answers at {host!r}: {reason(error)}; start one, or set DOCKER_HOST to "
                "unix:///PATH of one that runs and that you may use"
            ) from None
        self._limiter = anyio.CapacityLimiter(CALLS)
        # A provider does not learn which sandbox is its last. The API client holds only idle connections.
        weakref.finalize(self, self.api.close)

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a blocking function of docker-py in a thread. Cancellation waits for its end.

        Raises:
            docker.errors.APIError: The engine refuses.
            SandboxError: The engine no longer answers.
        """
        try:
            return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), limiter=self._limiter)
        except APIError:
            raise
        except (DockerException, OSError) as error:
            raise SandboxError(
                f"the Docker Engine at {self.host!r} no longer answers: {reason(error)}"
            ) from error

    async def hijack(self, path: str, body: dict[str, Any]) -> tuple[SocketStream, bytearray]:
        """POST to a `path` of the API that replies with a raw stream, and take over the connection.

        Returns:
            The connection, and the bytes of the stream that arrived with the head of the reply.

        Raises:
            SandboxDied: The container no longer exists.
            SandboxError: The engine does not answer, or refuses.
        """
        content = json.dumps(body)
        request = (
            f"POST /v{self.api.api_version}{path} HTTP/1.1\r\nHost: docker\r\n"
            "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Length: {len(content)}\r\n\r\n{content}"
        )
        try:
            connection = await anyio.connect_unix(self.socket)
        except OSError as error:
            raise SandboxError(
                f"the Docker Engine at {self.host!r} no longer answers: {reason(error)}"
            ) from error
        try:
            await connection.send(request.encode())
            reply = b""
            while b"\r\n\r\n" not in reply and len(reply) < _MAX_HEAD:
                reply += await connection.receive()
            head, _, rest = reply.partition(b"\r\n\r\n")
            status = int(head.split(None, 2)[1])
            # The engine drops standard input that arrives before it has sent this reply.
            if status not in (101, 200):
                kind = SandboxDied if status in (404, 409) else SandboxError
                said = rest.decode(errors="replace").strip() or f"status {status}"
                raise kind(f"the Docker Engine refuses the streams of a container: {said}")
        except (anyio.EndOfStream, anyio.BrokenResourceError, IndexError, ValueError) as error:
            await anyio.aclose_forcefully(connection)
            raise SandboxError(f"the Docker Engine at {self.host!r} sent an invalid HTTP reply") from error
        except BaseException:  # also cancellation: clean up, then raise
            await anyio.aclose_forcefully(connection)
            raise
        return connection, bytearray(rest)


def reason(error: BaseException) -> str:
    """Return the engine's message, or the innermost cause of an exception, as one line.

    The line is shortened, because the engine may send a whole Go stack.
    """
    if isinstance(error, APIError) and error.explanation:
        text = str(error.explanation)
        if text.startswith("{"):  # older engines repeat the JSON of the reply
            with suppress(ValueError):
                text = str(json.loads(text).get("message", text))
        return _line(text)
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return _line(str(error)) or type(error).__name__


def _line(text: str) -> str:
    return textwrap.shorten(text, _MAX_REASON, placeholder=" …")


def _limits(info: dict[str, Any]) -> EngineLimits:
    named = {"MemoryLimit": "memory", "PidsLimit": "the number of processes", "CpuCfsQuota": "processor time"}
    status = dict(info.get("DriverStatus") or ())
    below = status.get("Backing Filesystem", "")
    driver = info.get("Driver", "")
    security = {option.partition(",")[0] for option in info.get("SecurityOptions") or ()}
    return EngineLimits(
        cpus=info["NCPU"],
        missing=tuple(words for key, words in named.items() if not info.get(key)),
        swap=bool(info.get("SwapLimit")),
        storage=f"{driver} on {below}" if below else driver,
        quota=driver in ("btrfs", "zfs", "devicemapper") or (driver == "overlay2" and below == "xfs"),
        version=info.get("ServerVersion") or "of unknown version",
        seccomp="name=seccomp" in security and info.get("Architecture") in MACHINES,
    )
