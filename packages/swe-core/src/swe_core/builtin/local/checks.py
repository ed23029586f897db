"""Checks of what local sandboxes need on this machine."""

from __future__ import annotations

import platform
import sys

from swe_core.api.checks import Check, Finding
from swe_core.builtin.local import limits, seccomp
from swe_core.builtin.local.bwrap import find_bwrap, why_not


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


CHECKS = (
    Check("bubblewrap", "--sandbox local", isolation),
    Check("cgroups", "limits of local sandboxes", cgroups),
    Check("system calls", "the filter of local sandboxes", system_calls),
)
