"""Find a row's data set by its columns."""

from __future__ import annotations

from swe_core.api.task import Task
from swe_core.builtin.rows.eval_script import eval_script_task
from swe_core.builtin.rows.r2e import r2e_task
from swe_core.builtin.rows.rebench import rebench_task
from swe_core.builtin.rows.row import Row
from swe_core.builtin.rows.smith import is_smith, smith_task
from swe_core.builtin.rows.swebench import TEST_COMMANDS as SWE_BENCH
from swe_core.builtin.rows.swebench import swebench_task
from swe_core.builtin.rows.swegym import swegym_task


def task_of(row: Row) -> Task:
    """Return the task of a row.

    Raises:
        TaskError: A column is missing or has a wrong value, or two columns contradict each other.
    """
    row.exclude("test_command", "eval_script", "install_config", "parsed_commit_content")
    if row.has("parsed_commit_content"):
        return r2e_task(row)
    if row.has("install_config"):
        return rebench_task(row)
    if row.has("eval_script"):
        return eval_script_task(row)
    if is_smith(row):
        return smith_task(row)
    if row.text("repo") in SWE_BENCH:
        return swebench_task(row)
    return swegym_task(row)
