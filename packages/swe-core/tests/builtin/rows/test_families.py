"""Rows of each data set become the tasks that its documentation describes; invalid rows are errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.task import Task
from swe_core.builtin.rows import RowsConfig, swe_tasks
from swe_core.builtin.rows.families import task_of
from swe_core.builtin.rows.r2e import HIDDEN
from swe_core.builtin.rows.row import CONDA, Row
from swe_core.builtin.rows.swebench import TEST_COMMANDS
from swe_core.builtin.swe.parsers import log_reader
from swe_core.errors import TaskError

DIFF = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
BACK = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 2\n+a = 1\n"
TESTS = DIFF.replace("x.py", "tests/test_x.py")

COMMON = {
    "instance_id": "o__r-1",
    "repo": "o/r",
    "base_commit": "a" * 40,
    "problem_statement": "It is broken.",
    "patch": DIFF,
    "test_patch": TESTS,
    "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
    "PASS_TO_PASS": ["tests/test_x.py::test_b"],
}
SWE_BENCH = {
    **COMMON,
    "instance_id": "psf__requests-1",
    "repo": "psf/requests",
    "version": "2.3",
    "environment_setup_commit": "b" * 40,
    "FAIL_TO_PASS": '["tests/test_x.py::test_a"]',
    "PASS_TO_PASS": "[]",
}
REBENCH = {
    **COMMON,
    "docker_image": "swerebench/sweb.eval.x86_64.o_1776_r-1",
    "image_name": "o__r-1:latest",
    "install_config": {
        "test_cmd": "pytest --no-header -rA --tb=line",
        "log_parser": "parse_log_pytest",
        "env_vars": {"A": "b c", "B": None},
        "python": "3.9",
        "packages": None,
    },
    "meta": {"llm_score": {}},
}
REBENCH_V2 = {
    **COMMON,
    "image_name": "docker.io/swerebenchv2/o-r:1-abc",
    "language": "go",
    "install_config": {
        "test_cmd": ["go build ./...", "go test -v ./..."],
        "log_parser": "parse_log_gotest",
        "base_image_name": "go_1.23",
    },
}
EVAL_SCRIPT = """#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff aaaa
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
git checkout aaaa tests/test_x.py
git apply -v - <<'EOF_114329324912'
diff --git a/tests/test_x.py b/tests/test_x.py
source nothing of this
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA tests/test_x.py
: '>>>>> End Test Output'
git checkout aaaa tests/test_x.py
"""
EVAL = {
    **SWE_BENCH,
    "image": "swebench/sweb.eval.x86_64.psf_1776_requests-1:latest",
    "log_parser": "parse_log_sympy",
    "eval_type": "pass_and_fail",
    "eval_script": EVAL_SCRIPT,
}
SMITH = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "patch": DIFF,
    "FAIL_TO_PASS": ["tests/test_x.py::T::test_a"],
    "PASS_TO_PASS": ["tests/test_y.py::test_b"],
    "image_name": "swebench/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "problem_statement": "It is broken.",
}
R2E_COMMIT = {
    "file_diffs": [
        {
            "old_file_content": "",
            "new_file_content": "",
            "header": {"file": {"path": "lib/a.py"}, "misc_line": None},
            "index_line": {"old_commit_hash": "1234567", "new_commit_hash": "89abcde", "mode": "100644"},
            "is_binary_file": False,
            "binary_line": None,
            "minus_file": {"path": "a/lib/a.py"},
            "plus_file": {"path": "b/lib/a.py"},
            "hunks": [
                {
                    "descriptor": {
                        "old_range": {"start": 1, "length": 2},
                        "new_range": {"start": 1, "length": 2},
                        "section": "def f():",
                    },
                    "line_group": {
                        "all_lines": [
                            {"content": "x", "type": "context"},
                            {"content": "y", "type": "deleted"},
                            {"content": "z", "type": "added"},
                            {"content": "No newline at end of file", "type": "note"},
                        ]
                    },
                    "modified_entities": [],
                }
            ],
        },
        {"header": {"file": {"path": "lib/tests/test_a.py"}}, "hunks": []},
        {"header": {"file": {"path": "lib/a.png"}}, "is_binary_file": True, "binary_line": "Binary files"},
    ],
    "old_commit_hash": "c" * 40,
    "new_commit_hash": "d" * 40,
    "commit_message": "Fix",
    "commit_date": "2020-01-01T00:00:00",
}
R2E = {
    "repo_name": "sympy",
    "docker_image": "namanjain12/sympy_final:" + "d" * 40,
    "commit_hash": "d" * 40,
    "parsed_commit_content": json.dumps(R2E_COMMIT),
    "execution_result_content": "{}",
    "modified_files": ["lib/a.py"],
    "num_non_test_files": 1,
    "prompt": "p",
    "problem_statement": "Before\n[ISSUE]\nIt is broken.\n[/ISSUE]\nafter",
    "expected_output_json": json.dumps({"TestA.test_b": "PASSED", "test_c\u001b[0m - why": "FAILED"}),
}


def load(directory: Path, *rows: object) -> list[Task]:
    file = directory / "rows.jsonl"
    file.write_text("".join(json.dumps(value) + "\n" for value in rows), encoding="utf-8")
    (component,) = swe_tasks()
    return list(component.create(RowsConfig(file=file)).tasks())


def of(repo: str) -> dict[str, str]:
    """The columns that name a repository."""
    return {"repo": repo, "instance_id": f"{repo.replace('/', '__')}-1"}


def refusal(directory: Path, row: object) -> str:
    with pytest.raises(TaskError) as caught:
        load(directory, row)
    message = str(caught.value)
    assert message.startswith(f"{str(directory / 'rows.jsonl')!r}, line 1")
    return message


def test_families_may_be_mixed_in_a_file(tmp_path: Path) -> None:
    rows = [R2E, REBENCH, {**REBENCH_V2, "instance_id": "v2"}, EVAL, SMITH, {**SWE_BENCH, "instance_id": "b"}]
    assert [task.log_parser for task in load(tmp_path, *rows)] == [
        "r2e", "pytest", "swebench:parse_log_gotest", "swebench:parse_log_sympy", "pytest", "pytest",
    ]  # fmt: skip


def test_swe_bench_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, SWE_BENCH)
    assert task.image == "swebench/sweb.eval.x86_64.psf_1776_requests-1:latest"
    assert (task.setup, task.test_command, task.test_files) == (CONDA, "pytest -rA", None)
    assert (task.fail_to_pass, task.pass_to_pass) == (("tests/test_x.py::test_a",), ())


@pytest.mark.parametrize("repo", sorted(TEST_COMMANDS))
def test_every_swe_bench_repository_has_command_and_reader(tmp_path: Path, repo: str) -> None:
    (task,) = load(tmp_path, {**SWE_BENCH, **of(repo)})
    assert task.test_command == TEST_COMMANDS[repo]
    log_reader(task.log_parser)
    assert (task.log_parser == "pytest") is ("pytest" in task.test_command or "tox" in task.test_command)


@pytest.mark.parametrize(
    ("repo", "version", "command"),
    [
        ("astropy/astropy", "1.3", "pytest -rA -vv -o console_output_style=classic --tb=no"),
        ("astropy/astropy", "3.0", "pytest -rA"),
        ("django/django", "1.9", "./tests/runtests.py --verbosity 2"),
        ("django/django", "4.2", "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"),
    ],
)
def test_swe_bench_command_may_depend_on_the_version(
    tmp_path: Path, repo: str, version: str, command: str
) -> None:
    (task,) = load(tmp_path, {**SWE_BENCH, **of(repo), "version": version})
    assert task.test_command == command


def test_django_runs_modules_in_its_locale(tmp_path: Path) -> None:
    patch = "".join(
        DIFF.replace("x.py", name)
        for name in ("tests/admin_views/tests.py", "tests/forms/data.json", "django/test/x.py")
    )
    row = {**SWE_BENCH, **of("django/django"), "version": "2.2", "test_patch": patch}
    (task,) = load(tmp_path, row)
    assert task.test_files == ("admin_views.tests", "django.test.x")
    assert "export LC_ALL=en_US.UTF-8" in task.setup
    assert task.setup.endswith(CONDA)
    assert task.log_parser == "django"


def test_swe_rebench_v1_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, REBENCH)
    assert task.image == "swerebench/sweb.eval.x86_64.o_1776_r-1"
    assert task.test_command == "pytest --no-header -rA --tb=line"
    assert task.setup == f"{CONDA}\nexport A='b c'"
    assert (task.workdir, task.test_files, task.log_parser) == ("/testbed", None, "pytest")
    as_text = {**REBENCH, "install_config": json.dumps(REBENCH["install_config"])}
    assert load(tmp_path, as_text) == [task]


def test_swe_rebench_v2_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, REBENCH_V2)
    assert (task.image, task.workdir, task.setup) == ("docker.io/swerebenchv2/o-r:1-abc", "/r", "")
    assert task.test_files == ()
    assert task.log_parser == "swebench:parse_log_gotest"
    assert task.test_command.split("\n") == [
        "failed=0",
        "{ go build ./...",
        "} || failed=1",
        "{ go test -v ./...",
        "} || failed=1",
        "exit $failed",
    ]


def test_evaluation_script_is_split(tmp_path: Path) -> None:
    (task,) = load(tmp_path, EVAL)
    assert task.image == EVAL["image"]
    assert (task.test_command, task.test_files) == ("pytest -rA tests/test_x.py", ())
    assert [line.partition("  #")[0] for line in task.setup.split("\n")] == [
        "export PIP_NO_INDEX=1",
        "source /opt/miniconda3/bin/activate",
        "conda activate testbed",
        "cd /testbed",
        "git config --global --add safe.directory /testbed",
        "cd /testbed",
        "source /opt/miniconda3/bin/activate",
        "conda activate testbed",
        "python -m pip install -e .",
        "unset PIP_NO_INDEX",
        "echo '>>>>> Start Test Output'",
    ]
    assert task.log_parser == "swebench:parse_log_sympy"


def test_swe_smith_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, SMITH)
    assert (task.bug_patch, task.patch, task.test_patch) == (DIFF, BACK, "")
    assert (task.base_commit, task.image) == ("1fd52536", SMITH["image_name"])
    assert task.test_command.startswith("pytest ")
    assert "-rA" in task.test_command
    assert task.test_files is None
    (older,) = load(tmp_path, {**SMITH, "image_name": "swesmith.x86_64.oauthlib__oauthlib.1fd52536"})
    assert older.image == task.image
    unittest = {**SMITH, "repo": "swesmith/tornadoweb__tornado.d5ac65c1", "FAIL_TO_PASS": ["test_a (t.x.Y)"]}
    (tornado,) = load(tmp_path, unittest)
    assert (tornado.log_parser, tornado.test_files) == ("unittest", ())


def test_r2e_gym_names_the_parent_of_the_fix(tmp_path: Path) -> None:
    parent = "d" * 40 + "^"
    commit = json.dumps({**R2E_COMMIT, "old_commit_hash": parent})
    (task,) = load(tmp_path, {**R2E, "parsed_commit_content": commit})
    assert task.base_commit == parent


def test_r2e_gym_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, R2E)
    assert task.instance_id == "sympy__" + "d" * 40
    assert (task.base_commit, task.image) == ("c" * 40, R2E["docker_image"])
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


WRONG: Mapping[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a test in both lists": (COMMON, {"repo": "getmoto/moto", "PASS_TO_PASS": ["tests/test_x.py::test_a"]},
     "the test 'tests/test_x.py::test_a' is in both FAIL_TO_PASS and PASS_TO_PASS"),
    "a test twice": (COMMON, {"repo": "getmoto/moto", "PASS_TO_PASS": ["a", "b", "a"]},
     "the column 'PASS_TO_PASS[2]' is 'a', expected a test that is not PASS_TO_PASS[0] already"),
    "nowhere to run": (COMMON, {"test_command": "pytest -rA"},
     "add a column 'image_name' (a container image"),
    "two ways to run": (EVAL, {"test_command": "pytest"}, "'test_command' and 'eval_script' both say how"),
    "an image of two names": (EVAL, {"image_name": "another"}, "'image' and 'image_name' name two images"),
    "fail only": (EVAL, {"eval_type": "fail_only"}, "the column 'eval_type' is 'fail_only', expected"),
    "no markers": (EVAL, {"eval_script": "pytest"},
     "the column 'eval_script' is 'pytest', expected a script"),
    "markers around nothing": (EVAL,
     {"eval_script": ": '>>>>> Start Test Output'\n: '>>>>> End Test Output'"},
     "expected a test command between"),
    "an unknown parser": (REBENCH, {"install_config": {"test_cmd": "x", "log_parser": "parse_log_js_4"}},
     "the column 'install_config.log_parser': the package swebench has no log parser 'parse_log_js_4'"),
    "no parser": (REBENCH, {"install_config": {"test_cmd": "x"}},
     "the column 'install_config.log_parser' is null, expected"),
    "no command": (REBENCH_V2, {"install_config": {"test_cmd": [], "log_parser": "parse_log_pytest"}},
     "the column 'install_config.test_cmd' is a list, expected a shell command"),
    "a config that is none": (REBENCH, {"install_config": "pytest"},
     "the column 'install_config' is 'pytest'"),
    "a variable that is none": (REBENCH,
     {"install_config": {"test_cmd": "x", "log_parser": "pytest", "env_vars": ["A"]}},
     "the column 'install_config.env_vars' is a list, expected an object"),
    "an image of two languages": (REBENCH_V2, {"image_name": None}, "the column 'image_name' is null"),
    "an id of another repository": (SWE_BENCH, {"repo": "pallets/flask"},
     "the instance_id names another repository than the column 'repo', which is 'pallets/flask'"),
    "a bug that is none": (SMITH, {"patch": ""}, "the column 'patch' is empty, expected the diff"),
    "a bug that cannot be taken back": (SMITH, {"patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n"},
     "the column 'patch' cannot be reversed: the hunk '@@"),
    "a repository that is not of swe-smith": (SMITH, {"repo": "o/r"},
     "the column 'repo' is 'o/r', expected a"),
    "another language": (SMITH, {"FAIL_TO_PASS": ["pkg TestX"]},
     "no test command is known for the repository 'oauthlib__oauthlib'"),
    "no commit": (R2E, {"parsed_commit_content": "{}"},
     "is no commit of R2E-Gym: file_diffs: Field required"),
    "no commit id": (R2E, {"parsed_commit_content": json.dumps({**R2E_COMMIT, "old_commit_hash": "HEAD^"})},
     "the column 'parsed_commit_content.old_commit_hash' is 'HEAD^'"),
    "the parent of no commit id": (R2E,
     {"parsed_commit_content": json.dumps({**R2E_COMMIT, "old_commit_hash": "d" * 40 + "^^"})},
     "expected a commit id, or one with '^' for its parent"),
    "the parent of a commit, where an id is expected": (SWE_BENCH, {"base_commit": "c" * 40 + "^"},
     "expected a commit id: 7 to 64 lower-case hexadecimal digits"),
    "nothing expected": (R2E, {"expected_output_json": "{}"},
     "the column 'expected_output_json' is an object"),
    "something else expected": (R2E, {"expected_output_json": '{"a": "SKIPPED"}'},
     "expected one of PASSED, FAILED, ERROR"),
    "a repository with a path": (R2E, {"repo_name": "../x"}, "the column 'repo_name' is '../x'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_invalid_family_row_is_an_error(tmp_path: Path, name: str) -> None:
    good, changes, says = WRONG[name]
    assert says in refusal(tmp_path, {**good, **changes})


GOOD = {"bench": SWE_BENCH, "rebench": REBENCH, "v2": REBENCH_V2, "eval": EVAL, "smith": SMITH, "r2e": R2E}
odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(family=st.sampled_from(sorted(GOOD)), data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_row_is_a_task_or_a_task_error(family: str, data: st.DataObject) -> None:
    columns = data.draw(st.dictionaries(st.sampled_from(sorted(GOOD[family])), odd | odd.map(json.dumps)))
    said = ""
    try:
        task = task_of(Row("rows.jsonl", "line 1", {**GOOD[family], **columns}, None))
    except TaskError as error:
        said = str(error)
    assert said.startswith("'rows.jsonl', line 1") if said else (task.fail_to_pass or task.expected)
    assert "\n" not in said


NOT_NEEDED = {
    "bench": {"version", "environment_setup_commit"},
    "rebench": {"image_name", "meta", "docker_image"},
    "v2": {"language"},
    "eval": {"version", "environment_setup_commit", "eval_type", "eval_script"},
    "smith": set[str](),
    "r2e": {"execution_result_content", "modified_files", "num_non_test_files", "prompt"},
}


@pytest.mark.parametrize("family", sorted(GOOD))
def test_missing_family_column_is_an_error(tmp_path: Path, family: str) -> None:
    """But those that are not needed, or without which the row is one of another data set."""
    for column in GOOD[family].keys() - NOT_NEEDED[family]:
        refusal(tmp_path, {name: value for name, value in GOOD[family].items() if name != column})
    for column in NOT_NEEDED[family]:
        assert load(tmp_path, {name: value for name, value in GOOD[family].items() if name != column})
