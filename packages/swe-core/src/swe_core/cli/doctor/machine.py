"""What any run needs of this machine, whatever plugins it uses."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import platformdirs

from swe_core.api.checks import Check, Finding

SECONDS = 10.0
"""That a program may take which is asked for its version."""
_GIB = 2**30
_LITTLE = _GIB
"""Bytes of memory or disk below which a run will hardly get far."""
_RUNS = Path("runs")
"""Where runs lie unless --out says otherwise."""
_HUB_TOKEN = "HF_TOKEN"  # noqa: S105 - its name


def machine_checks() -> Iterator[Check]:
    """What to look at, the indispensable first."""
    yield Check("Python", "everything", _python)
    yield Check("git", "the repositories of tasks", _git)
    yield Check("memory", "sandboxes", _memory)
    yield Check("processors", "sandboxes", _processors)
    for name, path, option in (
        ("disk for runs", _RUNS, "give another place with --out"),
        ("disk for caches", platformdirs.user_cache_path("swe-core"), "set XDG_CACHE_HOME to another place"),
        ("disk for sandboxes", Path(tempfile.gettempdir()), "set TMPDIR to another place"),
    ):
        yield Check(name, "runs", partial(disk, path, option))
    yield Check("GPUs", "training, and serving a model here", _gpus)
    yield Check(_HUB_TOKEN, "private and gated repositories of the Hub", partial(variable, _HUB_TOKEN))


def disk(path: Path, remedy: str) -> Finding:
    """How much room there is for files in `path`, which need not exist yet."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    where = f"{str(path)!r}"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Finding("missing", f"{where} cannot be written", f"{remedy[0].upper()}{remedy[1:]}.")
    free = shutil.disk_usage(place).free
    text = f"{_gib(free)} free in {where}"
    return Finding("ok", text) if free >= _LITTLE else Finding("missing", text, f"Make room, or {remedy}.")


def variable(name: str) -> Finding:
    """Whether an environment variable that holds a secret is set; never what it is."""
    return Finding("ok", "is set") if os.environ.get(name, "").strip() else Finding("info", "is not set")


def ask(*argv: str, seconds: float = SECONDS) -> str:
    """What a program prints.

    Raises:
        OSError | subprocess.SubprocessError: It is not there, fails or takes too long.
    """
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=seconds, check=True, stdin=subprocess.DEVNULL
    )
    return done.stdout.strip()


def _python() -> Finding:
    return Finding("ok", f"{platform.python_version()}, {sys.executable}, {platform.machine()}")


def _git() -> Finding:
    try:
        return Finding("ok", ask("git", "--version").removeprefix("git version "))
    except (OSError, subprocess.SubprocessError):
        return Finding("missing", "there is none that runs", "Install your system's package 'git'.")


def _memory() -> Finding:
    available, total = _available_memory()
    text = f"{_gib(available)} available of {_gib(total)}"
    if available >= _LITTLE:
        return Finding("ok", text)
    return Finding("missing", text, "End what uses it, or run fewer rollouts at once (--concurrency 1).")


def _available_memory() -> tuple[int, int]:
    """Bytes that are available, and all: the machine's, or those of the container that this runs in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    info = Path("/proc/meminfo")
    if info.exists():  # what the kernel would give, its caches included
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
        available = min(available, max(int(text) - int(used.read_text()), 0))
    return available, total


def _processors() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("ok", f"{usable} usable of {os.cpu_count()}, {os.getloadavg()[0]:.1f} busy")


def _gpus() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding("info", "none (there is no nvidia-smi)")
    fields = "--query-gpu=name,memory.total,driver_version"
    try:
        found = ask("nvidia-smi", fields, "--format=csv,noheader").splitlines()
    except (OSError, subprocess.SubprocessError):
        return Finding("missing", "nvidia-smi is there and fails", "Run `nvidia-smi` and fix its error.")
    return Finding("ok", "; ".join(found)) if found else Finding("info", "none")


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
