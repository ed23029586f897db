"""The task source "swegym": rows in SWE-Gym's columns, from a local `.jsonl` or `.json` file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from swe_core.component import Component, Config
from swe_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from swe_core.task import TaskSource


class SweGymConfig(Config):
    """Settings of the source "swegym"."""

    file: Path = Field(description="a .jsonl file (one row a line) or a .json file (a list of rows)")


def _create(config: SweGymConfig) -> TaskSource:
    from swe_core.builtin.swegym_rows import SweGymSource

    return SweGymSource(config.file)


@hookimpl
def swe_tasks() -> Iterable[Component[TaskSource]]:
    """Offer the source "swegym"."""
    return [
        Component("swegym", _create, SweGymConfig, "rows in SWE-Gym's columns from a .jsonl or .json file")
    ]
