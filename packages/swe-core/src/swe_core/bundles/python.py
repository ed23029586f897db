"""Python: a CPython of the host, made to run in any Linux image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swe_core.api.sandbox import ASSETS_DIR
from swe_core.bundles.files import copy, sealed_sha256
from swe_core.bundles.loader import Missing, launcher, libraries_of, loader_of
from swe_core.bundles.recipe import Content, Part
from swe_core.errors import AgentError, ConfigError

PROGRAM = "bin/python3"
_RUNTIME = "runtime/python"
_ASK = """
import json, platform, sys, sysconfig
own = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2], "build": sys.version, "name": platform.python_implementation(),
    "libc": platform.libc_ver(), "prefix": sys.base_prefix,
    "libraries": sorted({sysconfig.get_path(name, vars=own) for name in ("stdlib", "platstdlib")}),
}))
"""
_LEFT_OUT = (
    "__pycache__", "config-3*", "dist-packages", "ensurepip", "idlelib", "site-packages", "sitecustomize.py",
    "test", "tests", "tkinter", "turtledemo", "_test*.so", "_tkinter*.so",
)  # fmt: skip
_SITE = b"""\
import os, site, sys

site.addsitedir(os.path.join(sys.prefix, "site-packages"))
"""
"""`sitecustomize.py`. A .pth file would not do: some distributions' Python has its packages elsewhere."""


@dataclass(frozen=True, slots=True)
class HostPython:
    """An interpreter of this host.

    Args:
        version: Such as "3.12".
        build: Its `sys.version`.
        glibc: Version of its C library, such as (2, 36).
        program: Its executable, that of no virtual environment.
        libraries: Folder in its prefix → folder, of its standard library.
    """

    version: str
    build: str
    glibc: tuple[int, int]
    program: Path
    libraries: dict[str, Path]


@dataclass(frozen=True, slots=True)
class Python(Part):
    """The program `bin/python3`, with its own loader, libraries and standard library.

    It is a copy of a CPython of this host. An image needs a POSIX shell and no C library. It imports from the
    bundle's `site-packages`. Start it with `-I`, because an image may set PYTHONPATH.

    Args:
        versions: The versions that will do, the best one first.
        configured: The user's choice, from the setting `python` of the agent.
    """

    versions: tuple[str, ...] = ("3.12",)
    configured: Path | None = None

    def resolve(self, agent: str) -> Content:
        return _Copy(self.find(agent), agent)

    def find(self, agent: str) -> HostPython:
        """Return the interpreter to copy: the configured one, else the best of this host.

        Raises:
            ConfigError: The configured one is not usable.
            AgentError: None is configured, and none on this host is usable.
        """
        wanted = " or ".join(self.versions)
        if self.configured is not None:
            found = _examine(self.configured)
            if found is None or found.version not in self.versions:
                raise ConfigError(
                    f"agent.{agent}.python: {str(self.configured)!r} is no CPython {wanted} for glibc; set "
                    "it to one, or leave it unset"
                )
            return found
        for version in self.versions:
            for candidate in _candidates(version):
                found = _examine(candidate)
                if found is not None and found.version == version:
                    return found
        raise AgentError(
            f"the agent {agent!r} needs a CPython {wanted} to bundle, but this host has none: install "
            f"one, for example with `uv python install {self.versions[0]}`, or set agent.{agent}.python "
            "to its path"
        )


