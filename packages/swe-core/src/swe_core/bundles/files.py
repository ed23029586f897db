"""Put programs and libraries of the host into a bundle."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from swe_core.system.seal import Seal

_FOR_ALL = 0o555


def copy(source: Path, target: Path) -> None:
    """Copy a program or library, for every user.

    Raises:
        OSError: It cannot be copied.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def link_or_copy(source: Path, target: Path) -> None:
    """Link a large program if both paths are on one disk and every user may run it; otherwise copy it.

    Raises:
        OSError: It can neither be linked nor copied.
    """
    if source.stat().st_mode & _FOR_ALL == _FOR_ALL:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            pass
        else:
            return
    copy(source, target)


def sealed_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, which is read again only where it has changed.

    Raises:
        OSError: It cannot be read.
    """
    return Seal(path).contents()["."].rpartition(" ")[2]
