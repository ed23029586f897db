"""Rows with their own evaluation script, as swebench 5 publishes SWE-bench and similar sets.

Such a script prepares the environment, puts the test files in place (`git checkout`, `git apply`), prints a
start marker, runs the tests, prints an end marker and restores the test files. Its preparation becomes the
set-up, and the part between the markers the test command, whose exit code is that of the tests; the grader
puts the files in place.
"""

from __future__ import annotations

import re

from swe_core.api.task import Task
from swe_core.builtin.rows.row import Row
from swe_core.builtin.swe.swebench_parsers import START

END = ">>>>> End Test Output"

_DROPPED = re.compile(r"#!|set -\w*x|git (?:checkout|status|show|apply)\b|git (?:-c \S+ )?diff\b")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_NO_INDEX = "export PIP_NO_INDEX=1  # the sandbox reaches none: pip is to fail at once and not to try again"


def eval_script_task(row: Row) -> Task:
    """Return the task of a row with `eval_script`, `log_parser`, and an image in `image` or `image_name`.

    See `families.task_of` for errors.
    """
    fields = row.common()
    column = "image" if row.has("image") else "image_name"
    if row.has("image") and row.has("image_name") and row.columns["image"] != row.columns["image_name"]:
        row.reject("the columns 'image' and 'image_name' name two images; expected one of them")
    kind = row.optional("eval_type")
    if kind not in (None, "", "pass_and_fail"):
        row.wrong("eval_type", kind, "'pass_and_fail': tests that a log does not mention have not passed")
    setup, command = split_script(row, row.command("eval_script") or "")
    return Task(
        **fields,
        image=row.image(column),
        setup=setup,
        test_command=command,
        test_files=(),
        log_parser=row.log_parser("log_parser", row.text("log_parser")),
    )


def split_script(row: Row, script: str) -> tuple[str, str]:
    """Return the set-up lines and the test command of an evaluation script."""
    lines = script.split("\n")
    starts = [index for index, line in enumerate(lines) if START in line]
    ends = [index for index, line in enumerate(lines) if END in line]
    if len(starts) != 1 or len(ends) != 1 or ends[0] < starts[0]:
        row.wrong("eval_script", script, f"a script that prints {START!r}, then {END!r}, each once")
    command = "\n".join(lines[starts[0] + 1 : ends[0]]).strip()
    if not command:
        row.wrong("eval_script", script, "a test command between the two markers")
    setup = [_NO_INDEX, *_kept(lines[: starts[0]]), "unset PIP_NO_INDEX", f"echo '{START}'"]
    return "\n".join(setup), command


def _kept(lines: list[str]) -> list[str]:
    """Drop the lines (with here-documents) that put test files in place or only inform."""
    kept: list[str] = []
    until: str | None = None
    dropping = False
    for line in lines:
        if until is None:
            dropping = bool(_DROPPED.match(line))
            here = _HEREDOC.search(line)
            until = here[2] if here else None
        elif line.strip() == until:
            until = None
        if not dropping:
            kept.append(line)
    return kept
