"""LogReader: how the results of one kind of test run are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swe_core.api.task import TestStatus
from swe_core.builtin.swe.test_runners import Runner

Found = Mapping[str, TestStatus]
"""Test id → how it ended. Ids are those of the log (pytest) or dotted names (unittest)."""


@dataclass(frozen=True, slots=True)
class LogReader:
    """How the results of a kind of test run are read.

    Args:
        parse: A log → what it says. It never raises, whatever the log holds.
        rename: What a reporter inside the test run found, by pytest node id or a unittest's dotted name → the
            same under the names that `parse` gives; None where there is no reporter for logs of this kind.
        runner: The test runner that prints such a log, or the one whose reporter is tried.
    """

    parse: Callable[[bytes], Found]
    rename: Callable[[Found], Found | None]
    runner: Runner = "pytest"
