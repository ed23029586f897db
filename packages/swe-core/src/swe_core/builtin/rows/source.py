"""RowsSource: tasks from the rows of a file or a data set."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from swe_core.api.column_filter import ColumnFilter, keep
from swe_core.api.task import Task
from swe_core.builtin.rows.families import task_of
from swe_core.builtin.rows.files import read_rows
from swe_core.builtin.rows.hub import load_rows
from swe_core.builtin.rows.row import Row, RowFault
from swe_core.errors import ConfigError, TaskError
from swe_core.system.plural import counted

logger = logging.getLogger(__name__)

_SHOWN = 10
"""Kinds of faults that an error lists."""


class RowsSource:
    """The tasks of one file of rows, or of one split of a data set.

    Args:
        file: A `.jsonl`, `.json` or `.parquet` file, or a directory with a data set.
        dataset: OWNER/NAME on the Hub, instead of a file.
        split: Of a data set or a directory.
        filters: `COLUMN=GLOB`, matched before rows are validated, since excluded rows may be invalid.
        skip_invalid: Whether invalid rows are left out, with a warning for each kind of fault.
        only: Ids of the tasks that will be kept; the other rows may be invalid. Empty: all.

    Raises:
        ConfigError: There is neither a file nor a data set, or both, or a split of a file.
    """

    recording: Path | None = None

    def __init__(
        self,
        file: Path | None,
        dataset: str | None,
        split: str | None = None,
        filters: Sequence[str] = (),
        *,
        skip_invalid: bool = False,
        only: Collection[str] = (),
    ) -> None:
        if (file is None) == (dataset is None):
            raise ConfigError(
                "the tasks 'rows' need either a file or a data set: pass --tasks FILE or --tasks OWNER/NAME"
            )
        if split is not None and file is not None and not file.is_dir():
            raise ConfigError(f"--split {split!r}: the file {str(file)!r} has no splits; leave it out")
        self.file = file
        self.dataset = dataset
        self.split = split
        self.filters = [ColumnFilter.parse(text) for text in filters]
        self.skip_invalid = skip_invalid
        self.only = frozenset(only)

    def tasks(self) -> Iterator[Task]:
        """Return the tasks in the order of the rows, after validating all.

        Raises:
            TaskError: The rows cannot be loaded, or some are invalid. Its text has a line for each kind of
                fault.
        """
        rows, faults = self._rows()
        if not rows and not faults:
            raise TaskError(f"{str(self.file or self.dataset)!r} holds no rows; expected at least one task")
        kept = keep([(row, row.columns) for row in rows], self.filters)
        count = len(kept) + len(faults)
        tasks: dict[str, Task] = {}
        places: dict[str, str] = {}
        for row in kept:
            try:
                task = task_of(row)
                if task.instance_id in tasks:
                    row.reject(
                        f"the instance_id is already taken by {places[task.instance_id]}; every row needs an "
                        "id of its own"
                    )
            except RowFault as fault:
                faults.append(fault)
            else:
                tasks[task.instance_id], places[task.instance_id] = task, row.place
        if self.only and tasks:
            faults = [
                fault
                for fault in faults
                if fault.name in self.only and not (self.skip_invalid and fault.name in tasks)
            ]
        if faults and (self.only or not self.skip_invalid or not tasks):
            raise self._refusal(faults, count, usable=bool(tasks) and not self.only)
        if faults:
            for line in _kinds(faults, count):
                logger.warning("left out of %s: %s", repr(str(self.file or self.dataset)), line)
        return iter(tasks.values())

    def _refusal(self, faults: Sequence[RowFault], count: int, *, usable: bool) -> TaskError:
        """Return the error of some of `count` rows.

        Args:
            usable: Whether other rows can be used without them.
        """
        if len(faults) == 1:
            hint = "; leave the row out with --skip-invalid or --filter COLUMN=GLOB" if usable else ""
            return TaskError(f"{faults[0]}{hint}")
        where = repr(str(self.file or self.dataset))
        hint = "; leave them out with --skip-invalid or --filter COLUMN=GLOB" if usable else ""
        lines = _kinds(faults, count)
        if len(lines) == 1:
            return TaskError(f"{where}: {lines[0]}{hint}")
        return TaskError(
            "\n".join((f"{where}: {len(faults):,} of {counted(count, 'row')} are invalid{hint}:", *lines))
        )

    def _rows(self) -> tuple[list[Row], list[RowFault]]:
        """Return the rows, and the faults of those that cannot be read."""
        rows: list[Row] = []
        faults: list[RowFault] = []
        places: Iterable[tuple[str, object]]
        directory = self.file
        if self.file is not None and not self.file.is_dir():
            source, directory, places = str(self.file), self.file.parent, read_rows(self.file)
        else:
            name = self.dataset or str(self.file)
            split, loaded = load_rows(name, self.split, local=self.file is not None)
            source = f"{name}, split {split}"
            places = ((f"row {number}", columns) for number, columns in enumerate(loaded, 1))
        for place, columns in places:
            try:
                rows.append(Row(source, place, columns, directory))
            except RowFault as fault:
                faults.append(fault)
        return rows, faults


def _kinds(faults: Sequence[RowFault], count: int) -> list[str]:
    """Return a sentence for each kind of fault, the most frequent first."""
    kinds: dict[object, list[RowFault]] = {}
    for fault in faults:
        kinds.setdefault(fault.kind, []).append(fault)
    ordered = sorted(kinds.values(), key=len, reverse=True)
    lines = [
        f"{len(same):,} of {counted(count, 'row')}, the first is {same[0].place}: {same[0].sentence}"
        if len(same) > 1
        else f"1 of {counted(count, 'row')}, {same[0].place}: {same[0].sentence}"
        for same in ordered[:_SHOWN]
    ]
    if rest := ordered[_SHOWN:]:
        lines.append(f"{sum(map(len, rest)):,} of {counted(count, 'row')} in {len(rest)} more ways")
    return lines
