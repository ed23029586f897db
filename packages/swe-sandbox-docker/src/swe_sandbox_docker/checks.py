"""Checks of what container sandboxes need."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from swe_core.api.checks import Check, Finding
from swe_core.errors import SandboxError
from swe_core.system.plural import counted

_SECONDS = 10
_LITTLE = 10 * 2**30
"""Minimum free bytes. Task images have 1 to 4 GB each."""


def engine() -> Finding:
    """Check that a Docker Engine answers, and report which limits it can enforce."""
    from swe_sandbox_docker.client import Client, resolve_host

    try:
        client = Client(resolve_host(None), timeout=_SECONDS)
    except SandboxError as error:
        return Finding.missing(str(error))
    client.api.close()
    limits = client.limits
    lacks = f"; it cannot limit {', '.join(limits.missing)}" if limits.missing else ""
    seccomp = (
        "" if limits.seccomp else "; it does not accept swe-core's seccomp profile (sandbox.docker.seccomp)"
    )
    about = f"{counted(limits.cpus, 'processor')}, {limits.storage}"
    text = f"Engine {limits.version} at {client.host}, {about}{lacks}{seccomp}"
    return Finding("ok", text)


def disk() -> Finding:
    """Check the free space for images, if this host can see the Engine's files."""
    from swe_sandbox_docker.client import Client, resolve_host

    try:
        client = Client(resolve_host(None), timeout=_SECONDS)
    except SandboxError:
        return Finding("info", "unknown without an Engine")
    try:
        info: dict[str, Any] = client.api.info()
    finally:
        client.api.close()
    root = Path(info["DockerRootDir"])
    if not root.is_dir():
        return Finding("info", f"unknown: {str(root)!r} is not on this host")
    free = shutil.disk_usage(root).free
    text = f"{free / 2**30:.1f} GiB free in {str(root)!r}, {counted(info['Images'], 'image')}"
    if free >= _LITTLE:
        return Finding("ok", text)
    return Finding("missing", text, "Make room, such as with `docker image prune --all`.")


CHECKS = (
    Check("Docker Engine", "--sandbox docker", engine),
    Check("disk for images", "--sandbox docker", disk),
)
