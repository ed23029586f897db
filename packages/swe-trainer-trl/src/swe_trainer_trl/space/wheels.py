"""Wheels of the installed packages that a deployed run needs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, entry_points
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import parse_wheel_filename

from swe_core.errors import ConfigError, SweError
from swe_core.plugins.hookspecs import PROJECT

CORE = "swe-core"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel file.

    Args:
        name: Normalised name of its distribution.
        version: Version in the name of the file.
        file: Path of the file.
        sha256: SHA-256 of the file, in hexadecimal digits.
    """

    name: str
    version: str
    file: Path
    sha256: str


def installed(plugins: Collection[str] | None = None) -> list[Distribution]:
    """Return `swe-core` and the distributions with a plugin of the run, sorted by name.

    Args:
        plugins: Names of the plugins that the run loads; None loads all. Packages that it does not load may
            not fit beside vLLM.
    """
    found = {CORE: distribution(CORE)}
    for point in entry_points(group=PROJECT):
        if point.dist is not None and (plugins is None or point.name in plugins):
            found.setdefault(point.dist.name, point.dist)
    return [found[name] for name in sorted(found)]


def source(package: Distribution) -> str:
    """Return pip's source for the wheel of an installed distribution.

    The source is the directory, archive or revision that it was installed from (`direct_url.json`, PEP 610),
    or its version on the package index.

    Raises:
        ConfigError: The distribution was installed from a directory that no longer exists.
    """
    text = package.read_text("direct_url.json")
    if text is None:
        return f"{package.name}=={package.version}"
    origin = json.loads(text)
    url = str(origin["url"])
    if "dir_info" in origin:
        directory = Path(url2pathname(urlsplit(url).path))
        if not directory.is_dir():
            raise ConfigError(
                f"{package.name!r} was installed from {str(directory)!r}, which no longer exists: "
                "reinstall the package"
            )
        return str(directory)
    if "vcs_info" in origin:
        return f"{package.name} @ {origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f"{package.name} @ {url}"


def make_wheels(packages: Iterable[Distribution], directory: Path) -> list[Wheel]:
    """Build the wheels of `packages` in `directory`. The same sources give the same bytes.

    Raises:
        ConfigError: The sources of a package no longer exist.
        SweError: pip is missing, or a build failed.
    """
    if importlib.util.find_spec("pip") is None:
        raise SweError(
            f"pip is not installed beside {sys.executable!r}, and makes the wheels: `python -m ensurepip`, "
            "or `uv pip install pip`"
        )
    sources = [source(package) for package in packages]
    # With an installed build backend, isolation is off, so that pip downloads nothing.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = ["-m", "pip", "--disable-pip-version-check", "-q", "wheel", "--no-deps", *isolation]
    _pip([*command, "--wheel-dir", str(directory), *sources])
    return [_read(file) for file in sorted(directory.glob("*.whl"))]


def _pip(arguments: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.lstrip().lower().startswith("error")]
        last = (errors or said or [f"exit code {done.returncode}"])[-1].strip()
        raise SweError(f"pip could not make the wheels of the installed packages: {last[:300]}")


def _read(file: Path) -> Wheel:
    name, version, _, _ = parse_wheel_filename(file.name)
    return Wheel(name, str(version), file, hashlib.sha256(file.read_bytes()).hexdigest())
