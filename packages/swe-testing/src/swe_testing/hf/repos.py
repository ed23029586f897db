"""Repositories of the local Hub with their commits, and the state of Spaces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from swe_testing.hf.accounts import Refused

Kind = Literal["model", "dataset", "space"]
MAIN = "main"


def now() -> str:
    """Return the time in the Hub's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def blob_id(data: bytes) -> str:
    """Return git's id of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Commit:
    """A state of a repository: its id (40 hex digits) and path → content of all its files."""

    id: str
    title: str
    message: str
    date: str
    files: Mapping[str, bytes]


@dataclass(slots=True)
class Space:
    """The state of a Space besides its repository. A test may change all of it.

    Args:
        secrets: Name → value; the API never shows a value.
        variables: Name → value.
        outcome: The stage that its next build or start ends in.
        paused: Whether a user has paused it.
        ready_at: End of its build or start by the event loop's clock; None without one.
        restarts: Number of builds and starts.
        build_log: Lines of its build.
        run_log: Lines that its program prints.
        host: The URL of its program; served by the test.
    """

    sdk: str
    hardware: str = "cpu-basic"
    sleep_time: int | None = None
    secrets: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    outcome: str = "RUNNING"
    paused: bool = False
    ready_at: float | None = None
    restarts: int = 0
    build_log: list[str] = field(default_factory=list)
    run_log: list[str] = field(default_factory=list)
    host: str | None = None


@dataclass(slots=True)
class Repo:
    """A repository.

    Args:
        id: OWNER/NAME.
        branches: Name → its commits, the newest last; `main` always exists.
        space: None where it is no Space.
    """

    kind: Kind
    id: str
    private: bool
    branches: dict[str, list[Commit]]
    created_at: str = field(default_factory=now)
    space: Space | None = None

    @classmethod
    def new(cls, kind: Kind, repo_id: str, private: bool) -> Repo:
        """Return a new repository with nothing but `.gitattributes`."""
        repo = cls(kind, repo_id, private, {MAIN: []})
        repo.commit(
            MAIN, {".gitattributes": b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"}, "initial commit"
        )
        return repo

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return path → content on `main`."""
        return self.branches[MAIN][-1].files

    @property
    def commits(self) -> Sequence[Commit]:
        """Return the commits of `main`, the newest last."""
        return self.branches[MAIN]

    def at(self, revision: str) -> Commit:
        """Return the commit of a branch's name or a commit's id, or refuse with 404."""
        if revision in self.branches:
            return self.branches[revision][-1]
        for commit in self._all():
            if commit.id == revision:
                return commit
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def history(self, revision: str) -> list[Commit]:
        """Return the commits up to `revision`, the newest first, or refuse with 404."""
        last = self.at(revision)
        for commits in self.branches.values():
            if last in commits:
                return commits[commits.index(last) :: -1]
        return [last]

    def commit(self, branch: str, files: Mapping[str, bytes], title: str, message: str = "") -> Commit:
        """Add a state to a branch."""
        commits = self.branches[branch]
        number = sum(map(len, self.branches.values()))
        named = "\0".join(
            [self.kind, self.id, str(number), title, *(f"{p}={blob_id(d)}" for p, d in files.items())]
        )
        made = Commit(
            hashlib.sha1(named.encode(), usedforsecurity=False).hexdigest(), title, message, now(), files
        )
        commits.append(made)
        return made

    def _all(self) -> Iterator[Commit]:
        for commits in self.branches.values():
            yield from commits
