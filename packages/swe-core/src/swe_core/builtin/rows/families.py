"""Find a row's data set by its columns."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from swe_core.api.task import Task
from swe_core.builtin.rows.eval_script import eval_script_task
from swe_core.builtin.rows.r2e import r2e_task
from swe_core.builtin.rows.rebench import rebench_task
from swe_core.builtin.rows.row import Row, RowFault, found
from swe_core.builtin.rows.smith import is_smith, smith_task
from swe_core.builtin.rows.swebench import TEST_COMMANDS as SWE_BENCH
from swe_core.builtin.rows.swebench import swebench_task
from swe_core.builtin.rows.swegym import swegym_task
from swe_core.errors import TaskError, sentence

_OWN = (
    "is not supported; as rows of your own they need the columns 'image_name', 'test_command', "
    "'FAIL_TO_PASS' and 'PASS_TO_PASS'"
)
_FOREIGN: Mapping[str, tuple[tuple[str, ...], str]] = {
    "Multi-SWE-bench": (("fix_patch", "resolved_issues"), _OWN),
    "SWE-bench Pro": (("before_repo_set_cmd", "selected_test_files_to_run"), _OWN),
    "SWE-bench Live": (("test_cmds",), _OWN),
    "SWE-PolyBench": (("F2P", "P2P"), _OWN),
    "SWE-Lancer": (("question_id", "manager_data"), "is not supported: end-to-end tests decide its tasks"),
}
"""Other data set → the columns that tell it, and what is to be said of it."""
_ATTEMPT = ("messages", "trajectory", "responses_create_params")


def task_of(row: Row) -> Task:
    """Return the task of a row.

    Raises:
        RowFault: A column is missing or has a wrong value, or two columns contradict each other, or the row
            is one of a data set that is not supported.
    """
    own = row.has("test_command") and (row.has("image_name") or row.has("repository"))
    own = own or any(map(row.has, ("eval_script", "install_config", "parsed_commit_content")))
    for name, (columns, remedy) in _FOREIGN.items():
        if not own and all(row.has(column) for column in columns):
            row.reject(f"its columns are those of {name}, which {remedy}", name)
    if not own and not row.has("FAIL_TO_PASS") and any(map(row.has, _ATTEMPT)):
        row.reject("it holds an attempt or a prompt, and no task: use the data set that it was made from")
    try:
        task = _task_of(row)
    except RowFault:
        raise
    except TaskError as error:
        row.reject(sentence(error))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        row.reject(f"it makes no task: {where}: {first['msg']}", (where, first["type"]))
    if task.log_parser == "pytest" and task.fail_to_pass and not any(map(_may_be_id, task.fail_to_pass)):
        row.reject(
            f"FAIL_TO_PASS names no test: {found(task.fail_to_pass[0])} is no id of pytest, such as "
            "'test_a.py::test_b', so no patch can be rewarded; leave the row out"
        )
    return task


def _may_be_id(test: str) -> bool:
    """Return whether a test of pytest may be called so: none is called `[100%]`."""
    return "::" in test or test[0].isalnum() or test[0] in "._/"


def _task_of(row: Row) -> Task:
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
