"""The address of the Docker Engine, as the environment and Docker's contexts give it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from docker.context import ContextAPI
from docker.errors import DockerException
from docker.utils import kwargs_from_env

from swe_core.errors import ConfigError

_DEFAULT = "unix:///var/run/docker.sock"
_FORWARD = "ssh -fNL /tmp/docker.sock:/var/run/docker.sock HOST"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the engine is.

    Args:
        url: The address as the user wrote it.
        path: Path of its socket; "" for one that is reached by TCP.
    """

    url: str
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def place(self) -> str:
        """The engine's host, for messages."""
        return "this host" if self.path else f"the Docker host {self.url!r}"


def resolve() -> Address:
    """Return the address that docker-py would use: DOCKER_HOST, else that of Docker's context.

    Raises:
        ConfigError: It is wrong, or of a kind that cannot carry the streams of commands.
    """
    try:
        found = kwargs_from_env()
        if "base_url" not in found:
            found |= ContextAPI.kwargs_from_context()
        url = str(found.get("base_url") or _DEFAULT).replace("http+unix:", "unix:", 1)
        parts = urlsplit(url)
        port = parts.port
    except (DockerException, ValueError) as error:
        raise ConfigError(f"the address of the Docker Engine cannot be read: {error}") from None
    if parts.scheme == "unix":
        return Address(url, "/" + url.removeprefix("unix://").lstrip("/"))
    # Raw streams need connections of which one direction can end: neither TLS nor docker-py's ssh has them.
    if parts.scheme in ("tcp", "http") and parts.hostname and port and "tls" not in found:
        return Address(url, host=parts.hostname, port=port)
    if parts.scheme in ("ssh", "https", "tcp", "http"):
        raise ConfigError(
            f"the Docker Engine at {url!r} is not reached by a socket or by TCP without TLS: forward its "
            f"socket (`{_FORWARD}`) and set DOCKER_HOST=unix:///tmp/docker.sock"
        )
    raise ConfigError(
        f"{url!r} is no address of a Docker Engine: set DOCKER_HOST to unix:///PATH or tcp://HOST:PORT"
    )
