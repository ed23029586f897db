"""One row of a data set, read strictly: a row with a wrong type is an error, never a wrong task."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from swe_core.api.task import IMAGE_NAME
from swe_core.builtin.swe.parsers import SWEBENCH, log_reader
from swe_core.builtin.swe.swebench_parsers import PYTEST_PARSERS
from swe_core.errors import TaskError
from swe_core.system import strict_json

CONDA = "source /opt/miniconda3/bin/activate\nconda activate testbed"
"""Shell line that makes the tests of a published image runnable."""

_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # also the name of a directory
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_DIFF = re.compile(r"^(?:diff --git |--- )", re.MULTILINE)
_IDS = "a list of test ids, or such a list as JSON in a string"


class Row:
    """One row.

    Args:
        source: Its file or data set.
        place: Its place there, such as `line 3`.
        columns: The row, not validated.
        directory: Base of a relative `repository`; None where rows come from elsewhere.

    Raises:
        TaskError: `columns` is no mapping.
    """

    def __init__(self, source: str, place: str, columns: object, directory: Path | None) -> None:
        self.source = source
        self.place = place
        self._directory = directory
        if not isinstance(columns, Mapping):
            raise TaskError(
                f"{source!r}, {place}: expected an object with one key per column, found {found(columns)}"
            )
        self.columns: Mapping[str, Any] = columns

    @property
    def where(self) -> str:
        """The row in a message: its source, place and id, if it has one."""
        name = self.columns.get("instance_id")
        known = isinstance(name, str) and _INSTANCE_ID.fullmatch(name)
        return f"{self.source!r}, {self.place}" + (f" ({name!r})" if known else "")

    # messages

    def reject(self, sentence: str) -> NoReturn:
        """Raise a TaskError that names the row."""
        raise TaskError(f"{self.where}: {sentence}")

    def wrong(self, column: str, value: object, expected: str) -> NoReturn:
        """Raise a TaskError that names the row, the column, what was found and what was expected."""
        self.reject(f"the column {column!r} is {found(value)}, expected {expected}")

    def exclude(self, *columns: str) -> None:
        """Reject a row in which several of these columns say the same."""
        present = [name for name in columns if self.has(name)]
        if len(present) > 1:
            self.reject(
                f"the columns {present[0]!r} and {present[1]!r} both say how the tests are run: leave one out"
            )

    # columns of one type

    def has(self, column: str) -> bool:
        """Return whether the column has a value."""
        return self.columns.get(column) is not None

    def text(self, column: str, *, blank: bool = True) -> str:
        """Return a text column. `blank`: whether white space alone is valid."""
        if column not in self.columns:
            self.reject(f"the column {column!r} is missing; expected text")
        return self._text(column, self.columns[column], blank)

    def optional(self, column: str) -> str | None:
        """Return a text column that may be absent or null."""
        value = self.columns.get(column)
        return None if value is None else self._text(column, value, True)

    def _text(self, column: str, value: object, blank: bool) -> str:
        if not isinstance(value, str) or not is_text(value) or (not blank and not value.strip()):
            self.wrong(column, value, "text")
        return value

    def table(self, column: str) -> Mapping[str, Any]:
        """Return an object, or one as JSON in a string."""
        expected = "an object, or one as JSON in a string"
        value = self._json(column, expected)
        if not isinstance(value, Mapping):
            self.wrong(column, value, expected)
        return value

    def _json(self, column: str, expected: str) -> object:
        """Return a value, or that value as JSON in a string, which is never read as anything but JSON."""
        if column not in self.columns:
            self.reject(f"the column {column!r} is missing; expected {expected}")
        value: object = self.columns[column]
        if not isinstance(value, str):
            return value
        try:
            return strict_json.loads(value)
        except strict_json.DuplicateKey as error:
            self.reject(
                f"the column {column!r}: the key {found(error.key)} is twice in one object; leave one of "
                "them out"
            )
        except (ValueError, RecursionError):
            self.wrong(column, value, expected)

    # columns with a meaning of their own

    def instance_id(self) -> str:
        """Return the column `instance_id`."""
        expected = "letters, digits, '.', '_' and '-' only, 200 at most"
        return self._matching("instance_id", _INSTANCE_ID, expected)

    def commit(self, column: str = "base_commit") -> str:
        """Return a commit id."""
        return self._matching(column, _COMMIT, "a commit id: 7 to 64 lower-case hexadecimal digits")

    def image(self, column: str) -> str:
        """Return the name of a container image."""
        return self._matching(column, IMAGE_NAME, "the name of a container image")

    def _matching(self, column: str, pattern: re.Pattern[str], expected: str) -> str:
        if column not in self.columns:
            self.reject(f"the column {column!r} is missing; expected {expected}")
        value = self.text(column)
        if not pattern.fullmatch(value):
            self.wrong(column, value, expected)
        return value

    def command(self, column: str) -> str | None:
        """Return a shell command or script, which may be absent."""
        value = self.optional(column)
        if value is not None and not value.strip():
            self.wrong(column, value, "a shell command")
        return value

    def diff(self, column: str) -> str:
        """Return a unified diff; empty where absent."""
        value = self.text(column)
        if value.strip() and not _DIFF.search(value):
            self.wrong(column, value, "a unified diff, or nothing")
        return value

    def repository(self) -> Path | None:
        """Return the column `repository`: a git work tree on this host."""
        value = self.optional("repository")
        if value is None:
            return None
        if self._directory is None:
            self.wrong("repository", value, "nothing: rows of the Hub name no directory of this host")
        try:
            path = (self._directory / value).resolve()
            there = value != "" and (path / ".git").exists()
        except (OSError, RuntimeError):  # a name too long, a loop of links, no permission
            there = False
        if not there:
            self.wrong("repository", value, f"a git work tree, relative to {str(self._directory)!r}")
        return path

    def log_parser(self, column: str, value: object) -> str:
        """Return the log parser that `value` of `column` names: ours, or one of swebench."""
        expected = "'pytest', 'unittest', 'django' or a parser of swebench, such as 'parse_log_sympy'"
        if not isinstance(value, str) or not is_text(value):
            self.wrong(column, value, expected)
        name = value
        if value in PYTEST_PARSERS:  # our own parser reads what these read
            name = "pytest"
        elif value.startswith("parse_log_"):
            name = "django" if value == "parse_log_django" else SWEBENCH + value
        elif value not in ("pytest", "unittest", "django") and not value.startswith(SWEBENCH):
            self.wrong(column, value, expected)
        return self.known_parser(column, name)

    def known_parser(self, column: str, name: str) -> str:
        """Return `name` if it is a known log parser."""
        try:
            log_reader(name)
        except TaskError as error:
            self.reject(f"the column {column!r}: {error}")
        return name

    # what decides

    def common(self) -> dict[str, Any]:
        """Return the fields of a task with the same columns in SWE-Gym, SWE-bench and SWE-rebench."""
        fields = {
            "instance_id": self.instance_id(),
            "repo": self.text("repo", blank=False),
            "base_commit": self.commit(),
            "problem_statement": self.text("problem_statement", blank=False),
            "patch": self.diff("patch"),
            "test_patch": self.diff("test_patch"),
            "version": self.optional("version") or "",
            "hints_text": self.optional("hints_text") or "",
        }
        return fields | self.tests()

    def tests(self) -> dict[str, tuple[str, ...]]:
        """Return FAIL_TO_PASS and PASS_TO_PASS: each test once, and in one of them."""
        fail_to_pass, pass_to_pass = self._ids("FAIL_TO_PASS"), self._ids("PASS_TO_PASS")
        if not fail_to_pass:
            self.wrong("FAIL_TO_PASS", self.columns["FAIL_TO_PASS"], "at least one test id")
        both = set(fail_to_pass).intersection(pass_to_pass)
        if both:
            self.reject(
                f"the test {min(both)!r} is in both FAIL_TO_PASS and PASS_TO_PASS; expected it in one of them"
            )
        return {"fail_to_pass": fail_to_pass, "pass_to_pass": pass_to_pass}

    def _ids(self, column: str) -> tuple[str, ...]:
        ids = self._json(column, _IDS)
        if not isinstance(ids, list):
            self.wrong(column, self.columns[column], _IDS)
        seen: dict[str, int] = {}
        for index, test in enumerate(ids):
            if not isinstance(test, str) or not test.strip() or not is_text(test):
                self.wrong(f"{column}[{index}]", test, "a test id")
            if test in seen:
                self.wrong(f"{column}[{index}]", test, f"a test that is not {column}[{seen[test]}] already")
            seen[test] = index
        return tuple(ids)


def is_text(text: str) -> bool:
    """Return False for half a surrogate pair or a NUL: no file and no argument can hold those."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


def found(value: object) -> str:
    """Return a value in JSON's words, shortened."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value == "":
        return "empty"
    shown = ascii(value) if isinstance(value, str) else json.dumps(value, default=repr)
    return shown if len(shown) <= 60 else shown[:57] + "..."
