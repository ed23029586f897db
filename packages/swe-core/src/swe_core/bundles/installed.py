"""Wheels of installed distributions, for a machine that cannot have them from a package index."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from swe_core.errors import ConfigError, SweError


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


def make_wheels(distributions: Iterable[Distribution], directory: Path) -> list[Path]:
    """Build the wheels of distributions in `directory`, and return their files.

    The same sources give the same bytes.

    Raises:
        ConfigError: The sources of a distribution no longer exist.
        SweError: pip is missing, or a build failed.
    """
    if importlib.util.find_spec("pip") is None:
        raise SweError(
            f"pip is not installed beside {sys.executable!r}, and makes the wheels: `python -m ensurepip`, "
            "or `uv pip install pip`"
        )
    sources = [source(package) for package in distributions]
    # With an installed build backend, isolation is off, so that pip downloads nothing.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "wheel", "--no-deps"]
    done = subprocess.run(
        [*command, *isolation, "--wheel-dir", str(directory), *sources],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.lstrip().lower().startswith("error")]
        last = (errors or said or [f"exit code {done.returncode}"])[-1].strip()
        raise SweError(f"pip could not make the wheels of the installed packages: {last[:300]}")
    return sorted(directory.glob("*.whl"))
