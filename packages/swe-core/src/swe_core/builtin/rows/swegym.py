"""SWE-Gym and SWE-Gym-Lite, and rows in their columns with their own environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from swe_core.api.task import Task
from swe_core.builtin.rows.environment import Environment, task_fields
from swe_core.builtin.rows.row import CONDA, Row

IMAGE = "xingyaoww/sweb.eval.x86_64."
"""SWE-Gym's images: this, then the lower-cased instance id with "__" written "_s_"."""

_MYPY = "python/mypy"
_CONAN = "conan-io/conan"
TEST_COMMANDS: Mapping[str, str] = {
    "getmoto/moto": "pytest -n0 -rA",
    _CONAN: "export PYTHONPATH=${PYTHONPATH:-}:$(pwd) && pytest -n0 -rA",
    "modin-project/modin": "pytest -n0 -rA",
    "iterative/dvc": "pytest -rA",
    "Project-MONAI/MONAI": "pytest -rA",
    "dask/dask": "pytest -n0 -rA --color=no",
    "bokeh/bokeh": "pytest -rA -n0",
    "HypothesisWorks/hypothesis": "pytest -n0 -rA --tb=no --no-header",
    "pydantic/pydantic": "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
    "pandas-dev/pandas": "pytest -rA --tb=long",
    "facebookresearch/hydra": "pytest -rA --tb=long",
}
"""SWE-Gym's own test command of each repository, except mypy's, which depends on the row's version."""

_VERSION = re.compile(r"(\d+)\.(\d+)")


def swegym_task(row: Row) -> Task:
    """Return the task of a row of SWE-Gym; see `families.task_of` for errors.

    Other repositories have no published image and no known command: such a row must have both.
    """
    fields = row.common()
    command = None if row.has("test_command") else _test_command(row, fields["repo"])
    ours = fields["repo"] in TEST_COMMANDS or fields["repo"] == _MYPY
    image = published_image(fields["instance_id"]) if ours else None
    files: tuple[str, ...] | None = None
    if command and fields["repo"] == _MYPY and (cases := mypy_cases(fields)):
        command, files = f"{command} -k {shlex.quote(cases)}", ()
    setup = (
        f"{CONDA}\nexport PYTHONPATH=/testbed" if fields["repo"] == _CONAN else CONDA
    )  # for its agent, too
    return Task(**fields, **task_fields(row, Environment(image, setup, command, files)))


def published_image(instance_id: str) -> str:
    """Return the image that SWE-Gym publishes for an instance."""
    return IMAGE + instance_id.lower().replace("__", "_s_")


def _test_command(row: Row, repo: str) -> str | None:
    if repo != _MYPY:
        return TEST_COMMANDS.get(repo)
    version = row.optional("version")
    number = _VERSION.match(version or "")
    if not number:
        row.wrong("version", version, "mypy's version, such as '1.7', or a column 'test_command'")
    return "pytest -rA" if (int(number[1]), int(number[2])) >= (1, 7) else "pytest -n0 -rA"


def mypy_cases(fields: Mapping[str, Any]) -> str:
    """Return the tests of mypy that are run, for pytest's `-k`: the `[case NAME]` lines of the test patch, as
    in SWE-Gym's harness, and the tests that they do not select. Empty where the test patch has no such line
    or pytest would recurse too deeply, so that the files of the tests are run.
    """
    cases = dict.fromkeys(name for name in _CASE.findall(fields["test_patch"]) if _KEYWORD.fullmatch(name))
    if len(cases) > _MOST:
        return ""
    tests = (*fields["fail_to_pass"], *fields["pass_to_pass"])
    names = dict.fromkeys(test.rpartition("::")[2] for test in tests)
    others = [name for name in names if not any(case in name for case in cases)]
    whole = cases and len(cases) + len(others) <= _MOST and all(map(_KEYWORD.fullmatch, others))
    return " or ".join((*cases, *others)) if whole else ""


_CASE = re.compile(r"\[case ([^\[\]]+)\]")
_KEYWORD = re.compile(r"(?!(?:and|or|not|True|False|None)$)[\w.+-]+")
_MOST = 300
