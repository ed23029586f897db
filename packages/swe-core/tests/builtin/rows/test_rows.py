"""The source "swegym": the task of a row, and the error of each invalid row."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.task import Task
from swe_core.builtin.rows import RowsConfig, swe_tasks
from swe_core.builtin.rows.row import CONDA
from swe_core.builtin.rows.swegym import TEST_COMMANDS
from swe_core.errors import TaskError

DIFF = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
FILE_NAME = "rows.jsonl"


def row(**columns: Any) -> dict[str, Any]:
    return {
        "instance_id": "getmoto__moto-1",
        "repo": "getmoto/moto",
        "base_commit": "a" * 40,
        "problem_statement": "It is broken.",
        "patch": DIFF,
        "test_patch": DIFF,
        "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
        "PASS_TO_PASS": ["tests/test_x.py::test_b[1 2]"],
        **columns,
    }


def without(name: str) -> dict[str, Any]:
    return {column: value for column, value in row().items() if column != name}


def load(directory: Path, *rows: object, name: str = FILE_NAME) -> list[Task]:
    file = directory / name
    file.write_text("".join(json.dumps(value) + "\n" for value in rows), encoding="utf-8")
    return load_file(file)


def load_file(file: Path) -> list[Task]:
    (component,) = swe_tasks()
    return list(component.create(RowsConfig(file=file)).tasks())


def refusal(directory: Path, *rows: object) -> str:
    with pytest.raises(TaskError) as caught:
        load(directory, *rows)
    return str(caught.value)


def test_row_becomes_a_task(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row(hints_text="h", version="5.0", created_at="2024", unknown={"any": 1}))
    assert task == Task(
        instance_id="getmoto__moto-1",
        repo="getmoto/moto",
        base_commit="a" * 40,
        problem_statement="It is broken.",
        patch=DIFF,
        test_patch=DIFF,
        fail_to_pass=("tests/test_x.py::test_a",),
        pass_to_pass=("tests/test_x.py::test_b[1 2]",),
        version="5.0",
        hints_text="h",
        image="xingyaoww/sweb.eval.x86_64.getmoto_s_moto-1",
        setup=CONDA,
        test_command="pytest -n0 -rA",
        log_parser="pytest",
    )


def test_published_image_is_lower_case(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row(instance_id="Project-MONAI__MONAI-7", repo="Project-MONAI/MONAI"))
    assert task.image == "xingyaoww/sweb.eval.x86_64.project-monai_s_monai-7"


def test_row_may_name_its_image(tmp_path: Path) -> None:
    """The id is free then: it may name another repository."""
    (task,) = load(tmp_path, row(repo="dask/dask", image_name="registry.example:5000/moto:1"))
    assert (task.image, task.setup) == ("registry.example:5000/moto:1", "")
    assert task.test_command == TEST_COMMANDS["dask/dask"]


@pytest.mark.parametrize("name", ["GetMoto__Moto-1", "getmoto__moto-1-again", "getmoto__moto", "moto-1"])
def test_id_may_spell_the_repository_differently(tmp_path: Path, name: str) -> None:
    (task,) = load(tmp_path, row(instance_id=name))
    assert task.instance_id == name


def test_row_may_bring_its_own_environment(tmp_path: Path) -> None:
    (tmp_path / "data" / "mine" / ".git").mkdir(parents=True)
    own = {
        "repository": "mine",
        "test_command": "python -m unittest -v",
        "setup": "export A=1",
        "log_parser": "unittest",
    }
    (task,) = load(tmp_path / "data", row(repo="me/mine", **own))
    assert task.repository == tmp_path / "data" / "mine"
    assert task.image is None
    assert (task.test_command, task.setup, task.log_parser) == (
        "python -m unittest -v",
        "export A=1",
        "unittest",
    )


def test_list_may_be_json_in_a_string(tmp_path: Path) -> None:
    ids = ["tests/test_x.py::test_a", "tests/test_x.py::test_ü[a b]"]
    (task,) = load(tmp_path, row(FAIL_TO_PASS=json.dumps(ids), PASS_TO_PASS="[]"))
    assert task.fail_to_pass == tuple(ids)
    assert task.pass_to_pass == ()


def test_patches_may_be_empty(tmp_path: Path) -> None:
    (task,) = load(tmp_path, row(patch="", test_patch=""))
    assert (task.patch, task.test_patch) == ("", "")


def test_optional_columns_may_be_null(tmp_path: Path) -> None:
    names = ("hints_text", "version", "created_at", "environment_setup_commit", "image_name", "repository")
    null = dict.fromkeys((*names, "test_command", "setup", "log_parser"))
    assert load(tmp_path, row(**null)) == load(tmp_path, row())


def test_json_file_holds_a_list_of_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([row(), row(instance_id="b")], indent=1))
    assert [task.instance_id for task in load_file(file)] == ["getmoto__moto-1", "b"]


def test_byte_order_mark_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    text = json.dumps(row(problem_statement="one\u2028two\x85three"), ensure_ascii=False)
    file.write_bytes(b"\xef\xbb\xbf\r\n" + text.encode() + b"\r\n   \n")
    (task,) = load_file(file)
    assert task.problem_statement == "one\u2028two\x85three"


@pytest.mark.parametrize("repo", sorted(TEST_COMMANDS))
def test_every_repository_has_its_command(tmp_path: Path, repo: str) -> None:
    (task,) = load(tmp_path, row(repo=repo, instance_id=f"{repo.replace('/', '__')}-1"))
    assert task.test_command == TEST_COMMANDS[repo]
    assert "pytest" in task.test_command
    assert "-rA" in task.test_command


@pytest.mark.parametrize(
    ("version", "command"),
    [("0.920", "pytest -n0 -rA"), ("1.6", "pytest -n0 -rA"), ("1.7", "pytest -rA"), ("1.11", "pytest -rA")],
)
def test_mypy_command_depends_on_its_version(tmp_path: Path, version: str, command: str) -> None:
    (task,) = load(tmp_path, row(instance_id="python__mypy-1", repo="python/mypy", version=version))
    assert task.test_command == command


# What is refused: the sentence names the file, the row, the column, what was found and what was expected.

WRONG: Mapping[str, tuple[dict[str, Any], str]] = {
    "a list column is plain text": ({"FAIL_TO_PASS": "tests/test_x.py::test_a"},
     "the column 'FAIL_TO_PASS' is 'tests/test_x.py::test_a', expected a list of test ids, or such a list "
     "as JSON in a string"),
    "a list column is a Python list in a string": ({"PASS_TO_PASS": "['a']"},
     "the column 'PASS_TO_PASS' is \"['a']\", expected a list of test ids"),
    "a list column is a JSON string in a string": ({"FAIL_TO_PASS": '"abc"'},
     "the column 'FAIL_TO_PASS' is '\"abc\"', expected a list of test ids"),
    "a list column is a number": ({"FAIL_TO_PASS": 7},
     "the column 'FAIL_TO_PASS' is 7, expected a list of test ids"),
    "a list column is null": ({"PASS_TO_PASS": None}, "the column 'PASS_TO_PASS' is null, expected a list"),
    "a list column is an object": ({"PASS_TO_PASS": {"a": 1}}, "the column 'PASS_TO_PASS' is an object"),
    "a list holds a number": ({"FAIL_TO_PASS": ["a", 1]},
     "the column 'FAIL_TO_PASS[1]' is 1, expected a test id"),
    "a list holds lists": ({"PASS_TO_PASS": '[["a"]]'},
     "the column 'PASS_TO_PASS[0]' is a list, expected a test id"),
    "a list holds an empty id": ({"PASS_TO_PASS": [""]}, "the column 'PASS_TO_PASS[0]' is empty"),
    "an object in a string has a key twice": ({"FAIL_TO_PASS": '[{"a": 1, "a": 2}]'},
     "the column 'FAIL_TO_PASS': the key 'a' is twice in one object; leave one of them out"),
    "nothing must pass": ({"FAIL_TO_PASS": []}, "the column 'FAIL_TO_PASS' is a list, expected at least one"),
    "text is a number": ({"problem_statement": 1.5}, "the column 'problem_statement' is 1.5, expected text"),
    "text is null": ({"repo": None}, "the column 'repo' is null, expected text"),
    "text is empty": ({"problem_statement": " \n"},
     "the column 'problem_statement' is ' \\n', expected text"),
    "text holds half a character": ({"repo": "\ud800"}, "the column 'repo' is '\\ud800', expected text"),
    "text holds a NUL": ({"setup": "a\0b"}, "the column 'setup' is 'a\\x00b', expected text"),
    "version is a number": ({"version": 5.0}, "the column 'version' is 5.0, expected text"),
    "a commit is null": ({"base_commit": None}, "the column 'base_commit' is null, expected text"),
    "a commit is a branch": ({"base_commit": "main"},
     "the column 'base_commit' is 'main', expected a commit id"),
    "a commit is an option": ({"base_commit": "--all"},
     "the column 'base_commit' is '--all', expected a commit"),
    "a patch is none": ({"patch": "fix it"}, "the column 'patch' is 'fix it', expected a unified diff"),
    "a test patch is none": ({"test_patch": "tests"},
     "the column 'test_patch' is 'tests', expected a unified diff, or nothing"),
    "an image with a blank": ({"image_name": "a b"}, "the column 'image_name' is 'a b', expected the name"),
    "an unknown parser": ({"log_parser": "tap"}, "the column 'log_parser' is 'tap', expected 'pytest',"),
    "an empty command": ({"test_command": " "}, "the column 'test_command' is ' ', expected a shell command"),
    "an absent repository": ({"repository": "nowhere"},
     "the column 'repository' is 'nowhere', expected a git"),
    "an empty repository": ({"repository": ""}, "the column 'repository' is empty, expected a git work tree"),
    "an endless repository": ({"repository": "a" * 5000}, "expected a git work tree"),
    "an id of another repository": ({"repo": "dask/dask"},
     "the instance_id names another repository than the column 'repo', which is 'dask/dask'"),
    "an unknown project": ({"repo": "me/mine"}, "'me/mine'; add a column 'test_command'"),
    "mypy of no version": ({"repo": "python/mypy"}, "the column 'version' is null, expected mypy's version"),
    "mypy of an odd version": ({"repo": "python/mypy", "version": "new"},
     "the column 'version' is 'new', expected mypy's version"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_invalid_column_is_named(tmp_path: Path, name: str) -> None:
    columns, expected = WRONG[name]
    message = refusal(tmp_path, row(instance_id="first"), row(**columns))
    assert message.startswith(f"{str(tmp_path / FILE_NAME)!r}, line 2 ('getmoto__moto-1'): ")
    assert expected in message


def test_missing_commit_is_named(tmp_path: Path) -> None:
    expected = (
        "the column 'base_commit' is missing; expected a commit id: 7 to 64 lower-case hexadecimal digits"
    )
    assert refusal(tmp_path, without("base_commit")).endswith(expected)


@pytest.mark.parametrize("name", sorted(row()))
def test_missing_column_is_named(tmp_path: Path, name: str) -> None:
    message = refusal(tmp_path, without(name))
    assert f"{FILE_NAME}', line 1" in message
    assert f"the column {name!r} is missing; expected " in message


@pytest.mark.parametrize("unsafe", ["", "../up", "a/b", "-x", "a b", "a\n", "é", ".hidden", "x" * 201])
def test_id_that_is_an_unsafe_file_name_is_rejected(tmp_path: Path, unsafe: str) -> None:
    assert "the column 'instance_id' is" in refusal(tmp_path, row(instance_id=unsafe))


def test_repeated_id_is_rejected(tmp_path: Path) -> None:
    message = refusal(tmp_path, row(), row(instance_id="b"), row())
    assert "line 3: the instance_id 'getmoto__moto-1' is already taken by line 1" in message


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b"", "holds no rows"),
        ("a.jsonl", b"\n \n", "holds no rows"),
        ("a.json", b"", "holds no rows"),
        ("a.json", b"[]", "holds no rows"),
        ("a.jsonl", b"{nope", "line 1 is not JSON"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("a.jsonl", b"9" * 5000, "line 1 is not JSON"),
        ("a.json", b"[{]", "is not JSON"),
        ("a.jsonl", b"[1]", "line 1: expected an object with one key per column, found a list"),
        ("a.json", b'{"instance_id": {"0": "a"}}', "expected a list of rows, found an object"),
        ("a.json", b"[3]", "row 1: expected an object with one key per column, found 3"),
        ("a.jsonl", b"{}", "line 1: the column 'repo' is missing"),
        ("a.jsonl", b'\n{"a": "\xff"}', "line 2 is not UTF-8 text (byte 8"),
        ("a.json", "[]".encode("utf-16"), "is not UTF-8 text"),
        ("a.jsonl", b'{}\n{"a": 1, "b": {"c": 1, "c": 1}}', "line 2: the key 'c' is twice in one object"),
        ("a.json", b'[{"repo": "a", "repo": "b"}]', "the key 'repo' is twice in one object"),
        ("a.csv", b"a,b", "expected a name that ends in .jsonl"),
        ("a.parquet", b"PAR1", "is not a .parquet file that can be read: "),
    ],
)
def test_foreign_file_is_rejected(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError) as caught:
        load_file(tmp_path / name)
    assert repr(str(tmp_path / name)) in str(caught.value)
    assert expected in str(caught.value)


def test_absent_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"cannot read the tasks in '.*absent\.jsonl': No such file"):
        load_file(tmp_path / "absent.jsonl")
    with pytest.raises(TaskError, match="cannot read the tasks"):
        load_file(tmp_path / "nul\0.jsonl")


# Universal rules.

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
test_ids = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4)
known_columns = st.sampled_from(
    [*row(), "hints_text", "version", "image_name", "repository", "test_command", "setup", "log_parser"]
)


@given(ids=test_ids, as_text=st.booleans())
@settings(max_examples=150, deadline=None)
def test_valid_row_keeps_its_test_ids(ids: list[str], as_text: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        value = json.dumps(ids) if as_text else ids
        try:
            (task,) = load(Path(directory), row(FAIL_TO_PASS=value))
        except TaskError:
            wrong = any(not test.strip() or "\0" in test for test in ids)
            assert wrong or len(set(ids)) < len(ids)
        else:
            assert list(task.fail_to_pass) == ids


@given(changes=st.dictionaries(known_columns, json_values, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_mistyped_row_is_a_task_error(changes: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        try:
            (task,) = load(Path(directory), row(**changes))
        except TaskError:
            return
        for column, field in (("FAIL_TO_PASS", task.fail_to_pass), ("PASS_TO_PASS", task.pass_to_pass)):
            given_ids = changes.get(column, row()[column])
            expected = json.loads(given_ids) if isinstance(given_ids, str) else given_ids
            assert list(field) == expected


@given(content=st.binary(max_size=60), name=st.sampled_from(["a.json", "a.jsonl"]))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_a_task_error(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / name
        file.write_bytes(content)
        with pytest.raises(TaskError):
            load_file(file)
