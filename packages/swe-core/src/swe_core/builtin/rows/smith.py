"""SWE-smith: the image's repository works, and the row's patch adds the bug."""

from __future__ import annotations

import re
from collections.abc import Mapping

from swe_core.api.task import Task
from swe_core.builtin.rows.reverse import NotReversible, reversed_diff
from swe_core.builtin.rows.row import CONDA, Row

_PYTEST = "pytest --disable-warnings --color=no --tb=no --verbose -rA"
_OF_REPO: Mapping[str, tuple[str, str]] = {
    "python__mypy": ("pytest --color=no -rA", "pytest"),  # swesmith adds `-k` with the names of FAIL_TO_PASS
    "paramiko__paramiko": ("pytest -rA --color=no --disable-warnings", "pytest"),
    "pydantic__pydantic": (f"/root/.local/bin/uv run {_PYTEST}", "pytest"),
    "tornadoweb__tornado": ("python -m tornado.test --verbose", "unittest"),
    "un33k__python-slugify": ("python test.py --verbose", "unittest"),
}
"""Repositories with their own command in swesmith 0.0.9 (`swesmith.profiles.python`)."""

_UNKNOWN = frozenset({"mido__mido"})
"""Repositories whose command here would name the tests in another way."""

_REPO = re.compile(r"(?:.*/)?(?P<name>[^/]+?)\.(?P<commit>[0-9a-f]{7,40})")
_IMAGE = re.compile(r"(?:^|/)swesmith\.")
_NAMESPACE = "swebench/"


def is_smith(row: Row) -> bool:
    """Return whether a row is one of SWE-smith: it has such an image and no tests of its own."""
    image = row.columns.get("image_name")
    return isinstance(image, str) and bool(_IMAGE.search(image)) and not row.has("test_patch")


def smith_task(row: Row) -> Task:
    """Return the task of a row of SWE-smith: `patch` is the bug, its reverse the gold patch.

    See `families.task_of` for errors.
    """
    repo = row.text("repo", blank=False)
    known = _REPO.fullmatch(repo)
    if not known:
        row.wrong("repo", repo, "a repository of SWE-smith, such as 'swesmith/oauthlib__oauthlib.1fd52536'")
    bug = row.diff("patch")
    if not bug.strip():
        row.wrong("patch", bug, "the diff that puts the bug in")
    try:
        gold = reversed_diff(bug)
    except NotReversible as error:
        row.reject(f"the column 'patch' cannot be reversed: {error}")
    tests = row.tests()
    command, parser = _command(row, known["name"], tests["fail_to_pass"])
    return Task(
        instance_id=row.instance_id(),
        repo=repo,
        base_commit=row.commit() if row.has("base_commit") else known["commit"],
        problem_statement=row.text("problem_statement", blank=False),
        patch=gold,
        bug_patch=bug,
        test_patch="",
        fail_to_pass=tests["fail_to_pass"],
        pass_to_pass=tests["pass_to_pass"],
        image=_image(row.image("image_name")),
        setup=CONDA,
        test_command=command,
        test_files=() if parser == "unittest" else None,
        log_parser=parser,
    )


def _command(row: Row, name: str, ids: tuple[str, ...]) -> tuple[str, str]:
    own = row.command("test_command")
    if own is not None:
        return own, row.log_parser("log_parser", row.columns.get("log_parser") or "pytest")
    if name in _OF_REPO:
        return _OF_REPO[name]
    if name in _UNKNOWN or not all(test.split("::", 1)[0].endswith(".py") for test in ids):
        row.reject(
            f"no test command is known for the repository {name!r}; add a column 'test_command' with the "
            "shell command that the test files are appended to, and 'log_parser' where it is not pytest's"
        )
    return _PYTEST, "pytest"


def _image(name: str) -> str:
    """Return the full name of an image: older rows lack the owner, and have an invalid "__"."""
    return name if "/" in name else _NAMESPACE + name.lower().replace("__", "_1776_")
