"""Build a bundle once on a host, and check it before each run.

A bundle is a relocatable folder whose name is a digest of its parts. It is built in a temporary folder beside
its place and renamed into it, under a lock, so that no process sees an incomplete one. Each run compares the
content (`swe_core.system.seal`) with the pins of the parts. Where a part has no pin for every file, because
the host makes some of them, the digest of the content is recorded in the user's state directory when the
bundle is built, beside the seals and as safe as they are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from swe_core.bundles.recipe import Content, Recipe
from swe_core.errors import AgentError
from swe_core.system.seal import Seal, contents_of, digest_of, locked, set_aside

logger = logging.getLogger(__name__)

_LAYOUT = 2
"""Part of each digest. Increase it when the layout of bundles changes."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A finished bundle on this host.

    Args:
        path: Its folder.
        digest: Identifies its content.
    """

    path: Path
    digest: str


def ensure_bundle(recipe: Recipe, cache: Path | None = None) -> Bundle:
    """Return the bundle of a recipe, and build it if it is missing or has changed.

    The first use takes seconds. Later checks take a `stat` of each file, some milliseconds for most agents.
    Processes that need it at once build it once.

    Args:
        recipe: What it consists of.
        cache: Folder for the bundles of this agent; None for the one in the user's cache directory.

    Raises:
        ConfigError: A setting of the agent is wrong.
        AgentError: The build failed: a part cannot be had or differs from its pin, or the disk is full.
    """
    root = cache or _cache(recipe)
    parts = _resolve(recipe)
    try:
        bundle = _bundle_at(root, parts)
        if not _is_whole(bundle, parts):
            with locked(root):
                if not _is_whole(bundle, parts):  # another process may have built it
                    _build(recipe, bundle, parts)
    except OSError as error:
        raise AgentError(
            f"the bundle of the agent {recipe.name!r} cannot be built in {str(root)!r}: "
            f"{error.strerror or error}; make room or set XDG_CACHE_HOME to a place that can be written"
        ) from None
    return bundle


def find_bundle(recipe: Recipe) -> Bundle | None:
    """Return the bundle of `ensure_bundle(recipe)` without building it, or None if it is not built.

    Raises:
        SweError: See `ensure_bundle`.
    """
    parts = _resolve(recipe)
    bundle = _bundle_at(_cache(recipe), parts)
    return bundle if _is_whole(bundle, parts) else None


def check_host(recipe: Recipe) -> None:
    """Check that this host has what a build needs, without fetching anything.

    Raises:
        SweError: See `ensure_bundle`.
    """
    for part in _resolve(recipe):
        part.check_host()


def _cache(recipe: Recipe) -> Path:
    return platformdirs.user_cache_path("swe-core") / "agents" / recipe.name


def _resolve(recipe: Recipe) -> list[Content]:
    return [part.resolve(recipe.name) for part in recipe.parts]


def _bundle_at(root: Path, parts: list[Content]) -> Bundle:
    keys = [(type(part).__name__, part.key()) for part in parts]
    digest = hashlib.sha256(json.dumps([_LAYOUT, keys]).encode()).hexdigest()
    return Bundle(root / digest[:16], digest)


def _is_whole(bundle: Bundle, parts: list[Content]) -> bool:
    """Return whether the bundle exists with exactly the content of its parts."""
    try:
        found = Seal(bundle.path).contents()
    except OSError:
        return False
    return _holds(found, parts) and (
        all(part.pinned for part in parts) or digest_of(found) == _recorded(bundle)
    )


def _holds(found: Mapping[str, str], parts: list[Content]) -> bool:
    """Return whether each file belongs to a part, and each part is as pinned."""
    owners = {name: part for part in parts for name in part.owns}
    inside: dict[int, dict[str, str]] = {id(part): {} for part in parts}
    for name, what in found.items():
        owner = next((owners[place] for place in _upwards(name) if place in owners), None)
        if owner is None:
            return False
        inside[id(owner)][name] = what
    return all(part.holds(inside[id(part)]) for part in parts)


def _upwards(name: str) -> list[str]:
    """Return a path and the folders that it lies in, innermost first."""
    steps = name.split("/")
    return ["/".join(steps[:count]) for count in range(len(steps), 0, -1)]


def _record_of(bundle: Bundle) -> Path:
    name = hashlib.sha256(os.path.abspath(bundle.path).encode()).hexdigest()[:32]
    return platformdirs.user_state_path("swe-core") / "bundles" / name


def _recorded(bundle: Bundle) -> str | None:
    try:
        return _record_of(bundle).read_text()
    except (OSError, ValueError):
        return None


def _record(bundle: Bundle, digest: str) -> None:
    """Record the digest of a new bundle. Where the state directory is not writable, each run builds anew."""
    with suppress(OSError):
        place = _record_of(bundle)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(digest)


def _build(recipe: Recipe, bundle: Bundle, parts: list[Content]) -> None:
    """Build the bundle and rename it into place. The caller holds the lock."""
    path = bundle.path
    for left in path.parent.glob("*.building"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    building = Path(tempfile.mkdtemp(suffix=".building", dir=path.parent))
    try:
        staged = building / "bundle"
        staged.mkdir()
        for part in parts:
            scratch = Path(tempfile.mkdtemp(dir=building))
            part.place(staged, scratch)
            shutil.rmtree(scratch)
        _open_to_all(staged)
        found = contents_of(staged)
        if not _holds(found, parts):
            raise AgentError(
                f"the parts of the agent {recipe.name!r} do not make the bundle that its recipe describes: "
                "report this to the author of the agent's plugin"
            )
        if path.is_symlink() or path.exists():
            aside = set_aside(path)
            logger.warning(
                "the bundle of the agent %r in %r has changed since it was built: it is rebuilt, and the old "
                "one is in %r",
                recipe.name,
                str(path),
                str(aside),
            )
        staged.rename(path)
        _record(bundle, digest_of(found))
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _open_to_all(root: Path) -> None:
    """Make all files readable for every user, since a sandbox's user is another one. Ignore the umask."""
    for folder, _, names in os.walk(root):
        os.chmod(folder, 0o755)
        for name in names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            # A hard link keeps its mode: `link_or_copy` links only what every user can read.
            if not os.path.islink(path) and status.st_nlink == 1:
                os.chmod(path, 0o755 if status.st_mode & 0o111 else 0o644)
