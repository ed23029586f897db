"""Limits of a local sandbox: cgroups if this process may create them, else rlimits."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from swe_core.api.sandbox import SandboxSpec

ROOT = Path("/sys/fs/cgroup")
_RMDIR_PATIENCE = 2.0
_OPEN_FILES = 65536  # programs that close all descriptors take minutes where there are millions
_PERIOD_US = 100_000
_SUPERVISION = 2  # bwrap and the supervisor, which are in the sandbox's cgroup


@dataclass(frozen=True, slots=True)
class CgroupParents:
    """The parents of new cgroups.

    Args:
        memory: The parent of the cgroups that limit memory.
        pids: The same for processes.
        cpu: The same for processor time; None where only that cannot be limited.
        unified: Whether this is cgroup v2, where the three are one directory.
    """

    memory: Path
    pids: Path
    cpu: Path | None
    unified: bool

    def limits(self, name: str, spec: SandboxSpec) -> dict[Path, str]:
        """Return the files of the cgroups `name` that hold the limits of `spec`, and what to write.

        The disk of a sandbox is memory, so the limit is the sum of both budgets.
        """
        size = str((spec.memory_mb + spec.disk_mb) * 2**20)
        pids = str(spec.pids + _SUPERVISION)
        quota = str(int(spec.cpus * _PERIOD_US))
        memory, cpu = "memory.limit_in_bytes", "cpu.cfs_quota_us"
        if self.unified:
            memory, cpu, quota = "memory.max", "cpu.max", f"{quota} {_PERIOD_US}"
        limits = {self.memory / name / memory: size, self.pids / name / "pids.max": pids}
        if self.cpu is not None:
            limits[self.cpu / name / cpu] = quota
        return limits


def find_parents() -> CgroupParents | None:
    """Return where this process can create cgroups for memory and processes; None if it cannot."""
    own: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                own[controller] = path.lstrip("/")
    if "memory" in own and "pids" in own:
        memory, pids = ROOT / "memory" / own["memory"], ROOT / "pids" / own["pids"]
        if _limits(memory, "memory.limit_in_bytes") and _limits(pids, "pids.max"):
            cpu = ROOT / "cpu" / own["cpu"] if "cpu" in own else None
            usable = cpu is not None and _limits(cpu, "cpu.cfs_quota_us")
            return CgroupParents(memory, pids, cpu if usable else None, unified=False)
    if "" in own:
        # Our own cgroup cannot limit groups below itself while we are in it; its parent can.
        for group in (ROOT / own[""], (ROOT / own[""]).parent):
            if group.is_relative_to(ROOT) and _limits(group, "memory.max", "pids.max"):
                return CgroupParents(group, group, group if _limits(group, "cpu.max") else None, unified=True)
    return None


def _limits(parent: Path, *files: str) -> bool:
    """Return whether a group made in `parent` can be limited through `files`, and entered."""
    probe = parent / f"swe-core-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return all(os.access(probe / file, os.W_OK) for file in (*files, "cgroup.procs")) and os.access(
            parent / "cgroup.procs", os.W_OK
        )
    finally:
        probe.rmdir()


def make(limits: dict[Path, str]) -> list[Path]:
    """Create the cgroups of these limits. Returns the files that a process writes its pid to, to enter."""
    groups = list(dict.fromkeys(file.parent for file in limits))
    for group in groups:
        group.mkdir()
    for file, value in limits.items():
        file.write_text(value)
    for group in groups:
        with suppress(OSError):  # no swap to limit on this machine
            (group / "memory.swap.max").write_text("0")
    return [group / "cgroup.procs" for group in groups]


def ran_out_of_memory(groups: list[Path]) -> bool:
    """Return whether a limit of these cgroups was reached so that the kernel had to kill, as it says itself.

    A machine without memory kills as well, but reaches no limit of a cgroup.
    """
    for group in groups:
        if _count(group / "memory.events", "oom") > 0:
            return True
        limit = _count(group / "memory.failcnt")  # version 1
        if limit > 0 and _count(group / "memory.oom_control", "oom_kill") > 0:
            return True
    return False


def _count(file: Path, name: str = "") -> int:
    """Return a number of a cgroup's file, 0 where it has none."""
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.rpartition(" ")
            if key == name:
                return int(value)
    return 0


async def remove(groups: list[Path]) -> None:
    """Kill the remaining processes of these cgroups, and remove the cgroups."""
    for group in groups:
        with anyio.move_on_after(_RMDIR_PATIENCE):
            while group.exists():
                for pid in _members(group):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                try:
                    group.rmdir()
                except OSError:
                    await anyio.sleep(0.005)  # v1 has no event for the moment that a dead process has left


def _members(group: Path) -> Iterator[int]:
    with suppress(OSError):
        yield from map(int, (group / "cgroup.procs").read_text().split())


def rlimits(spec: SandboxSpec, *, memory: bool, processes: bool) -> dict[str, int]:
    """Return the rlimits that the supervisor sets for every command, by name.

    Args:
        memory: Limit each process's memory. RLIMIT_DATA rather than RLIMIT_AS: the latter also counts what
            is only reserved, and a JavaScript engine reserves gigabytes.
        processes: Limit the user's processes; the kernel counts them per user namespace.
    """
    wanted = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": _OPEN_FILES}
    if memory:
        wanted["RLIMIT_DATA"] = spec.memory_mb * 2**20
    if processes:
        wanted["RLIMIT_NPROC"] = spec.pids + 1
    allowed = {}
    for name, value in wanted.items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        allowed[name] = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return allowed
