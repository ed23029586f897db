"""What `tasks verify` found: one line of JSON a task, in a file that only grows.

The file holds one `TaskVerdict` a line, in the order in which tasks ended; a task that is verified again gets
another line, and its last one counts. So a killed program loses no finished task, and files can be joined
with `cat`.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Literal

import orjson
from pydantic import Field, ValidationError

from swe_core.api.records import Record
from swe_core.errors import UsageError

Verdict = Literal["usable", "broken_gold", "unbroken", "flaky", "cheatable", "missing_image", "error"]
VERDICTS: tuple[Verdict, ...] = (
    "usable",  # gold resolves, nothing else does
    "broken_gold",  # the gold patch does not resolve it
    "unbroken",  # it is resolved without a change
    "flaky",  # the same patch ended in two ways
    "cheatable",  # a patch that fixes nothing earns a reward
    "missing_image",  # its image is absent and cannot be pulled
    "error",  # no verdict could be reached
)

REPORT_FORMAT: Literal[1] = 1


class Check(Record):
    """One patch that was graded, or that could not be made."""

    name: str = Field(description="`gold`, `empty`, `unrelated`, or the name of a cheat")
    resolved: bool | None = Field(
        description="null where the recipe does not fit the task: nothing was graded"
    )
    reward: float = Field(default=0.0, description="what it earned")
    reason: str = Field(default="", description="one sentence where it is not resolved, or ids are no tests")
    tampering: tuple[str, ...] = Field(default=(), description="kinds of tampering that the grade lists")
    patch_bytes: int = Field(default=0, ge=0)
    patch: str | None = Field(default=None, description="the patch of a cheat that earned a reward")
    seconds: float = Field(default=0.0, ge=0, description="wall time, opening of the sandboxes included")
    test_seconds: float = Field(default=0.0, ge=0, description="the bare test run")


class TaskVerdict(Record):
    """What is known of one task."""

    format: Literal[1] = REPORT_FORMAT
    task_id: str
    verdict: Verdict
    reason: str = Field(default="", description="one sentence; empty where it is usable")
    digest: str = Field(description="`Task.digest` of the row that was verified")
    image: str | None = Field(default=None, description="the image that the row names")
    image_id: str | None = Field(default=None, description="what that name stood for")
    base_tree: str | None = Field(
        default=None, description="git id of the repository's files before any patch"
    )
    unchecked: str = Field(default="", description="as in a grade")
    sandbox: str
    grader: str
    versions: dict[str, str] = Field(description="swe-core, python; `program` is a digest of swe-core's code")
    repeat: int = Field(ge=1, description="how often gold and no change were graded")
    checks: tuple[Check, ...] = ()
    started_at: datetime
    seconds: float = Field(ge=0)

    def tally(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """How many were resolved, of how many that were graded: of gold, of no fix, of cheats."""
        graded = [check for check in self.checks if check.resolved is not None]
        nothing = ("empty", "unrelated")
        kinds = (
            [check for check in graded if check.name == "gold"],
            [check for check in graded if check.name in nothing],
            [check for check in graded if check.name not in ("gold", *nothing)],
        )
        gold, no_fix, cheats = ((sum(bool(one.resolved) for one in kind), len(kind)) for kind in kinds)
        return gold, no_fix, cheats

    @property
    def cheated_at(self) -> bool:
        """Whether cheats were tried, or nothing of it was fit for one: False with `--cheats none`."""
        return any(check.name not in ("gold", "empty", "unrelated") for check in self.checks)

    def outweighs(self, later: TaskVerdict) -> bool:
        """Whether this still counts although `later` calls the same task usable: it was tried harder here."""
        same = (self.digest, self.image_id) == (later.digest, later.image_id)
        names, later_names = ({check.name for check in one.checks} for one in (self, later))
        less = not names <= later_names or later.repeat < self.repeat
        return same and less and later.verdict == "usable" and self.verdict != "usable"


class VerifyReport(Record):
    """A whole report: the last line of each task, or one that outweighs it."""

    tasks: tuple[TaskVerdict, ...] = ()

    @classmethod
    def read(cls, path: Path) -> VerifyReport:
        """Read a report. A torn last line, of a program that was killed, is left out.

        Raises:
            UsageError: The file cannot be read, or is no report of `tasks verify`.
        """
        try:
            *lines, _torn = path.read_bytes().split(b"\n")
        except OSError as error:
            raise UsageError(f"cannot read the report {str(path)!r}: {error.strerror}") from None
        found: dict[str, TaskVerdict] = {}
        for number, line in enumerate(lines, 1):
            try:
                verdict = TaskVerdict.model_validate_json(line)
            except ValidationError:
                raise UsageError(
                    f"line {number} of {str(path)!r} is not a verdict of this version's `swe-core tasks "
                    "verify`: pass a file that it wrote with --out"
                ) from None
            before = found.pop(verdict.task_id, None)
            found[verdict.task_id] = before if before and before.outweighs(verdict) else verdict
        if not found:
            raise UsageError(
                f"the report {str(path)!r} is empty: write one with `swe-core tasks verify --out FILE`"
            )
        return cls(tasks=tuple(found.values()))

    def counts(self) -> dict[str, int]:
        """Return the number of tasks of each verdict that occurs, the good one first."""
        counted = Counter(task.verdict for task in self.tasks)
        return {name: counted[name] for name in VERDICTS if counted[name]}


class ReportFile:
    """A report that is being written.

    Args:
        path: A new file, or a report to add to.

    Raises:
        UsageError: `path` is something else, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if path.exists() and path.stat().st_size:
                whole = path.read_bytes().rfind(b"\n") + 1
                if whole:
                    VerifyReport.read(path)  # never append to a file of another kind
                elif not path.read_bytes().startswith(b'{"format":'):
                    raise UsageError(
                        f"--out {str(path)!r} exists and is no report of `tasks verify`: name another file"
                    )
                os.truncate(path, whole)
            path.open("ab").close()
        except OSError as error:
            raise UsageError(f"cannot write the report {str(path)!r}: {error.strerror}") from None

    def append(self, verdict: TaskVerdict) -> None:
        """Add one line and sync it to disk.

        Raises:
            OSError: The disk is full, or the file cannot be written any more.
        """
        data = orjson.dumps(verdict.model_dump(mode="json")) + b"\n"
        with self._path.open("ab") as file:
            before = file.tell()
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            except OSError:  # half a line would spoil every line after it
                os.truncate(self._path, before)
                raise
