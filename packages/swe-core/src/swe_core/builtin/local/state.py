"""The host's directories of local sandboxes, each with its owner, so that leftovers can be reaped."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from swe_core.errors import SandboxError
from swe_core.system.process_owner import OwnerState, current_owner, process_state

_OWNER_FILE = "owner.json"
_HALF, _SEPARATOR = ".", "~"


def root() -> Path:
    """Return this user's directory of sandboxes; its path is short because it contains unix sockets.

    Raises:
        SandboxError: It cannot be created, or belongs to another user.
    """
    path = _root()
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise SandboxError(f"cannot make the directory {str(path)!r}: {error.strerror}; set TMPDIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SandboxError(
            f"{str(path)!r} must be a directory that only you can enter; remove it or set TMPDIR"
        )
    return path


def sockets(name: str) -> Path:
    """Return the directory of the relay sockets of the sandbox `name`."""
    return _root() / name / "sockets"


def _root() -> Path:
    return Path(tempfile.gettempdir(), f"swe-core-{os.getuid()}")


def create(cgroups: Sequence[Path], name: str, image: str | None = None) -> Path:
    """Create the directory of the sandbox `name`, with its owner, its cgroups and the name of its image."""
    making = root() / _half(name)  # renamed when its owner is in it
    making.mkdir(mode=0o700)
    owner = {"owner": current_owner(), "cgroups": [str(path) for path in cgroups], "image": image}
    (making / _OWNER_FILE).write_text(json.dumps(owner))
    path = making.with_name(name)
    making.rename(path)
    return path


def new_name() -> str:
    """Return a name for a sandbox."""
    return secrets.token_hex(5)


def _half(name: str) -> str:
    """Return the name of the sandbox's directory while it is created or removed.

    The name contains the process, so that the directory is found if that process was killed.
    """
    return f"{_HALF}{name}{_SEPARATOR}{current_owner().replace('/', _SEPARATOR)}"


def remove(path: Path) -> None:
    """Remove a sandbox's directory, whatever modes its content has."""
    going = path if path.name.startswith(_HALF) else path.with_name(_half(path.name))
    path.rename(going)  # its owner file may go before the rest
    remove_tree(going)


def remove_tree(path: Path) -> None:
    """Remove a directory, whatever modes its content has. One that is not there is no error."""

    def unlock(function: object, failed: str, error: object) -> None:
        os.chmod(Path(failed).parent, 0o700)
        if os.path.isdir(failed) and not os.path.islink(failed):
            os.chmod(failed, 0o700)
            shutil.rmtree(failed)
        else:
            os.unlink(failed)

    if os.path.lexists(path):
        shutil.rmtree(path, onerror=unlock)


@dataclass(frozen=True, slots=True)
class SandboxState:
    """The directory of a sandbox, whole or half made or half removed.

    Args:
        owner: Whether the process that made it lives.
        cgroups: Those that it remembers.
        image: The name of its image; None without one.
    """

    name: str
    path: Path
    owner: OwnerState
    cgroups: list[Path]
    created: datetime
    image: str | None


def kept() -> list[SandboxState]:
    """Return the directories of all sandboxes of this user."""
    return [found for path in root().iterdir() if (found := _read(path)) is not None]


def _read(path: Path) -> SandboxState | None:
    """Return the owner file of `path`; None if the directory is being removed."""
    try:
        if path.name.startswith(_HALF):  # cgroups come after it was made, and go before it is removed
            name, _, made_by = path.name.removeprefix(_HALF).partition(_SEPARATOR)
            owner, groups, image, made = made_by.replace(_SEPARATOR, "/"), [], None, path
        else:
            made = path / _OWNER_FILE
            record = json.loads(made.read_text())
            name, owner, groups = path.name, record["owner"], record["cgroups"]
            image = record.get("image")
        created = datetime.fromtimestamp(made.stat().st_mtime, UTC)
    except (OSError, ValueError):
        return None
    return SandboxState(name, path, process_state(owner), [Path(group) for group in groups], created, image)
