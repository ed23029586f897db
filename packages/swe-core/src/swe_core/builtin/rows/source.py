"""RowsSource: tasks from the rows of a file or a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from swe_core.api.column_filter import ColumnFilter, keep
from swe_core.api.task import Task
from swe_core.builtin.rows.families import task_of
from swe_core.builtin.rows.files import read_rows
from swe_core.builtin.rows.hub import load_rows
from swe_core.builtin.rows.row import Row
from swe_core.errors import ConfigError, TaskError


class RowsSource:
    """The tasks of one file of rows, or of one split of a data set.

    Args:
        file: A `.jsonl`, `.json` or `.parquet` file, or a directory with a data set.
        dataset: OWNER/NAME on the Hub, instead of a file.
        split: Of a data set or a directory.
        filters: `COLUMN=GLOB`, matched before rows are validated, since excluded rows may be invalid.

    Raises:
        ConfigError: There is neither a file nor a data set, or both, or a split of a file.
    """

    recording: Path | None = None

    def __init__(
        self, file: Path | None, dataset: str | None, split: str | None = None, filters: Sequence[str] = ()
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

    def tasks(self) -> Iterator[Task]:
        """Return the tasks in the order of the rows, after validating all.

        Raises:
            TaskError: The rows cannot be loaded, or one is invalid.
        """
        rows = list(self._rows())
        if not rows:
            raise TaskError(f"{str(self.file or self.dataset)!r} holds no rows; expected at least one task")
        tasks: dict[str, Task] = {}
        seen: dict[str, Row] = {}
        for row in keep([(row, row.columns) for row in rows], self.filters):
            task = task_of(row)
            if task.instance_id in tasks:
                raise TaskError(
                    f"{row.source!r}, {row.place}: the instance_id {task.instance_id!r} is already taken by "
                    f"{seen[task.instance_id].place}; every row needs an id of its own"
                )
            tasks[task.instance_id], seen[task.instance_id] = task, row
        return iter(tasks.values())

    def _rows(self) -> Iterator[Row]:
        if self.file is not None and not self.file.is_dir():
            for place, columns in read_rows(self.file):
                yield Row(str(self.file), place, columns, self.file.parent)
            return
        name = self.dataset or str(self.file)
        split, rows = load_rows(name, self.split, local=self.file is not None)
        for number, columns in enumerate(rows, 1):
            yield Row(f"{name}, split {split}", f"row {number}", columns, self.file)
