"""Checks of what local sandboxes need on this machine."""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

from swe_core.api.checks import Check, Finding
from swe_core.api.sandbox import SandboxSpec
from swe_core.builtin.local import limits, seccomp
from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.builtin.local.image_tools import tools_here, why_no_tools
from swe_core.builtin.local.images import Image, Images
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import SandboxError
from swe_core.system.event_loop import run


def isolation() -> Finding:
    """Return whether bubblewrap can make user namespaces."""
    program = find_bwrap()
    obstacle = why_not(program)
    if obstacle is None:
        return Finding("ok", f"{program} makes user namespaces")
    without = "use containers, or accept to run without isolation: --set sandbox.local.unisolated=true"
    return Finding("missing", obstacle, f"If that cannot be, {without}.")


def cgroups() -> Finding:
    """Return whether the limits of sandboxes hold for all their processes together."""
    parents = limits.find_parents() if sys.platform == "linux" else None
    if parents is None:
        return Finding("info", "no cgroup is writable: memory is limited per process, processors not at all")
    if parents.cpu is None:
        return Finding("info", "memory and processes are limited, processors are not: no cpu controller")
    return Finding("ok", "memory, processes and processors are limited")


def system_calls() -> Finding:
    """Return whether there is a filter for this machine's system calls."""
    if seccomp.this_machine() is None:
        return Finding("info", f"there is no system call filter for {platform.machine()!r}")
    return Finding("ok", f"there is a filter for {platform.machine()}")


def images() -> Finding:
    """Return whether images can be unpacked, and opened without root."""
    obstacle = why_no_tools() or run(_why_it_does_not_open)
    if obstacle is not None:
        return Finding("info", f"tasks with an image cannot run: {obstacle}")
    return Finding("ok", f"{' and '.join(tools_here())} unpack images, and an overlay opens them")


class _Unpacked(Images):
    """An image that is on this host already: the directory itself."""

    async def ensure(self, reference: str, bwrap: str) -> Image:
        return Image("", self._directory, {}, "")


async def _why_it_does_not_open() -> str | None:
    """Return why a sandbox of an empty image does not open."""
    with tempfile.TemporaryDirectory() as empty:
        try:
            async with LocalProvider(images=_Unpacked(Path(empty))).open(SandboxSpec(image="empty")):
                return None
        except SandboxError as error:
            return str(error)


CHECKS = (
    Check("bubblewrap", "--sandbox local", isolation),
    Check("images", "tasks with an image in local sandboxes", images),
    Check("cgroups", "limits of local sandboxes", cgroups),
    Check("system calls", "the filter of local sandboxes", system_calls),
)
