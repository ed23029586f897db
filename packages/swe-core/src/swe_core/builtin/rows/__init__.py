"""The task source "rows": rows of a SWE data set, from a file, a directory or the Hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from swe_core.api.component import Component, Config
from swe_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from swe_core.api.task import TaskSource


class RowsConfig(Config):
    """`[tasks.rows]`: a file or a data set."""

    file: Path | None = Field(
        default=None, description=".jsonl, .json or .parquet file, or a data set directory"
    )
    dataset: str | None = Field(default=None, description="OWNER/NAME on the Hub")
    split: str | None = Field(default=None, description="split; unset: the only one, else test, else train")
    filter: tuple[str, ...] = Field(default=(), description="COLUMN=GLOB; all must match")
    skip_invalid: bool = Field(default=False, description="leave invalid rows out")
    only: tuple[str, ...] = Field(
        default=(), description="instance ids that will be kept; other rows may be invalid"
    )


def _create(config: RowsConfig) -> TaskSource:
    from swe_core.builtin.rows.source import RowsSource

    return RowsSource(
        config.file,
        config.dataset,
        config.split,
        config.filter,
        skip_invalid=config.skip_invalid,
        only=config.only,
    )


@hookimpl
def swe_tasks() -> Iterable[Component[TaskSource]]:
    return [
        Component("rows", _create, RowsConfig, "rows of SWE-Gym, SWE-bench and their kin: a file or the Hub")
    ]
