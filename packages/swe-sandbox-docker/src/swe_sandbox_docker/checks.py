"""Checks of what container sandboxes need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_core.api.checks import Check, Finding
from swe_core.errors import ConfigError, SandboxError
from swe_core.system.plural import counted
from swe_sandbox_docker.address import Address, resolve

if TYPE_CHECKING:
    from swe_sandbox_docker.client import Client

_SECONDS = 10
_LITTLE = 10 * 2**30
"""Minimum free bytes. Task images have 1 to 4 GB each."""
_FOR = "--sandbox docker"


def checks() -> Iterator[Check]:
    """Yield the checks of the engine and of its disk."""
    try:
        address = resolve()
    except ConfigError as error:
        wrong = Finding.missing(str(error))
        yield Check("Docker Engine", _FOR, lambda: wrong)
        return
    yield Check("Docker Engine", _FOR, partial(engine, address))
    yield Check("disk for images", _FOR, partial(disk, address))


def engine(address: Address) -> Finding:
    """Check that a Docker Engine answers, and report which limits it can enforce."""
    podman = next((path for path in _podman_sockets() if path.is_socket()), None)
    remedy = f"; set DOCKER_HOST to unix://{podman}, where Podman listens" if podman else ""
    return _asked(address, _engine, lambda problem: Finding.missing(f"{problem}{remedy}"))


def _engine(client: Client) -> Finding:
    limits = client.limits
    lacks = f"; it cannot limit {', '.join(limits.missing)}" if limits.missing else ""
    seccomp = (
        "" if limits.seccomp else "; it does not accept swe-core's seccomp profile (sandbox.docker.seccomp)"
    )
    about = f"{counted(limits.cpus, 'processor')}, {limits.storage}"
    kind = "Podman" if limits.podman else "Engine"
    return Finding("ok", f"{kind} {limits.version} at {client.host}, {about}{lacks}{seccomp}")


def _podman_sockets() -> Iterator[Path]:
    """Yield where Podman's service listens, if it does: the user's, then root's."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "podman/podman.sock")
    yield Path("/run/podman/podman.sock")


def disk(address: Address) -> Finding:
    """Check the free space for images, if this host can see the Engine's files."""
    return _asked(address, _disk, lambda _: Finding("info", "unknown without an Engine"))


def _disk(client: Client) -> Finding:
    info: dict[str, Any] = client.api.info()
    root = Path(info["DockerRootDir"])
    if not client.address.path or not root.is_dir():
        return Finding("info", f"unknown: {str(root)!r} is not on this host")
    free = shutil.disk_usage(root).free
    text = f"{free / 2**30:.1f} GiB free in {str(root)!r}, {counted(info['Images'], 'image')}"
    if free >= _LITTLE:
        return Finding("ok", text)
    return Finding("missing", text, "Make room, such as with `docker image prune --all`.")


def _asked(
    address: Address, look: Callable[[Client], Finding], otherwise: Callable[[str], Finding]
) -> Finding:
    from swe_sandbox_docker.client import Client

    try:
        client = Client(address, timeout=_SECONDS)
    except SandboxError as error:
        return otherwise(str(error))
    try:
        return look(client)
    finally:
        client.close()
