"""Two tasks made of releases on PyPI: a release with a bug, and the next one's fix and tests.

The source distributions are downloaded where the tests run; nothing of them is in this repository. Each
becomes a git repository whose main branch ends at the release with the bug, with the fix left in on another
branch, under a tag and in the reflog, as in images of data sets.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_core.builtin.swe.parsers import parse_pytest

_NOT_THERE = re.compile(r"from versions: none|No matching distribution|ConnectionError|Retrying|Network is")
_WHO = ("-c", "user.name=Maker", "-c", "user.email=maker@example.invalid", "-c", "core.autocrlf=false")


class NoIndex(Exception):
    """The package index cannot be reached, or has not got these releases."""


@dataclass(frozen=True)
class Release:
    """A release with a bug, and the next one.

    Args:
        tests: The directory of the tests.
        issue: What is wrong, in our words.
    """

    name: str
    before: str
    after: str
    tests: str
    issue: str


RELEASES = (
    Release("parse", "1.20.1", "1.20.2", "tests", "A field whose name has a hyphen in it is not recognised."),
    Release("tabulate", "0.8.8", "0.8.9", "test", "Text with a comma between two digits becomes a number."),
)


def make_tasks(directory: Path) -> Path:
    """Make the repositories below `directory`, and the file of rows that name them.

    Raises:
        NoIndex: The releases cannot be downloaded.
    """
    before = _download([f"{one.name}=={one.before}" for one in RELEASES], directory / "before")
    after = _download([f"{one.name}=={one.after}" for one in RELEASES], directory / "after")
    rows = [_row(one, before[one.name], after[one.name], directory / one.name) for one in RELEASES]
    path = directory / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _download(wanted: list[str], place: Path) -> Mapping[str, Path]:
    """Source distributions, unpacked: name → directory."""
    names = [one.partition("==")[0] for one in wanted]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-binary", ",".join(names), "--dest", str(place), *wanted], capture_output=True, text=True
    )
    if done.returncode != 0:
        said = done.stderr.strip()
        if _NOT_THERE.search(said):
            raise NoIndex(f"pip cannot download {', '.join(wanted)}: {said.splitlines()[-1]}")
        raise RuntimeError(f"pip could not download {', '.join(wanted)}: {said}")
    found = {}
    for name in names:
        (archive,) = place.glob(f"{name}-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(place, filter="data")
        found[name] = place / archive.name.removesuffix(".tar.gz")
    return found


def _row(release: Release, before: Path, after: Path, repository: Path) -> dict[str, object]:
    repository.mkdir()
    _git(repository, "init", "-q", "-b", "main")
    base = _commit(repository, before, f"Release {release.before}")
    _git(repository, "checkout", "-q", "-b", "next")
    fix = _commit(repository, after, f"Release {release.after}")
    _git(repository, "tag", release.after)
    _git(repository, "checkout", "-q", "main")
    test_patch = _git(repository, "diff", base, fix, "--", release.tests)
    patch = _git(repository, "diff", base, fix, "--", ".", f":(exclude){release.tests}")
    files = re.findall(rf"^\+\+\+ b/({release.tests}/test_\w+\.py)$", test_patch, re.MULTILINE)
    _git(repository, "checkout", "-q", fix, "--", release.tests)
    failing = _statuses(repository, files)
    _git(repository, "checkout", "-q", fix)
    passing = _statuses(repository, files)
    _git(repository, "checkout", "-q", "-f", "main")
    _git(repository, "clean", "-fdxq")
    passed = [test for test, status in passing.items() if status == "PASSED"]
    return {
        "instance_id": f"pypi__{release.name}-{release.after}",
        "repo": f"pypi/{release.name}",
        "base_commit": base,
        "problem_statement": release.issue,
        "patch": patch,
        "test_patch": test_patch,
        "FAIL_TO_PASS": [test for test in passed if failing.get(test) != "PASSED"],
        "PASS_TO_PASS": [test for test in passed if failing.get(test) == "PASSED"],
        "repository": str(repository),
        "test_command": "python -m pytest -rA",
    }


def _commit(repository: Path, source: Path, message: str) -> str:
    """Make the work tree that of a release, without what the build tool added, and commit it."""
    for old in repository.iterdir():
        if old.name != ".git":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    made = shutil.ignore_patterns("PKG-INFO", "*.egg-info", "__pycache__")
    shutil.copytree(source, repository, ignore=made, dirs_exist_ok=True)
    _git(repository, "add", "--all", "--force")
    _git(repository, "commit", "-q", "-m", message)
    return _git(repository, "rev-parse", "HEAD").strip()


def _statuses(repository: Path, files: list[str]) -> Mapping[str, str]:
    """How the tests of `files` end in the work tree as it is."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-B", "-m", "pytest", "-rA", "-p", "no:cacheprovider", *files]
    where: Any = {"cwd": repository, "env": environment, "stderr": subprocess.STDOUT}
    return parse_pytest(subprocess.run(command, stdout=subprocess.PIPE, **where).stdout)


def _git(repository: Path, *args: str) -> str:
    done = subprocess.run(["git", *_WHO, *args], cwd=repository, capture_output=True, check=True)
    return done.stdout.decode()  # line ends as they are: a diff of CRLF files has both kinds
