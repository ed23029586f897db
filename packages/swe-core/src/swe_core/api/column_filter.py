"""ColumnFilter: `--filter COLUMN=GLOB`, which selects rows of a task source."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from swe_core.errors import ConfigError, TaskError
from swe_core.system.plural import counted

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ColumnFilter:
    """A filter that keeps rows whose column matches a case-sensitive glob.

    A list matches where one of its values matches. An absent value never matches.
    """

    column: str
    glob: str

    @classmethod
    def parse(cls, text: str) -> ColumnFilter:
        """Parse `COLUMN=GLOB`.

        Raises:
            ConfigError: `text` has another form.
        """
        column, equals, glob = text.partition("=")
        if not equals or not column.strip():
            raise ConfigError(f"--filter {text!r}: expected COLUMN=GLOB, such as repo=getmoto/*")
        return cls(column.strip(), glob)

    def matches(self, columns: Mapping[str, object]) -> bool:
        """Return whether a row with these columns matches."""
        value = columns.get(self.column)
        values = value if isinstance(value, (list, tuple)) else [value]
        return any(fnmatchcase(str(each), self.glob) for each in values if each is not None)

    def __str__(self) -> str:
        return f"--filter {self.column}={self.glob}"


def keep(rows: Sequence[tuple[R, Mapping[str, object]]], filters: Iterable[ColumnFilter]) -> list[R]:
    """Return the rows that match all `filters`.

    Args:
        rows: (row, its columns).

    Raises:
        TaskError: No row has a filter's column, or no row is left.
    """
    left = list(rows)
    for each in filters:
        kept = [(row, columns) for row, columns in left if each.matches(columns)]
        if left and not kept:
            known = sorted({name for _, columns in left for name in columns})
            if each.column not in known:
                close = difflib.get_close_matches(each.column, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
                raise TaskError(f"{each}: no task has the column {each.column!r}; {hint}")
            raise TaskError(f"{each} leaves none of {counted(len(left), 'task')}")
        left = kept
    return [row for row, _ in left]
