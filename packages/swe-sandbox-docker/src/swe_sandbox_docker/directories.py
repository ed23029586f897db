"""Private temporary directories that name their owner process, so that a later run can remove them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swe_core.sandboxing.relay.unix_socket import require_room
from swe_core.system.process_owner import current_owner, is_orphaned

_PREFIX = "swe-docker-"
_RANDOM = "00000000"  # as long as the random part of mkdtemp
_SHARED = "s"
_OWNER = "owner"


def make() -> Path:
    """Create a directory that only this user may enter."""
    private = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (private / _OWNER).write_text(current_owner())
    return private


def remove(private: Path) -> None:
    """Remove a directory of `make`."""
    shutil.rmtree(private, ignore_errors=True)


@contextmanager
def shared_directory() -> Iterator[Path]:
    """Provide a directory for a container, inside a private one."""
    private = make()
    try:
        shared = private / _SHARED
        shared.mkdir()
        shared.chmod(0o755)  # despite the umask: the sandbox's user must reach the socket
        yield shared
    finally:
        remove(private)


def require_short_path() -> None:
    """Raise if a socket in a `shared_directory` would have too long a path.

    Raises:
        PolicyRefused: The temporary directory has a long path.
    """
    require_room(Path(tempfile.gettempdir(), f"{_PREFIX}{_RANDOM}", _SHARED))


def reap() -> None:
    """Remove the directories of processes that have exited."""
    for private in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            owner = (private / _OWNER).read_text()
        except OSError:
            continue  # another user's, or incomplete
        if is_orphaned(owner):
            remove(private)
