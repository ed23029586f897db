"""Images for local sandboxes: each is pulled and unpacked once on this host, whatever processes want it.

    blobs/sha256/HEX        the layers of all images, as they were pulled
    roots/HEX/rootfs        the unpacked image with the id HEX; all sandboxes see it read-only
    roots/HEX/image.json    what the image says of its environment and user
    names/KEY               the id of the image that a reference named when it was first used
    pulls/KEY, KEY.lock     work in progress

What counts is renamed into its place when it is complete. The lock of a killed process is released by the
kernel, and the next process begins anew with the blobs that are complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import platform
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import platformdirs

from swe_core.builtin.local.image_tools import Described, Source, find_tools, is_loopback
from swe_core.builtin.local.state import remove_tree
from swe_core.errors import ImageNotFound, SandboxError

logger = logging.getLogger(__name__)

_WAIT = 0.1
_KEY = 32  # digits
_LOCAL = ("oci:", "oci-archive:", "docker-archive:")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The architecture of this machine as `platform` names it → as images name it, where the two differ."""


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image.

    Args:
        id: The digest of its configuration.
        root: Its root file system, which nobody changes.
        env: Its environment.
        user: Its user, as it is configured.
    """

    id: str
    root: Path
    env: Mapping[str, str]
    user: str


class Images:
    """The images of this user on this host. One event loop uses it.

    Args:
        directory: Where they are; None for the user's cache directory.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or platformdirs.user_cache_path("swe-core") / "images"
        self._found: dict[str, Image] = {}
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def ensure(self, reference: str, bwrap: str) -> Image:
        """Return the image that `reference` names, and pull and unpack it if it is not on this host.

        A reference names the same image for as long as this object lives, and as long as the cache is kept.

        Args:
            reference: A name with a registry or without, a tag and a digest; or `oci:DIRECTORY:TAG`,
                `oci-archive:FILE` or `docker-archive:FILE`.
            bwrap: The bubblewrap program.

        Raises:
            ImageNotFound: The image is missing and cannot be had.
            SandboxError: It cannot be used, or tools or room are missing.
        """
        async with self._locks[reference]:
            image = self._found.get(reference)
            if image is None:
                try:
                    image = await self._ensure(reference, bwrap)
                except OSError as error:
                    raise SandboxError(
                        f"the image {reference!r} cannot be put into {str(self._directory)!r}: "
                        f"{error.strerror or error}; make room or set XDG_CACHE_HOME to another place"
                    ) from None
                self._found[reference] = image
            return image

    async def _ensure(self, reference: str, bwrap: str) -> Image:
        source, sign = _source(reference)
        key = hashlib.sha256(json.dumps([str(source), sign, platform.machine()]).encode()).hexdigest()[:_KEY]
        image = self._load(key)
        if image is not None:
            return image
        for name in ("blobs", "roots", "names", "pulls"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        self._directory.chmod(0o700)  # an image may hold programs that run with their owner's rights: ours
        tools = find_tools(self._directory / "blobs", bwrap)
        work = self._directory / "pulls" / key
        async with _locked(_lock_of(work)):
            image = self._load(key)  # another process may have pulled it
            if image is not None:
                return image
            await anyio.to_thread.run_sync(remove_tree, work)  # left by a killed process
            work.mkdir()
            try:
                started = time.monotonic()
                described = await tools.describe(source, work)
                _check(described, reference)
                place = self._root(described.id)
                if not place.exists():
                    logger.info("pulling the image %s", reference)
                    made = work / "made"
                    made.mkdir()
                    await tools.unpack(source, described, work, made / "rootfs")
                    (made / "image.json").write_text(json.dumps(asdict(described)))
                    with suppress(FileExistsError):  # unpacked under another name meanwhile
                        made.rename(place)
                    logger.info("pulled the image %s in %.0f s", reference, time.monotonic() - started)
                (work / "name").write_text(described.id)
                (work / "name").rename(self._directory / "names" / key)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove_tree, work)
        image = self._load(key)
        if image is None:
            raise SandboxError(f"the image {reference!r} was removed while it was unpacked")
        return image

    async def reap(self) -> None:
        """Remove what killed processes left of images that they were pulling."""
        for work in (self._directory / "pulls").glob(f"{'?' * _KEY}"):
            with suppress(BlockingIOError):
                async with _locked(_lock_of(work), wait=False):
                    await anyio.to_thread.run_sync(remove_tree, work)

    def _root(self, id: str) -> Path:
        return self._directory / "roots" / id.removeprefix("sha256:")

    def _load(self, key: str) -> Image | None:
        try:
            root = self._root((self._directory / "names" / key).read_text())
            found = Described(**json.loads((root / "image.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return Image(found.id, root / "rootfs", found.env, found.user)


def _source(reference: str) -> tuple[Source, object]:
    """Return where the image comes from, and what changes with its content where that is known beforehand.

    Raises:
        ImageNotFound: A local file is missing.
    """
    for transport in _LOCAL:
        if reference.startswith(transport):
            path, separator, tag = reference.removeprefix(transport).partition(":")
            place = Path(path).absolute()
            try:
                found = (place / "index.json" if transport == "oci:" else place).stat()
            except OSError as error:
                raise ImageNotFound(
                    f"the image {reference!r} cannot be had: {error.strerror}: {str(error.filename)!r}"
                ) from None
            sign = [found.st_ino, found.st_size, found.st_mtime_ns]
            return Source(reference, transport, f"{place}{separator}{tag}"), sign
    name = reference.removeprefix("docker://")
    bare, at, digest = name.partition("@")
    if at and ":" in bare.rpartition("/")[2]:  # the tools do not take both; the digest says more
        name = f"{bare.rpartition(':')[0]}@{digest}"
    return Source(reference, "docker://", name, is_loopback(name)), None


def _check(described: Described, reference: str) -> None:
    """Check that the image's programs run on this machine.

    Raises:
        SandboxError: They do not.
    """
    ours = _ARCHITECTURES.get(platform.machine(), platform.machine())
    if described.architecture != ours:
        raise SandboxError(
            f"the image {reference!r} is for the architecture {described.architecture!r}, and this machine "
            f"has {ours!r}: use a machine of its architecture, or an image for this one"
        )


def _lock_of(work: Path) -> Path:
    return work.with_suffix(".lock")


@asynccontextmanager
async def _locked(path: Path, *, wait: bool = True) -> AsyncIterator[None]:
    """Hold a lock of all processes; the kernel releases that of a killed one.

    Raises:
        BlockingIOError: Another process holds it, and it is not to be waited for.
    """
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait:
                    raise
            await anyio.sleep(_WAIT)  # flock(2) has no event that a cancellation could interrupt
        yield
