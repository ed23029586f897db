"""One row of a data set, read strictly: a row with a wrong type is an error, never a wrong task."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from swe_core.api.task import IMAGE_NAME
from swe_core.builtin.swe.parsers import SWEBENCH, log_reader
from swe_core.builtin.swe.swebench_parsers import PYTEST_PARSERS
from swe_core.errors import TaskError
from swe_core.system import strict_json
from swe_core.system.printable import one_line

CONDA = "source /opt/miniconda3/bin/activate\nconda activate testbed"
"""Shell line that makes the tests of a published image runnable."""

_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # also the name of a directory
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_DIFF = re.compile(r"^(?:diff --git |--- )", re.MULTILINE)
_IDS = "a list of test ids, or such a list as JSON in a string"
_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"""
_LITERAL = rf"""(?:'(?:[^'\\\n]|{_ESCAPE})*+'|"(?:[^"\\\n]|{_ESCAPE})*+")"""
_PYTHON_LIST = re.compile(rf"\[\s*+(?:{_LITERAL}(?:(?:\s*+,\s*+{_LITERAL})*+,?|(?:\s++{_LITERAL})*+)\s*+)?\]")
"""A list of texts as Python prints it, or as numpy does: without commas."""
_LITERALS = re.compile(_LITERAL)
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
_SPELT_ALSO: Mapping[str, str] = {"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS"}
_DECIDED_BY_VERSION = ("python/mypy", "django/django")
_LONGEST = 600
_DEPTH = 8
"""Lists and objects within each other that a column of a data set has at most."""


