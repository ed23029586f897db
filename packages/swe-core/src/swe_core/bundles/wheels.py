"""Wheels: pinned wheels from the Python package index. `pip download` fetches them; nothing of them runs."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from swe_core.bundles.python import PROGRAM, HostPython, Python, add_libraries, compile_modules
from swe_core.bundles.recipe import Content, Part, machine
from swe_core.errors import AgentError

_SECONDS = 1200.0
_OLDEST_GLIBC = 5
_BROKEN = re.compile(r"connection broken by '\w+\(.*?: ([^:()]+)[\"']\)'")  # pip 23 and newer ones
_LEGACY = ("manylinux1", "manylinux2010", "manylinux2014")


@dataclass(frozen=True, slots=True)
class Wheels(Part):
    """Pinned wheels, unpacked and compiled. In a recipe they follow their `Python`.

    `python -m swe_core.bundles pin pypi:NAME==VERSION --python 3.12` prints the lock.

    Args:
        lock: Lines `name==version --hash=sha256:...` as pip takes them: everything that is needed, for
            nothing follows dependencies. A line may have hashes of wheels for several machines and Pythons.
        python: The recipe's Python.
        into: Their folder in the bundle. The bundle's `bin/python3` imports from `site-packages`.
        drop: Patterns (`fnmatch`) of paths in `into` to leave out, such as `*/tests/*`.
    """

    lock: str
    python: Python
    into: str = "site-packages"
    drop: tuple[str, ...] = ()

    def resolve(self, agent: str) -> Content:
        return _Unpacked(self, self.python.find(agent), agent)


@dataclass(frozen=True, slots=True)
class _Unpacked(Content):
    pinned = False

    wheels: Wheels
    python: HostPython
    agent: str

    @property
    def owns(self) -> Sequence[str]:
        return (self.wheels.into,)

    def key(self) -> object:
        return (self.wheels.lock, self.python.version, self.wheels.into, self.wheels.drop)

    def check_host(self) -> None:
        pip_command(self.agent)

    def place(self, staged: Path, scratch: Path) -> None:
        if not (staged / PROGRAM).exists():
            raise AgentError(
                f"the recipe of the agent {self.agent!r} has wheels before its Python: report this to the "
                "author of the agent's plugin"
            )
        target = staged / self.wheels.into
        target.mkdir(parents=True)
        for wheel in self._download(scratch):
            unpack(wheel, target, self.wheels.drop)
        add_libraries(staged, target)
        compile_modules(staged, self.wheels.into, self.agent)

    def _download(self, into: Path) -> list[Path]:
        lock = into / "lock.txt"
        lock.write_text(self.wheels.lock)
        command = [
            *pip_command(self.agent), "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--require-hashes", "--requirement", str(lock), "--dest", str(into),
            *target_options(self.python.version, machine(), self.python.glibc),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=into, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise AgentError(self._failed(f"it did not end within {_SECONDS:g} s")) from None
        if done.returncode != 0:
            raise AgentError(self._failed(pip_reason(done.stderr)))
        return sorted(into.glob("*.whl"))

    def _failed(self, reason: str) -> str:
        return (
            f"pip cannot fetch the packages of the agent {self.agent!r}: {reason}; connect this host to "
            "the package index, or name a mirror with `pip config set global.index-url URL`, and run again "
            "(needed once per host)"
        )


def pip_command(agent: str) -> Sequence[str]:
    """Return the argv of pip: that of this interpreter, else the one on PATH.

    Raises:
        AgentError: No pip exists; `agent` is what needs one.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if (pip := shutil.which("pip")) is not None:
        return [pip]
    raise AgentError(f"the agent {agent!r} is fetched with pip, but there is none: install the package 'pip'")


def target_options(version: str, machine: str, glibc: tuple[int, int]) -> list[str]:
    """Return pip's options that choose wheels for a CPython and a glibc."""
    tag = f"cp{version.replace('.', '')}"
    platforms = [f"manylinux_2_{minor}" for minor in range(glibc[1], _OLDEST_GLIBC - 1, -1)]
    options = ["--only-binary", ":all:", "--python-version", version, "--implementation", "cp"]
    options += [part for abi in (tag, "abi3", "none") for part in ("--abi", abi)]
    return options + [part for name in (*platforms, *_LEGACY) for part in ("--platform", f"{name}_{machine}")]


def pip_reason(stderr: str) -> str:
    """Return the cause from pip's error output."""
    if (broken := _BROKEN.search(stderr)) is not None:  # the error itself says that nothing was found
        return broken[1]
    errors = [
        line.removeprefix("ERROR:").strip() for line in stderr.splitlines() if line.startswith("ERROR:")
    ]
    return errors[0].rstrip(".") if errors else "it gave no reason"


def unpack(wheel: Path, target: Path, drop: Sequence[str]) -> None:
    """Unpack the modules of a wheel, without scripts, headers and data for other folders.

    Raises:
        AgentError: A path leads out of the folder.
    """
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            parts = PurePosixPath(member.filename).parts
            if parts[0].endswith(".data"):
                if len(parts) < 3 or parts[1] not in ("purelib", "platlib"):
                    continue
                parts = parts[2:]
            name = "/".join(parts)
            if member.is_dir() or any(fnmatch(name, pattern) for pattern in drop):
                continue
            if name.startswith("/") or ".." in parts:
                raise AgentError(f"the wheel {wheel.name!r} has the path {member.filename!r}: it is refused")
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
            path.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)
