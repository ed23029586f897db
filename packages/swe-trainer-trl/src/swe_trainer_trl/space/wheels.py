"""Wheels of the installed packages that a deployed run needs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, entry_points
from pathlib import Path

from packaging.utils import parse_wheel_filename

from swe_core.bundles.installed import make_wheels as installed_wheels
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


def make_wheels(packages: Iterable[Distribution], directory: Path) -> list[Wheel]:
    """Build the wheels of `packages` in `directory`. See `swe_core.bundles.installed.make_wheels`."""
    return [_read(file) for file in installed_wheels(packages, directory)]


def _read(file: Path) -> Wheel:
    name, version, _, _ = parse_wheel_filename(file.name)
    return Wheel(name, str(version), file, hashlib.sha256(file.read_bytes()).hexdigest())
