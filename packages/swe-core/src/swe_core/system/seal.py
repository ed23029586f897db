"""Detect changes in caches whose files are executed or graded.

A seal has the hash and the `stat` of each file. A file with the same size, times and inode is unchanged,
because no program can set a ctime back. Only other files are read again. Seals are in the user's state
directory, apart from the caches: a faulty tool or code that escapes a sandbox may write to a cache, but not
to its seal. A process that can write to the state directory can also change the program itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from swe_core.system.files import write_whole

_TICK = 0.02
"""Resolution of the kernel's file times [s]."""
_CHANGED = ".changed"

_Known = dict[str, tuple[list[int], str]]
"""Path inside → (size, mtime [ns], ctime [ns], inode, mode) and the content, as in `Seal.contents`."""


class Seal:
    """The seal of a directory or file. Methods block. Several processes may use the same seal.

    Args:
        root: The sealed directory or file, which may be absent.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        name = hashlib.sha256(os.path.abspath(root).encode()).hexdigest()[:32]
        self._file = platformdirs.user_state_path("swe-core") / "seals" / f"{name}.json"

    def contents(self) -> dict[str, str]:
        """Return path inside → `file SHA256`, `program SHA256` (executable), `link TARGET` or `other`.

        A root that is no directory has the path `.`.

        Raises:
            OSError: A file cannot be read, or changes meanwhile.
        """
        known = self._load()
        found = _look(self._root, known)
        if found != known:
            self._save(found)
        return _contents(found)

    def holds(self) -> bool:
        """Return whether the content is as sealed; False without a seal or where a file cannot be read."""
        known = self._load()
        try:
            found = _look(self._root, known)
        except OSError:
            return False
        same = bool(known) and _contents(found) == _contents(known)
        if same and found != known:
            self._save(found)
        return same

    def put(self) -> None:
        """Seal the current content. Do nothing where the state directory is not writable.

        Raises:
            OSError: A file cannot be read.
        """
        self._save(_look(self._root, {}))

    def _load(self) -> _Known:
        try:
            found = json.loads(self._file.read_bytes())
            return {name: ([int(sign) for sign in signs], str(what)) for name, (signs, what) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):  # a damaged seal counts as none
            return {}

    def _save(self, found: _Known) -> None:
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(found).encode(), f".{secrets.token_hex(8)}.new")


def contents_of(root: Path) -> dict[str, str]:
    """Return the same as `Seal.contents` without a seal: every file is read.

    Raises:
        OSError: A file cannot be read, or changes meanwhile.
    """
    return _contents(_look(root, {}))


def digest_of(contents: Mapping[str, str]) -> str:
    """Return the SHA-256 of the result of `Seal.contents`, which pins a whole directory."""
    return hashlib.sha256(json.dumps(sorted(contents.items())).encode()).hexdigest()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Create a cache directory and lock it for one builder. The kernel releases the lock of a killed process.

    Raises:
        OSError: The directory is not writable.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_aside(path: Path) -> Path:
    """Move `path` to a sibling path and return that, for sandboxes that still use it and for inspection.

    What an earlier call set aside for `path` is removed.

    Raises:
        OSError: `path` cannot be moved.
    """
    prefix = f".{path.name}-"
    for earlier in path.parent.glob(f"{prefix}*{_CHANGED}"):
        shutil.rmtree(earlier, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=prefix, suffix=_CHANGED, dir=path.parent)) / path.name
    path.rename(place)
    return place


def _look(root: Path, known: _Known) -> _Known:
    found: _Known = {}
    for path, status in _files(os.fspath(root)):
        name = os.path.relpath(path, root)
        signs = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode]
        before = known.get(name)
        found[name] = (signs, before[1] if before and before[0] == signs else _what(path, status))
    return found


def _files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file below `root` except directories, with its `lstat`."""
    top = os.lstat(root)
    if not stat.S_ISDIR(top.st_mode):
        yield root, top
        return
    waiting = [root]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry.path, entry.stat(follow_symlinks=False)


def _what(path: str, status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return f"link {os.readlink(path)}"
    if not stat.S_ISREG(status.st_mode):
        return "other"
    young = status.st_ctime + _TICK - time.time()
    if 0 < young <= _TICK:  # a later write could get the same time
        time.sleep(young)
    return f"{'program' if status.st_mode & 0o111 else 'file'} {_sha256(path)}"


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _contents(known: _Known) -> dict[str, str]:
    return {name: what for name, (_, what) in known.items()}
