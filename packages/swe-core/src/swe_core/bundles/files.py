"""Put files of the host into a bundle."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_FOR_ALL = 0o555


def link_or_copy(source: Path, target: Path) -> None:
    """Link a program if both paths are on one disk and every user may run it; otherwise copy it.

    Raises:
        OSError: It can neither be linked nor copied.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.stat().st_mode & _FOR_ALL == _FOR_ALL:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            pass
        else:
            return
    shutil.copyfile(source, target)
    target.chmod(0o755)
