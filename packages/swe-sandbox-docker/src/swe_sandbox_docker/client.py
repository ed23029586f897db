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
import httpx
from anyio.abc import ByteStream
from docker.errors import APIError, DockerException

from swe_core.errors import SandboxDied, SandboxError
from swe_sandbox_docker.address import Address
from swe_sandbox_docker.seccomp import MACHINES

CALLS = 64
"""Maximum number of concurrent blocking calls; more wait."""
TIMEOUT = 120
"""Seconds that one call may take. Starting many containers on few cores is slow."""
_CONNECT = 10
"""Seconds to connect to an engine on another machine."""
_REMEDY = "start one, or set DOCKER_HOST to unix:///PATH of one that runs and that you may use"
_GO_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Podman's names of architectures → Docker's, which are the kernel's."""
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
        podman: Whether it is Podman, which reads a profile from a file of this host.
        ipv6: Whether its kernel is this one, and has IPv6; False where that is not known.
    """

    cpus: int
    missing: tuple[str, ...]
    swap: bool
    storage: str
    quota: bool
    version: str
    seccomp: bool
    podman: bool = False
    ipv6: bool = False


class Client:
    """A client of one engine. Tasks of one event loop may share a client.

    Args:
        timeout: Seconds that one call may take.

    Attributes:
        trouble: Why the engine has once not answered; None as long as it answers.

    Raises:
        SandboxError: No engine answers at `address`.
    """

    def __init__(self, address: Address, timeout: int = TIMEOUT) -> None:
        self.address = address
        self.host = address.url
        self.trouble: str | None = None
        try:
            self._probe()  # if this fails, docker-py would leak its socket
            self.api = docker.APIClient(address.url, "auto", timeout, max_pool_size=CALLS, num_pools=1)
            self.limits = _limits(self.api.info(), self.api.version())
        except (DockerException, OSError) as error:
            raise SandboxError(
                f"no Docker Engine answers at {self.host!r}: {reason(error)}; {_REMEDY}"
            ) from None
        self._limiter = anyio.CapacityLimiter(CALLS)
        # A provider does not learn which sandbox is its last. The API client holds only idle connections.
        weakref.finalize(self, self.api.close)

    def close(self) -> None:
        """Close the connections of blocking calls."""
        self.api.close()

    def _probe(self) -> None:
        """Connect once, within seconds: docker-py waits for as long as a call may take."""
        if self.address.path:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.address.path)
        else:
            socket.create_connection((self.address.host, self.address.port), timeout=_CONNECT).close()

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
            raise self.lost(error) from error

    def lost(self, error: BaseException) -> SandboxError:
        """Note that the engine no longer answers, and return the error to raise."""
        self.trouble = reason(error)
        return SandboxError(f"the Docker Engine at {self.host!r} no longer answers: {self.trouble}")

    def http(self) -> tuple[str, httpx.AsyncHTTPTransport]:
        """Return the URL of the API, and a new transport to it."""
        path = f"v{self.api.api_version}"
        if self.address.path:
            return f"http://docker/{path}", httpx.AsyncHTTPTransport(uds=self.address.path)
        return f"{self.api.base_url}/{path}", httpx.AsyncHTTPTransport(trust_env=False)

    async def _dial(self) -> ByteStream:
        if self.address.path:
            return await anyio.connect_unix(self.address.path)
        return await anyio.connect_tcp(self.address.host, self.address.port)

    async def hijack(self, path: str, body: dict[str, Any]) -> tuple[ByteStream, bytearray]:
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
            connection = await self._dial()
        except OSError as error:
            raise self.lost(error) from error
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
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            await anyio.aclose_forcefully(connection)
            raise self.lost(error) from error
        except (IndexError, ValueError) as error:
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


def _limits(info: dict[str, Any], version: dict[str, Any]) -> EngineLimits:
    named = {"MemoryLimit": "memory", "PidsLimit": "the number of processes", "CpuCfsQuota": "processor time"}
    status = dict(info.get("DriverStatus") or ())
    below = status.get("Backing Filesystem", "")
    driver = info.get("Driver", "")
    security = {option.partition(",")[0] for option in info.get("SecurityOptions") or ()}
    machine = info.get("Architecture", "")
    return EngineLimits(
        cpus=info["NCPU"],
        missing=tuple(words for key, words in named.items() if not info.get(key)),
        swap=bool(info.get("SwapLimit")),
        storage=f"{driver} on {below}" if below else driver,
        quota=driver in ("btrfs", "zfs", "devicemapper") or (driver == "overlay2" and below == "xfs"),
        version=info.get("ServerVersion") or "of unknown version",
        seccomp="name=seccomp" in security and _GO_NAMES.get(machine, machine) in MACHINES,
        podman=any(part["Name"] == "Podman Engine" for part in version.get("Components") or ()),
        ipv6=info.get("KernelVersion") == os.uname().release and os.path.exists("/proc/sys/net/ipv6"),
    )
