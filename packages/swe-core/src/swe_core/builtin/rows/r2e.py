"""R2E-Gym: the tests are in the image, and the complete result is compared.

As in its own evaluation (`r2egym.agenthub.runtime.docker`): the tests come from /r2e_tests, `run_tests.sh`
runs them, and the results must equal `expected_output_json`. The agent sees neither. The repository of the
image is never reset.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_core.api.task import Task, TestStatus
from swe_core.builtin.rows.row import Row
from swe_core.builtin.swe.parsers import r2e_name

WORKDIR = "/testbed"
TESTS = "/r2e_tests"
HIDDEN = (
    TESTS,
    *(
        f"{WORKDIR}/{name}"
        for name in (
            "r2e_tests",
            "run_tests.sh",
            "syn_issue.json",
            "expected_test_output.json",
            "execution_result.json",
            "parsed_commit.json",
            "modified_files.json",
            "modified_entities.json",
        )
    ),
)
"""Paths that R2E-Gym hides from the agent; an image has some of them."""

_SETUP = f"""export PATH="{WORKDIR}/.venv/bin:/root/.venv/bin:/root/.local/bin:$PATH"
rm -rf {WORKDIR}/r2e_tests
cp -R {TESTS} {WORKDIR}/r2e_tests"""
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_OLD_COMMIT = re.compile(r"[0-9a-f]{7,64}\^?")  # R2E-Gym writes it as the parent of the fix: "<fix>^"
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TEST_FOLDERS = frozenset({"test", "Test", "tests", "Tests"})
_STATUSES = ("PASSED", "FAILED", "ERROR")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Line(_Part):
    content: str
    type: Literal["context", "added", "deleted", "note"]

    def __str__(self) -> str:
        return {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}[self.type] + self.content


class _Range(_Part):
    start: int
    length: int | None = None

    def __str__(self) -> str:
        return str(self.start) if self.length is None else f"{self.start},{self.length}"


class _Descriptor(_Part):
    old_range: _Range
    new_range: _Range
    section: str = ""


class _LineGroup(_Part):
    all_lines: list[_Line]


class _Hunk(_Part):
    descriptor: _Descriptor
    line_group: _LineGroup

    def lines(self) -> list[str]:
        at = self.descriptor
        head = f"@@ -{at.old_range} +{at.new_range} @@ {at.section}".rstrip()
        return [head, *map(str, self.line_group.all_lines)]


class _File(_Part):
    path: str


class _Header(_Part):
    file: _File
    misc_line: str | None = None


class _Index(_Part):
    old_commit_hash: str
    new_commit_hash: str
    mode: str = ""


class _FileDiff(_Part):
    header: _Header
    index_line: _Index | None = None
    is_binary_file: bool = False
    minus_file: _File | None = None
    plus_file: _File | None = None
    hunks: list[_Hunk] = Field(default_factory=list)

    def lines(self) -> list[str]:
        path = self.header.file.path
        lines = [f"diff --git a/{path} b/{path}"]
        if self.header.misc_line:
            lines.append(self.header.misc_line)
        if self.index_line:
            index = self.index_line
            lines.append(f"index {index.old_commit_hash}..{index.new_commit_hash} {index.mode}".rstrip())
        if self.minus_file and self.plus_file:
            lines += [f"--- {self.minus_file.path}", f"+++ {self.plus_file.path}"]
        return lines + [line for hunk in self.hunks for line in hunk.lines()]


class _Commit(_Part):
    file_diffs: list[_FileDiff]
    old_commit_hash: str


def r2e_task(row: Row) -> Task:
    """Return the task of a row of R2E-Gym; see `families.task_of` for errors."""
    name = row.text("repo_name")
    if not _REPO.fullmatch(name):
        row.wrong("repo_name", name, "the short name of a repository, such as 'sympy'")
    fixed = row.commit("commit_hash")
    commit = _commit(row)
    statement = row.text("problem_statement", blank=False)
    issue = _ISSUE.search(statement)
    return Task(
        instance_id=row.instance_id() if row.has("instance_id") else f"{name}__{fixed}",
        repo=name,
        base_commit=commit.old_commit_hash,
        problem_statement=issue[1].strip() if issue and issue[1].strip() else statement,
        patch=gold_patch(commit),
        test_patch="",
        fail_to_pass=(),
        pass_to_pass=(),
        expected=_expected(row),
        hidden=HIDDEN,
        image=row.image("docker_image"),
        workdir=WORKDIR,
        setup=_SETUP,
        test_command="bash run_tests.sh",
        test_files=(),
        log_parser="r2e",
    )


def gold_patch(commit: _Commit) -> str:
    """Return the commit's change without tests and binary files, whose content it lacks."""
    files = [
        diff for diff in commit.file_diffs if not diff.is_binary_file and not _is_test(diff.header.file.path)
    ]
    return "".join(f"{line}\n" for diff in files for line in diff.lines())


def _is_test(path: str) -> bool:
    *folders, name = path.split("/")
    return name.endswith("_test.py") or name.startswith("test_") or not _TEST_FOLDERS.isdisjoint(folders)


def _commit(row: Row) -> _Commit:
    try:
        commit = _Commit.model_validate(dict(row.table("parsed_commit_content")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        row.reject(f"the column 'parsed_commit_content' is no commit of R2E-Gym: {where}: {first['msg']}")
    if not _OLD_COMMIT.fullmatch(commit.old_commit_hash):
        expected = "a commit id, or one with '^' for its parent"
        row.wrong("parsed_commit_content.old_commit_hash", commit.old_commit_hash, expected)
    return commit


def _expected(row: Row) -> dict[str, TestStatus]:
    table: dict[Any, Any] = dict(row.table("expected_output_json"))
    if not table:
        row.wrong("expected_output_json", table, "at least one test")
    expected: dict[str, TestStatus] = {}
    for test, status in table.items():
        if status not in _STATUSES:
            row.wrong(f"expected_output_json[{test!r}]", status, f"one of {', '.join(_STATUSES)}")
        expected[r2e_name(f"::{test}")] = status
    return expected
