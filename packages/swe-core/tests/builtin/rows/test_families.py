"""Rows of each data set become the tasks that its documentation describes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.builtin.rows import swebench, swegym
from swe_core.builtin.rows.families import task_of
from swe_core.builtin.rows.r2e import HIDDEN
from swe_core.builtin.rows.row import CONDA, Row
from swe_core.builtin.swe.parsers import log_reader
from swe_core.errors import TaskError

from .helpers import DIFF, ROWS, changed, load, refusal, row

BACK = DIFF.replace("-a = 1\n+a = 2", "-a = 2\n+a = 1")


def of(repo: str) -> dict[str, str]:
    """The columns that name a repository."""
    return {"repo": repo, "instance_id": f"{repo.replace('/', '__')}-1"}


def test_swe_bench_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row("bench"))
    assert task.image == "swebench/sweb.eval.x86_64.psf_1776_requests-1:latest"
    assert (task.setup, task.test_command, task.test_files) == (CONDA, "pytest -rA", None)
    assert (task.fail_to_pass, task.pass_to_pass) == (("tests/test_x.py::test_a",), ())


@pytest.mark.parametrize(
    ("family", "commands"), [("bench", swebench.TEST_COMMANDS), ("gym", swegym.TEST_COMMANDS)]
)
def test_every_repository_has_command_and_reader(
    tmp_path: Path, family: str, commands: dict[str, str]
) -> None:
    tasks = load(tmp_path, *(row(family, **of(repo)) for repo in commands))
    assert {task.repo: task.test_command for task in tasks} == commands
    for task in tasks:
        log_reader(task.log_parser)
        assert (task.log_parser == "pytest") is ("pytest" in task.test_command or "tox" in task.test_command)


def test_swe_bench_command_may_depend_on_the_version(tmp_path: Path) -> None:
    commands = {
        ("astropy/astropy", "1.3"): "pytest -rA -vv -o console_output_style=classic --tb=no",
        ("astropy/astropy", "3.0"): "pytest -rA",
        ("django/django", "1.9"): "./tests/runtests.py --verbosity 2",
        ("django/django", "4.2"): "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    }
    for (repo, version), command in commands.items():
        (task,) = load(tmp_path, row("bench", **of(repo), version=version))
        assert task.test_command == command


def test_django_runs_modules_in_its_locale(tmp_path: Path) -> None:
    names = ("tests/admin_views/tests.py", "tests/forms/data.json", "django/test/x.py")
    patch = "".join(DIFF.replace("x.py", name) for name in names)
    kept = ["test_a (admin_views.tests.Views)", "test_b (urls.tests.Urls.test_b)", "It does."]
    columns = {**of("django/django"), "version": "2.2", "PASS_TO_PASS": kept}
    (task,) = load(tmp_path, row("bench", **columns, test_patch=patch))
    assert task.test_files == ("admin_views.tests", "django.test.x", "urls.tests")
    assert "export LC_ALL=en_US.UTF-8" in task.setup
    assert task.setup.endswith(CONDA)
    assert task.log_parser == "django"


def test_swe_rebench_v1_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row("rebench"))
    assert task.image == "swerebench/sweb.eval.x86_64.o_1776_r-1"
    assert task.test_command == "pytest --no-header -rA --tb=line"
    assert task.setup == f"{CONDA}\nexport A='b c'"
    assert (task.workdir, task.test_files, task.log_parser) == ("/testbed", None, "pytest")
    as_text = json.dumps(row("rebench")["install_config"])
    assert load(tmp_path, row("rebench", install_config=as_text)) == [task]


def test_swe_rebench_v2_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row("v2"))
    assert (task.image, task.workdir, task.setup) == ("docker.io/swerebenchv2/o-r:1-abc", "/r", "")
    assert (task.test_files, task.log_parser) == ((), "swebench:parse_log_gotest")
    assert task.test_command == (
        "failed=0\n{ go build ./...\n} || failed=1\n{ go test -v ./...\n} || failed=1\nexit $failed"
    )


def test_evaluation_script_is_split(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row("eval"))
    assert task.image == ROWS["eval"]["image"]
    assert (task.test_command, task.test_files) == ("pytest -rA tests/test_x.py", ())
    environment = ["source /opt/miniconda3/bin/activate", "conda activate testbed"]
    assert [line.partition("  #")[0] for line in task.setup.split("\n")] == [
        "export PIP_NO_INDEX=1", *environment, "cd /testbed",
        "git config --global --add safe.directory /testbed", "cd /testbed", *environment,
        "python -m pip install -e .", "unset PIP_NO_INDEX", "echo '>>>>> Start Test Output'",
    ]  # fmt: skip
    assert task.log_parser == "swebench:parse_log_sympy"


def test_swe_smith_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row("smith"))
    assert (task.bug_patch, task.patch, task.test_patch) == (DIFF, BACK, "")
    assert (task.base_commit, task.image) == ("1fd52536", ROWS["smith"]["image_name"])
    assert task.test_command.startswith("pytest ")
    assert "-rA" in task.test_command
    assert task.test_files is None
    (older,) = load(tmp_path, row("smith", image_name="swesmith.x86_64.oauthlib__oauthlib.1fd52536"))
    assert older.image == task.image
    unittest = {"repo": "swesmith/tornadoweb__tornado.d5ac65c1", "FAIL_TO_PASS": ["test_a (t.x.Y)"]}
    (tornado,) = load(tmp_path, row("smith", **unittest))
    assert (tornado.log_parser, tornado.test_files) == ("unittest", ())


def test_r2e_gym_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row("r2e"))
    assert task.instance_id == "sympy__" + "d" * 40
    assert (task.base_commit, task.image) == ("c" * 40, ROWS["r2e"]["docker_image"])
    assert task.problem_statement == "It is broken."
    assert task.expected == {"TestA.test_b": "PASSED", "test_c": "FAILED"}
    assert (task.fail_to_pass, task.pass_to_pass, task.test_patch) == ((), (), "")
    assert {"/r2e_tests", "/testbed/run_tests.sh", "/testbed/expected_test_output.json"} <= set(HIDDEN)
    assert task.hidden == HIDDEN
    assert (task.test_command, task.test_files, task.log_parser) == ("bash run_tests.sh", (), "r2e")
    assert task.patch == (
        "diff --git a/lib/a.py b/lib/a.py\nindex 1234567..89abcde 100644\n--- a/lib/a.py\n+++ b/lib/a.py\n"
        "@@ -1,2 +1,2 @@ def f():\n x\n-y\n+z\n\\ No newline at end of file\n"
    )
    parent = "d" * 40 + "^"  # the parent of the fix
    (task,) = load(tmp_path, changed("r2e", {"parsed_commit_content.old_commit_hash": parent}))
    assert task.base_commit == parent


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(family=st.sampled_from(sorted(ROWS)), data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_row_is_a_task_or_a_task_error(family: str, data: st.DataObject) -> None:
    columns = data.draw(st.dictionaries(st.sampled_from(sorted(ROWS[family])), odd | odd.map(json.dumps)))
    said = ""
    try:
        task = task_of(Row("rows.jsonl", "line 1", row(family, **columns), None))
    except TaskError as error:
        said = str(error)
    assert said.startswith("'rows.jsonl', line 1") if said else (task.fail_to_pass or task.expected)
    assert "\n" not in said
    for column, field in (("FAIL_TO_PASS", "fail_to_pass"), ("PASS_TO_PASS", "pass_to_pass")):
        if not said and column in columns:
            given: Any = columns[column]
            assert list(getattr(task, field)) == (json.loads(given) if isinstance(given, str) else given)


NOT_NEEDED = {
    "bench": {"version", "environment_setup_commit"},
    "rebench": {"image_name", "meta", "docker_image"},
    "v2": {"language"},
    "eval": {"version", "environment_setup_commit", "eval_type", "eval_script"},
    "r2e": {"execution_result_content", "modified_files", "num_non_test_files", "prompt"},
}


@pytest.mark.parametrize("family", sorted(ROWS))
def test_missing_column_is_an_error(tmp_path: Path, family: str) -> None:
    """But those that are not needed, or without which the row is one of another data set."""
    for column in ROWS[family]:
        less = {name: value for name, value in ROWS[family].items() if name != column}
        if column in NOT_NEEDED.get(family, ()):
            assert load(tmp_path, less)
            continue
        message = refusal(tmp_path, less)
        assert "rows.jsonl', line 1" in message
        assert family != "gym" or f"the column {column!r} is missing; expected " in message


def test_huge_rows_are_read_in_linear_time() -> None:
    many = range(20_000)
    ids = {"fail_to_pass": [f"test_x (a{n}.T)" for n in many], "pass_to_pass": ()}
    cases = "".join(f"[case c{n}]" for n in many)
    start = time.process_time()
    assert swegym.mypy_cases({**ids, "test_patch": "[case " * 20_000}) == ""
    assert swegym.mypy_cases({**ids, "test_patch": cases}) == ""
    changed_files = "".join(f"diff --git a/b{n}.py b/b{n}.py\n" for n in many)
    assert len(swebench.django_labels({**ids, "test_patch": changed_files})) == 40_000
    assert time.process_time() - start < 5
