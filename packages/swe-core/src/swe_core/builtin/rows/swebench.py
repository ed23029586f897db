"""SWE-bench, Lite and Verified: rows without image and test command.

The commands are those of swebench 4.1 (`swebench.harness.constants.python`), by repository and, where they
differ, by version. swebench installs the project again before the tests, and this does not: the images have a
development install, and a grading sandbox reaches no package index. A patch to compiled sources or entry
points is tested without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from swe_core.api.task import Task
from swe_core.builtin.rows.environment import Environment, task_fields
from swe_core.builtin.rows.row import CONDA, Row
from swe_core.builtin.swe.test_files import NOT_TESTS

IMAGE = "swebench/sweb.eval.x86_64."
"""SWE-bench's images: this, the lower-cased instance id with "__" written "_1776_", ":latest"."""

_PYTEST = "pytest -rA"
_DJANGO = "django/django"
TEST_COMMANDS: Mapping[str, str] = {
    "astropy/astropy": _PYTEST,
    _DJANGO: "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    "marshmallow-code/marshmallow": _PYTEST,
    "matplotlib/matplotlib": _PYTEST,
    "mwaskom/seaborn": "pytest --no-header -rA",
    "pallets/flask": _PYTEST,
    "psf/requests": _PYTEST,
    "pvlib/pvlib-python": _PYTEST,
    "pydata/xarray": _PYTEST,
    "pydicom/pydicom": _PYTEST,
    "pylint-dev/astroid": _PYTEST,
    "pylint-dev/pylint": _PYTEST,
    "pytest-dev/pytest": _PYTEST,
    "pyvista/pyvista": _PYTEST,
    "scikit-learn/scikit-learn": _PYTEST,
    "sphinx-doc/sphinx": "tox --current-env -epy39 -v --",
    "sqlfluff/sqlfluff": _PYTEST,
    "sympy/sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
}
"""Repository → its test command."""

_OF_VERSION: Mapping[tuple[str, str], str] = {
    **{
        ("astropy/astropy", version): "pytest -rA -vv -o console_output_style=classic --tb=no"
        for version in ("0.1", "0.2", "0.3", "0.4", "1.1", "1.2", "1.3")
    },
    (_DJANGO, "1.9"): "./tests/runtests.py --verbosity 2",
}
_LOG_PARSERS: Mapping[str, str] = {_DJANGO: "django", "sympy/sympy": "swebench:parse_log_sympy"}

_LOCALE = "export LANG=en_US.UTF-8\nexport LC_ALL=en_US.UTF-8\nexport LANGUAGE=en_US:en\n"
_DJANGO_SETUPS: Mapping[str, str] = {
    **dict.fromkeys(
        ("1.7", "1.8", "1.9", "1.10", "1.11", "2.0", "2.1", "2.2"), f"{_LOCALE}export PYTHONIOENCODING=utf8\n"
    ),
    **dict.fromkeys(
        ("3.0", "3.1", "3.2"), f"sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen\n{_LOCALE}"
    ),
}
_CHANGED_FILE = re.compile(r"^diff --git a/.* b/(.*)$", re.MULTILINE)
_PLACE = re.compile(r"\w+ \((?!unittest\.)([a-z_]\w*(?:\.[a-z]\w*){0,30})\.[A-Z_]\w*(?:\.\w+)*\)")


def swebench_task(row: Row) -> Task:
    """Return the task of a row of SWE-bench; see `families.task_of` for errors."""
    fields = row.common()
    repo, version = fields["repo"], fields["version"]
    django = repo == _DJANGO
    environment = Environment(
        image=published_image(fields["instance_id"]),
        setup=(_DJANGO_SETUPS.get(version, "") if django else "") + CONDA,
        test_command=_OF_VERSION.get((repo, version), TEST_COMMANDS[repo]),
        test_files=django_labels(fields) if django else None,
        log_parser=_LOG_PARSERS.get(repo, "pytest"),
    )
    return Task(**fields, **task_fields(row, environment))


def published_image(instance_id: str) -> str:
    """Return the image that SWE-bench publishes for an instance."""
    return f"{IMAGE}{instance_id.lower().replace('__', '_1776_')}:latest"


def django_labels(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that Django's `runtests.py` runs: those that the test patch changes (`admin.tests`),
    then those that the ids of other tests name (`test_x (admin.tests.Case)`)."""
    files = (name for name in _CHANGED_FILE.findall(fields["test_patch"]) if not name.endswith(NOT_TESTS))
    labels = (name.removesuffix(".py").removeprefix("tests/").replace("/", ".") for name in files)
    run = dict.fromkeys(labels)
    inside = {label.removesuffix(".__init__") for label in run}
    for test in (*fields["fail_to_pass"], *fields["pass_to_pass"]):
        place = _PLACE.fullmatch(test.strip())
        if place is not None and inside.isdisjoint(accumulate(place[1].split("."), "{}.{}".format)):
            run.setdefault(place[1])
    return tuple(run)