@dataclass(frozen=True, slots=True)
class _Copy(Content):
    pinned = False

    python: HostPython
    agent: str

    @property
    def owns(self) -> Sequence[str]:
        return (PROGRAM, _RUNTIME, *self.python.libraries)

    def key(self) -> object:
        python = self.python
        return (python.build, str(python.program), sealed_sha256(python.program), sorted(python.libraries))

    def place(self, staged: Path, scratch: Path) -> None:
        python, runtime = self.python, staged / _RUNTIME
        try:
            loader = loader_of(python.program)
            libraries = libraries_of(loader, python.program)
        except ValueError as error:
            raise AgentError(self._failed(str(error))) from None
        for name, path in {python.program.name: python.program, loader.name: loader, **libraries}.items():
            copy(path.resolve(), runtime / name)
        starter = staged / PROGRAM
        starter.parent.mkdir(exist_ok=True)
        starter.write_bytes(launcher(f"{_RUNTIME}/{python.program.name}", loader.name, argv0=True))
        starter.chmod(0o755)
        for name, path in python.libraries.items():
            ignore = shutil.ignore_patterns(*_LEFT_OUT)
            shutil.copytree(path, staged / name, ignore=ignore, ignore_dangling_symlinks=True)
            (staged / name / "sitecustomize.py").write_bytes(_SITE)
            for module in add_libraries(staged, staged / name):
                module.unlink()  # it works on this host no more than in the bundle
        done = subprocess.run(
            [starter, "-I", "-B", "-c", ""], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise AgentError(self._failed(f"its copy does not start ({said[-1]})"))
        for name in python.libraries:
            compile_modules(staged, name, self.agent)

    def _failed(self, why: str) -> str:
        return (
            f"the agent {self.agent!r} cannot bundle the Python {str(self.python.program)!r}: {why}; set "
            f"agent.{self.agent}.python to another one"
        )


def add_libraries(staged: Path, folder: Path) -> list[Path]:
    """Copy the shared libraries that extension modules need from the host into a bundle with a Python.

    Args:
        staged: The bundle.
        folder: A folder in it with extension modules.

    Returns:
        The modules that need a library which the host lacks.
    """
    runtime = staged / _RUNTIME
    (loader,) = runtime.glob("ld-*")
    incomplete = []
    for module in _modules(folder):
        try:
            needed = libraries_of(loader, module, "--library-path", str(runtime))
        except Missing:
            incomplete.append(module)
            continue
        except ValueError:  # a module for another system
            continue
        for name, path in needed.items():
            if not path.is_relative_to(staged):
                copy(path, runtime / name)
    return incomplete


def compile_modules(staged: Path, name: str, agent: str) -> None:
    """Compile the modules in a folder of a bundle, since sandboxes cannot write to it. No code of it runs."""
    # Some files are no Python, such as templates: the exit code says nothing. Nothing changes in a bundle, so
    # Python need not compare a file with its source.
    command = [
        str(staged / PROGRAM), "-I", "-S", "-B", "-m", "compileall", "-qq", "-j", "0",
        "--invalidation-mode", "unchecked-hash", "-s", str(staged), "-p", f"{ASSETS_DIR}/{agent}",
        str(staged / name),
    ]  # fmt: skip
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _modules(folder: Path) -> Iterator[Path]:
    """Yield the shared objects below a folder."""
    for path in sorted(folder.rglob("*.so*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _candidates(version: str) -> Iterator[Path]:
    """Yield interpreters of this host: this one, one on PATH, and what pyenv and uv installed."""
    yield Path(sys.executable)
    name = f"python{version}"
    if (found := shutil.which(name)) is not None:
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    data = Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser()
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", data / "uv/python"))
    for root, pattern in ((pyenv, f"{version}.*"), (uv, f"cpython-{version}.*")):
        yield from sorted(root.glob(f"{pattern}/bin/{name}"))


@cache
def _examine(python: Path) -> HostPython | None:
    """Return what an interpreter is, or None if it is no CPython for glibc."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        facts = json.loads(done.stdout)
        libc, glibc = facts["libc"]
        if (facts["name"], libc) != ("CPython", "glibc"):
            return None
        prefix, (major, minor) = Path(facts["prefix"]), map(int, glibc.split(".")[:2])
        libraries = {Path(path).relative_to(prefix).as_posix(): Path(path) for path in facts["libraries"]}
        program = (prefix / "bin" / f"python{facts['version']}").resolve(strict=True)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return HostPython(facts["version"], facts["build"], (major, minor), program, libraries)
