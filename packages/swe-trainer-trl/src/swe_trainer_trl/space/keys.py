"""The keys of Spaces that were deployed from this machine, in files that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from swe_core.errors import UsageError


class KeyStore:
    """A store with one file per Space.

    Args:
        directory: Directory of the files; None for the default below the user's state directory.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or platformdirs.user_state_path("swe-core") / "spaces"

    def keep(self, repo_id: str, key: str) -> None:
        """Store the key of a Space. It replaces an earlier key.

        Raises:
            UsageError: The file cannot be written.
        """
        path = self._path(repo_id)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(key)
        except OSError as error:
            raise UsageError(
                f"the key of the Space cannot be kept in {str(path)!r}: {error.strerror}; make that "
                "directory one that you may write to"
            ) from None

    def find(self, repo_id: str) -> str | None:
        """Return the key of a Space; None if the Space was not deployed from this machine."""
        try:
            return self._path(repo_id).read_text()
        except OSError:
            return None

    def forget(self, repo_id: str) -> None:
        """Remove the key of a Space."""
        self._path(repo_id).unlink(missing_ok=True)

    def _path(self, repo_id: str) -> Path:
        return self._directory / repo_id.replace("/", "--")
