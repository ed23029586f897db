"""What was put into a cache is still what is there: for caches whose files are executed or graded.

A seal says of each file what it held, and by which `stat` that is known. As long as size, times and inode
are those of the seal, nothing has been written: nobody can set a ctime back. Only other files are read, and
what they hold decides. Seals are in the user's state directory, so whatever writes into a cache, a tool that
goes wrong or code that got out of a sandbox, does not write its seal. A process that can write there could
change the program itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

_TICK = 0.02
"""Seconds within which a kernel may give two writes the same time."""
_CHANGED = ".changed"

_Known = dict[str, tuple[list[int], str]]
"""Path inside → size, mtime and ctime [ns], inode and mode; what it is."""


class Seal:
    """The seal of a directory, or of one file. Methods block; any number of processes may use the same one.

    Args:
        root: What it is of. Neither it nor its seal need be there.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        name = hashlib.sha256(os.path.abspath(root).encode()).hexdigest()[:32]
        self._file = platformdirs.user_state_path("swe-core") / "seals" / f"{name}.json"

    def contents(self) -> dict[str, str]:
        """What is there, for who knows what it has to be: the path of each file inside, `.` for a root that
        is no directory, → `file SHA256`, `program SHA256` where it is executable, `link TARGET` or `other`.

        Raises:
            OSError: It cannot be read, or changes now.
        """
        known = self._load()
        found = _look(self._root, known)
        if found != known:
            self._save(found)
        return _contents(found)

    def holds(self) -> bool:
        """Whether it is what was sealed; False where that is not known, or cannot be read."""
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
        """Seal what is there now; where the state directory cannot be written, nothing is sealed.

        Raises:
            OSError: It cannot be read.
        """
        self._save(_look(self._root, {}))

    def _load(self) -> _Known:
        try:
            found = json.loads(self._file.read_bytes())
            return {name: ([int(sign) for sign in signs], str(what)) for name, (signs, what) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):  # damaged is as good as none
            return {}

    def _save(self, found: _Known) -> None:
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._file.parent, prefix=".new-")
            try:
                with open(descriptor, "w") as file:
                    json.dump(found, file)
                os.replace(name, self._file)
            except OSError:
                os.unlink(name)


def contents_of(root: Path) -> dict[str, str]:
    """As `Seal.contents`, of what has no seal: every file is read.

    Raises:
        OSError: It cannot be read, or changes now.
    """
    return _contents(_look(root, {}))


def digest_of(contents: Mapping[str, str]) -> str:
    """The SHA-256 of what `Seal.contents` gives: to pin a whole directory."""
    return hashlib.sha256(json.dumps(sorted(contents.items())).encode()).hexdigest()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One builder at a time in a cache, which is made; the kernel lets go of the lock of one that is killed.

    Raises:
        OSError: It cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_aside(path: Path) -> Path:
    """Move away what is at `path` and return its new place, a sibling. It is kept, for sandboxes that use it
    and for inspection; what was set aside of this path before is removed.

    Raises:
        OSError: It cannot be moved.
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
    """All that is no directory, links themselves and not what they lead to, each asked for once."""
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
    if 0 < young <= _TICK:  # a write after this one could have its time
        time.sleep(young)
    return f"{'program' if status.st_mode & 0o111 else 'file'} {_sha256(path)}"


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _contents(known: _Known) -> dict[str, str]:
    return {name: what for name, (_, what) in known.items()}
