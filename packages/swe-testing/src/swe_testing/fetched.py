"""Packages of an index that no environment of the tests has: other versions, or for another Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swe-core"


@cache
def fetched(name: str, version: str, python: Path | None = None) -> Path:
    """Return a directory for PYTHONPATH with one version of a package; skip the test without an index.

    The directory is kept in the user's cache.

    Args:
        python: Another interpreter, for which the package comes with all that it needs; None for this one,
            where the package comes alone.
    """
    place = _CACHE / name / (version if python is None else f"{version}-{python.name}")
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=place.parent))
    whom = ["install", "--no-deps"] if python is None else ["--python", str(python), "install"]
    pip = subprocess.run(
        [sys.executable, "-m", "pip", *whom, "--quiet", "--target", str(part), f"{name}=={version}"],
        capture_output=True,
        text=True,
    )
    if pip.returncode:
        shutil.rmtree(part)
        pytest.skip(f"{name} {version} cannot be fetched: {pip.stderr.strip().splitlines()[-1]}")
    try:
        part.rename(place)
    except OSError:  # another process was faster
        shutil.rmtree(part)
    return place
