"""Make the pins of parts, for the authors of agents."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_core.bundles.npm import fetch, sha256_of, unpack
from swe_core.bundles.python import Python
from swe_core.bundles.wheels import pip_command, pip_reason, target_options
from swe_core.errors import AgentError
from swe_core.system.seal import contents_of, digest_of

MACHINES = ("x86_64", "aarch64")
_FOR = "pin"
"""Stands for the agent in messages."""
_GLIBC = (2, 28)
"""The lock has wheels for hosts with this C library or a newer one."""

_Lock = dict[tuple[str, str], set[str]]
"""Name and version → SHA-256 of its wheels."""


def npm_pins(spec: str, keep: Sequence[str], executable: Sequence[str]) -> str:
    """Return a pinned `NpmPackage` as source code.

    Args:
        spec: `name@version`.
        keep: Paths inside the package to keep; empty for everything.
        executable: Files inside the package that are programs.

    Raises:
        AgentError: npm cannot fetch it, or it lacks a path.
    """
    name, _, version = spec.rpartition("@")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        tarball = fetch(spec, scratch, _FOR)
        sha256 = sha256_of(tarball)
        tree = digest_of(contents_of(unpack(tarball, scratch, keep, executable, _FOR)))
    given = {
        "name": name,
        "version": version,
        "sha256": sha256,
        "tree": tree,
        "into": name.rpartition("/")[2],
    }
    lines = [f'{field}="{value}"' for field, value in given.items()]
    for field, values in (("keep", keep), ("executable", executable)):
        if values:
            quoted = ", ".join(json.dumps(value) for value in values)
            lines.append(f"{field}=({quoted}{',' if len(values) == 1 else ''})")
    return "NpmPackage(\n" + "".join(f"    {line},\n" for line in lines) + ")\n"


def wheel_lock(
    requirements: Sequence[str], versions: Sequence[str], machines: Sequence[str], without: Collection[str]
) -> str:
    """Return the lock of packages and everything that they depend on: the same versions for every target.

    Args:
        requirements: Such as `name==version`.
        versions: The versions of Python; this host has each.
        machines: The architectures.
        without: Packages to leave out, since the agent does not import them.

    Raises:
        AgentError: pip cannot resolve the packages for a target, or a Python is missing.
    """
    lock: _Lock = defaultdict(set)
    for version in versions:
        program = Python((version,)).find(_FOR).program
        for machine in machines:
            target = target_options(version, machine, _GLIBC)
            for name, release, sha256 in _resolve(program, requirements, target, lock):
                lock[name, release].add(sha256)
    left_out = set(map(_normal, without))
    return "".join(_line(*key, lock[key]) for key in sorted(lock) if key[0] not in left_out)


def _resolve(
    python: Path, requirements: Sequence[str], target: Sequence[str], lock: _Lock
) -> list[tuple[str, str, str]]:
    """Return name, version and SHA-256 of each wheel, within what is locked already."""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("".join(f"{name}=={release}\n" for name, release in lock))
        command = [
            *pip_command(_FOR), "--python", str(python), "install", "--dry-run", "--ignore-installed",
            "--quiet", "--report", "-", "--target", folder, "--constraint", str(constraints),
            *target, *requirements,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise AgentError(
            f"pip cannot resolve {' '.join(requirements)!r}: {pip_reason(done.stderr)}; choose other "
            "versions, or fewer targets with --python and --machine"
        )
    return [_pin(item) for item in json.loads(done.stdout)["install"]]


def _pin(item: Mapping[str, Any]) -> tuple[str, str, str]:
    about, wheel = item["metadata"], item["download_info"]["archive_info"]
    return _normal(about["name"]), about["version"], wheel["hashes"]["sha256"]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _line(name: str, release: str, hashes: set[str]) -> str:
    return f"{name}=={release}" + "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(hashes)) + "\n"
