"""Several small files in one transfer: the standard input of a `tar -x` inside."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive of these files, by name."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()
