"""Compressed archives of host directories, for upload into sandboxes. Archives of assets are cached."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import platformdirs

from swe_core.api.sandbox import ASSETS_DIR, Asset, SandboxSpec
from swe_core.errors import SandboxError
from swe_core.system.seal import Seal

PART = 2 * 1024 * 1024
"""Bytes per upload request. A failed request repeats only its own part."""
FORMAT = "tar.gz"
KEEP_SECONDS = 30 * 24 * 3600
"""Seconds that the cache keeps an unused archive. Each new archive triggers the cleanup."""
KEEP_BYTES = 4 * 1024**3
"""Maximum size of the cache. The cleanup drops the least recently used archives first."""
_LEVEL = 6
_DAY = 24 * 3600
"""Minimum seconds between two updates of an archive's mtime, its time of last use. Each update changes the
ctime, after which the seal must read the whole file again."""

logger = logging.getLogger(__name__)


def size_of(source: bytes | BinaryIO) -> int:
    """Return the size of `source`, data or an open file, in bytes."""
    return len(source) if isinstance(source, bytes) else os.fstat(source.fileno()).st_size


def parts_of(source: bytes | BinaryIO) -> Iterator[bytes]:
    """Yield `source` in parts of at most `PART` bytes. Concurrent readers may share an open file."""
    for start in range(0, size_of(source), PART):
        if isinstance(source, bytes):
            yield source[start : start + PART]
        else:
            yield os.pread(source.fileno(), PART, start)


class Archives:
    """Gzipped archives of repositories and assets.

    Archives of assets stay in the user's cache, because compressing one may take longer than a sandbox start.
    """

    def __init__(self) -> None:
        self._cache = platformdirs.user_cache_path("swe-core") / "archives"
        self._making: dict[Path, threading.Lock] = {}

    @contextmanager
    def of(self, spec: SandboxSpec) -> Iterator[dict[str, BinaryIO]]:
        """Provide the archives of `spec`'s repository, in its current state, and of its assets.

        Entering the context blocks. The archives are open files, readable even after a cleanup of the cache.

        Yields:
            Directory inside the sandbox → the archive to unpack there.

        Raises:
            SandboxError: A directory cannot be read, or the disk is full.
        """
        with ExitStack() as stack:
            made: dict[str, BinaryIO] = {}
            if spec.repository is not None:
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="swe-archive-"))
                path = Path(directory) / f"repository.{FORMAT}"
                write(spec.repository, path, "repository")
                made[spec.workdir] = stack.enter_context(path.open("rb"))
            for asset in spec.assets:
                made[f"{ASSETS_DIR}/{asset.name}"] = stack.enter_context(self._asset(asset))
            yield made

    def _asset(self, asset: Asset) -> BinaryIO:
        place = hashlib.blake2b(
            f"{asset.digest}\n{asset.path.resolve()}".encode(), digest_size=12
        ).hexdigest()
        path = self._cache / f"{asset.name}-{place}.{FORMAT}"
        with self._making.setdefault(path, threading.Lock()):
            while True:  # another process may clean the cache
                if not Seal(path).holds():
                    if path.exists():
                        logger.warning("cannot verify the cached archive %r: it is rebuilt", str(path))
                    write(asset.path, path, f"asset {asset.name}")
                    Seal(path).put()
                    self._prune(path)
                with suppress(FileNotFoundError):
                    file = path.open("rb")
                    if time.time() - os.fstat(file.fileno()).st_mtime > _DAY:
                        with suppress(OSError):  # the cache may be another user's, and read-only
                            os.utime(file.fileno())
                    return file

    def _prune(self, new: Path) -> None:
        """Remove archives older than `KEEP_SECONDS`, and the least recently used ones above `KEEP_BYTES`."""
        with os.scandir(self._cache) as entries:
            found = []
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        found.append((entry.stat().st_mtime, entry.stat().st_size, Path(entry.path)))
        oldest, total = time.time() - KEEP_SECONDS, 0
        for used, size, path in sorted(found, reverse=True):
            whole = path.name.endswith(FORMAT)  # otherwise a part file of this or another process
            total += size if whole else 0
            if path != new and (used < oldest or (whole and total > KEEP_BYTES)):
                with suppress(OSError):  # it may belong to another user
                    path.unlink()


def write(source: Path, target: Path, what: str) -> None:
    """Write a gzipped archive of `source` to `target` atomically, even with concurrent processes. Blocking.

    Args:
        what: A name for `source` in error messages.

    Raises:
        SandboxError: `source` cannot be read, or the disk is full.
    """

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
        return member

    if not source.is_dir():
        raise SandboxError(f"the {what} is not a directory of this host: {str(source)!r}")
    part = target.with_suffix(f".{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(part, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=_LEVEL) as archive:
            archive.add(source, ".", filter=owned)
        part.replace(target)
    except OSError as error:
        raise SandboxError(f"the {what} {str(source)!r} cannot be copied: {error}") from None
    finally:
        part.unlink(missing_ok=True)