class RowFault(TaskError):
    """One row is invalid.

    Args:
        row: The row.
        sentence: What is wrong with it.
        kind: The same for all rows with this fault, whatever their values.
    """

    def __init__(self, row: Row, sentence: str, kind: object) -> None:
        sentence = one_line(sentence, _LONGEST)
        super().__init__(f"{row.where}: {sentence}")
        self.place = row.place + (f" ({row.name!r})" if row.name else "")
        self.name = row.name
        self.sentence = sentence
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands in place of the columns of a row that cannot be read, and why."""

    sentence: str


class Row:
    """One row.

    Args:
        source: Its file or data set.
        place: Its place there, such as `line 3`.
        columns: The row, not validated.
        directory: Base of a relative `repository`; None where rows come from elsewhere.

    Raises:
        RowFault: `columns` is no mapping.
    """

    def __init__(self, source: str, place: str, columns: object, directory: Path | None) -> None:
        self.source = source
        self.place = place
        self._directory = directory
        self.columns: Mapping[str, Any] = {}
        if isinstance(columns, Unreadable):
            self.reject(columns.sentence, _VALUES.sub("", columns.sentence.partition(":")[0]))
        if not isinstance(columns, Mapping):
            self.reject(f"expected an object with one key per column, found {found(columns)}", "no object")
        values = {name: plain(value) for name, value in columns.items()}
        for also, name in _SPELT_ALSO.items():
            if values.get(name) is None and also in values:
                values[name] = values[also]
        self.columns = values

    @property
    def name(self) -> str | None:
        """The id of the row's task, if it has one."""
        name = self.columns.get("instance_id")
        if name is None and self.has("repo_name") and self.has("commit_hash"):  # R2E-Gym
            name = f"{self.columns['repo_name']}__{self.columns['commit_hash']}"
        return name if isinstance(name, str) and _INSTANCE_ID.fullmatch(name) else None

    @property
    def where(self) -> str:
        """The row in a message: its source, place and id, if it has one."""
        return f"{self.source!r}, {self.place}" + (f" ({self.name!r})" if self.name else "")

    # messages

    def reject(self, sentence: str, kind: object = None) -> NoReturn:
        """Raise a RowFault.

        Args:
            kind: What rows with the same fault share. [default: the sentence without values]
        """
        raise RowFault(self, sentence, _VALUES.sub("", sentence) if kind is None else kind)

    def wrong(self, column: str, value: object, expected: str) -> NoReturn:
        """Raise a RowFault that names the row, the column, what was found and what was expected."""
        nothing = "null" if value is None else "empty" if isinstance(value, str) and not value.strip() else ""
        kind = column.partition("[")[0], expected, nothing
        self.reject(f"the column {column!r} is {found(value)}, expected {expected}", kind)

    def missing(self, column: str, expected: str) -> NoReturn:
        """Raise a RowFault for an absent column."""
        self.reject(f"the column {column!r} is missing; expected {expected}", (column, "missing"))

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
            self.missing(column, "text")
        return self._text(column, self.columns[column], blank)

    def optional(self, column: str) -> str | None:
        """Return a text column that may be absent or null."""
        value = self.columns.get(column)
        if column == "version" and isinstance(value, int | float):
            if str(value).endswith(".1") and self.columns.get("repo") in _DECIDED_BY_VERSION:
                self.wrong(column, value, "text such as '1.10', which a number cannot tell from 1.1")
            value = str(value)
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
        """Return a value, or that value as JSON in a string. A list of texts may be as Python prints it."""
        if column not in self.columns:
            self.missing(column, expected)
        value: object = self.columns[column]
        if not isinstance(value, str):
            return value
        try:
            return strict_json.loads(value)
        except strict_json.DuplicateKey as error:
            self.reject(
                f"the column {column!r}: the key {found(error.key)} is twice in one object; leave one of "
                "them out",
                (column, "a key twice"),
            )
        except (ValueError, RecursionError):
            if not _PYTHON_LIST.fullmatch(value.strip()):
                self.wrong(column, value, expected)
        try:
            return [ast.literal_eval(text) for text in _LITERALS.findall(value)]
        except (ValueError, SyntaxError):  # an escape of no character
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
            self.missing(column, expected)
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
        """Return a unified diff, which may be empty."""
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
            "patch": "" if self.columns.get("patch", "") is None else self.diff("patch"),
            "test_patch": self.diff("test_patch"),
            "version": self.optional("version") or "",
            "hints_text": self.optional("hints_text") or "",
        }
        return fields | self.tests()

    def tests(self) -> dict[str, tuple[str, ...]]:
        """Return FAIL_TO_PASS and PASS_TO_PASS, each test once.

        A test in both is in FAIL_TO_PASS alone: what that requires of it, PASS_TO_PASS requires too.
        """
        fail_to_pass, pass_to_pass = self._ids("FAIL_TO_PASS"), self._ids("PASS_TO_PASS")
        if not fail_to_pass:
            self.wrong("FAIL_TO_PASS", [], "at least one test id")
        kept = (test for test in pass_to_pass if test not in fail_to_pass)
        return {"fail_to_pass": tuple(fail_to_pass), "pass_to_pass": tuple(kept)}

    def _ids(self, column: str) -> dict[str, None]:
        ids = self._json(column, _IDS)
        if not isinstance(ids, list):
            self.wrong(column, self.columns[column], _IDS)
        for index, test in enumerate(ids):
            if not isinstance(test, str) or not test.strip() or not is_text(test):
                self.wrong(f"{column}[{index}]", test, "a test id")
        return dict.fromkeys(ids)


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """Return a value as JSON has it. Data frames and tables have types of their own, and NaN for null."""
    if value is None or isinstance(value, str | bool | int) or depth == 0:
        return value
    if isinstance(value, float):
        return None if value != value else value
    if isinstance(value, Mapping):
        return {key: plain(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, depth - 1) for inner in value]
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    for convert in ("as_py", "to_pylist", "tolist"):  # of arrow; of numpy and pandas
        if callable(method := getattr(value, convert, None)):
            return plain(method(), depth - 1)
    return value


def is_text(text: str) -> bool:
    """Return False for half a surrogate pair or a NUL: no file and no argument can hold those."""
    return not _NO_TEXT.search(text)


def found(value: object) -> str:
    """Return a value in JSON's words, shortened."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value == "":
        return "empty"
    shown = ascii(value) if isinstance(value, str) else json.dumps(value, default=repr)
    return shown if len(shown) <= 60 else shown[:57] + "..."
