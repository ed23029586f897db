"""Addresses of Docker Engines, as settings and the environment give them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from swe_core.errors import ConfigError

DEFAULT_HOST = "unix:///var/run/docker.sock"
TLS_FILES = ("ca.pem", "cert.pem", "key.pem")
"""Files in Docker's folder of certificates: the authority, and the client's certificate and key."""
_FORMS = "unix:///PATH, tcp://HOST:PORT or ssh://[USER@]HOST[:PORT][/PATH]"
_NAME = re.compile(r"[A-Za-z0-9_.:%-]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is.

    Args:
        url: The address as the user wrote it.
        path: Path of the engine's socket, on this machine (`unix`) or on the other one (`ssh`).
        user: User for `ssh`; None leaves the choice to the ssh client.
        port: TCP port; None leaves the choice to the ssh client.
        tls: Folder with `TLS_FILES`; None for `unix` and `ssh`, and for `tcp` without TLS.
    """

    url: str
    kind: Literal["unix", "tcp", "ssh"]
    path: str = ""
    host: str = ""
    user: str | None = None
    port: int | None = None
    tls: Path | None = None


def parse(url: str, tls: Path | None = None) -> Address:
    """Return the address that `url` names.

    Args:
        tls: Folder with `TLS_FILES`, for `tcp`.

    Raises:
        ValueError: One sentence that says what is wrong.
    """
    if not url.strip():
        raise ValueError(f"the address of a Docker host is empty; expected {_FORMS}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"the Docker host {url!r} is no address ({error}); expected {_FORMS}") from None
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return Address(url, "unix", path=parts.path)
    if parts.scheme == "tcp" and parts.hostname and port and _is_bare(parts) and parts.path in ("", "/"):
        if tls is None and parts.hostname not in _LOOPBACK:
            raise ValueError(
                f"the Docker host {url!r} has no TLS, and without it everyone who reaches the port is root "
                "there; set sandbox.docker.tls (or DOCKER_CERT_PATH) to the folder with "
                f"{', '.join(TLS_FILES)}, or use ssh://"
            )
        return Address(url, "tcp", host=parts.hostname, port=port, tls=tls)
    if parts.scheme == "ssh" and _NAME.fullmatch(parts.hostname or "") and parts.password is None:
        path = parts.path.rstrip("/") or DEFAULT_HOST.removeprefix("unix://")
        return Address(url, "ssh", path, parts.hostname or "", parts.username, port)
    raise ValueError(f"the Docker host {url!r} is no address of a Docker Engine; expected {_FORMS}")


def _is_bare(parts: SplitResult) -> bool:
    return parts.username is None and not parts.query and not parts.fragment


def check_hosts(hosts: Sequence[str]) -> None:
    """Check addresses before anything is started.

    Raises:
        ValueError: An address is wrong, or listed twice.
    """
    seen: dict[tuple[object, ...], str] = {}
    for url in hosts:
        address = parse(url, Path())  # whether TLS is needed depends on the environment, too
        first = seen.setdefault((address.host, address.user, address.port, address.path), url)
        if first is not url:
            raise ValueError(f"the Docker host {url!r} is listed twice; list each engine once")


def check_tls(folder: Path) -> None:
    """Check that `folder` has the files for TLS.

    Raises:
        ValueError: One is missing.
    """
    missing = [name for name in TLS_FILES if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"the folder {str(folder)!r} lacks {' and '.join(missing)}; expected {', '.join(TLS_FILES)}, as "
            "in Docker's DOCKER_CERT_PATH"
        )


def resolve(hosts: Sequence[str] = (), tls: Path | None = None) -> Sequence[Address]:
    """Return the addresses of the settings; without any, that of DOCKER_HOST, else Docker's default.

    Without `tls`, DOCKER_CERT_PATH and DOCKER_TLS_VERIFY decide as for Docker's own client, but certificates
    are always verified.

    Raises:
        ConfigError: An address is wrong, or TLS is asked for and a file is missing.
    """
    urls = hosts or [os.environ.get("DOCKER_HOST") or DEFAULT_HOST]
    if tls is None and (path := os.environ.get("DOCKER_CERT_PATH")):
        tls = Path(path)
    if tls is None and os.environ.get("DOCKER_TLS_VERIFY"):
        tls = Path.home() / ".docker"
    try:
        found = [parse(url, tls) for url in urls]
        if tls is not None and any(address.kind == "tcp" for address in found):
            check_tls(tls)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return found
