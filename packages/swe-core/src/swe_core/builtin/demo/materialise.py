"""A `git fast-import` stream becomes a repository in a cache, once."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from swe_core.errors import TaskError
from swe_core.system.seal import Seal, contents_of, locked, set_aside

logger = logging.getLogger(__name__)

_BRANCH = "refs/heads/main"


def materialise(stream: Path, base_commit: str, cache: Path) -> Path:
    """Return the repository of `stream`: a clean work tree at `base_commit`, the tip of its only branch.

    It has no remote, tag, hook or later commit, so nothing in it shows how the bug was fixed. It is created
    once per content of `stream`, and again if a check finds it changed (swe_core.system.seal). Processes may
    call this at the same time.

    Args:
        stream: Input of `git fast-import`, which writes the branch main.
        base_commit: The id that the tip must have.
        cache: A directory for repositories; it is created.

    Raises:
        TaskError: There is no usable git, `cache` cannot be written, or `stream` ends elsewhere.
    """
    data = stream.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    repository = cache / f"{stream.parent.name}-{digest[:16]}"
    try:
        if not Seal(repository).holds():
            with locked(cache):
                if not Seal(repository).holds():  # no other process has made it
                    _make(data, repository)
                    Seal(repository).put()
    except OSError as error:
        raise TaskError(
            f"the demo's repositories cannot be made in {str(cache)!r}: {error.strerror}; "
            "let XDG_CACHE_HOME name a directory that can be written"
        ) from None
    if _tip(repository) != base_commit:
        raise TaskError(
            f"the demo's repository {str(repository)!r} is not at its commit {base_commit[:12]}: its "
            "history.fast-import ends elsewhere; install swe-core anew"
        )
    return repository


def _make(data: bytes, repository: Path) -> None:
    """Create the repository beside its final place and move it there, unless that holds the same.

    So other processes never see half of it. The caller has locked the cache.
    """
    place = Path(tempfile.mkdtemp(prefix=f".{repository.name}-", dir=repository.parent))
    try:
        place.chmod(0o755)
        _git(place, "init", "--quiet", "--template=", "--object-format=sha1", "--initial-branch=main")
        _git(place, "fast-import", "--quiet", "--done", stdin=data)
        _git(place, "checkout", "--quiet", "--force", "main")
        (place / ".git" / "index").unlink()  # it has the times of the files; each copy has its own
        _git(place, "read-tree", "main")
        if repository.is_symlink() or repository.exists():
            if contents_of(repository) == contents_of(place):
                return
            aside = set_aside(repository)
            logger.warning(
                "the demo's repository %r is not what is made there: it is made anew, and what was there is "
                "in %r",
                str(repository),
                str(aside),
            )
        place.rename(repository)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _tip(repository: Path) -> str | None:
    """Return the tip of the checked-out branch, read without a process; None if the files are not ours."""
    try:
        head = (repository / ".git" / "HEAD").read_text()
        tip = (repository / ".git" / _BRANCH).read_text()
    except OSError:
        return None
    return tip.strip() if head.strip() == f"ref: {_BRANCH}" else None


def _git(repository: Path, *args: str, stdin: bytes = b"") -> None:
    """Run git in `repository`, without the user's configuration."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "XDG_"))}
    env |= {
        "HOME": str(repository / ".git"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_COMMITTER_NAME": "swe-core demo",  # goes into the reflog
        "GIT_COMMITTER_EMAIL": "demo@swe-core.invalid",
        "GIT_COMMITTER_DATE": "2025-01-01T00:00:00Z",
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(["git", *args], cwd=repository, env=env, input=stdin, capture_output=True)
    except FileNotFoundError:
        raise TaskError("the demo's tasks need git: install git and let PATH lead to it") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise TaskError(
            f"git could not make the demo's repository {repository.name!r}: {said[:300]}; git 2.29 or newer "
            "is needed"
        )
