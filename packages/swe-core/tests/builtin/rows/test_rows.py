"""The source `rows`: the task of a row of SWE-Gym, and the error of each invalid row of any data set."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.task import Task
from swe_core.builtin.rows.families import task_of
from swe_core.builtin.rows.row import CONDA, Row
from swe_core.builtin.rows.swegym import TEST_COMMANDS
from swe_core.errors import TaskError

from .helpers import DIFF, HERE, changed, load, load_file, refusal, row


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


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        ({"instance_id": "Project-MONAI__MONAI-7", "repo": "Project-MONAI/MONAI"},
         {"image": "xingyaoww/sweb.eval.x86_64.project-monai_s_monai-7"}),
        # A row that names its image has a free id, which may name another repository.
        ({"repo": "dask/dask", "image_name": "registry.example:5000/moto:1"},
         {"image": "registry.example:5000/moto:1", "setup": "", "test_command": TEST_COMMANDS["dask/dask"]}),
        ({"responses_create_params": {"input": []}, "split": "train"}, {"repo": "getmoto/moto"}),  # NeMo Gym
        ({"image_name": "registry.example/copies/sweb.eval.x86_64.getmoto_s_moto-1:v2"}, {"setup": CONDA}),
        ({"repo": "conan-io/conan", "instance_id": "conan-io__conan-1"},
         {"setup": f"{CONDA}\nexport PYTHONPATH=/testbed"}),
        *(({"instance_id": name}, {"instance_id": name}) for name in ("GetMoto__Moto-1-again", "moto-1")),
        ({"FAIL_TO_PASS": '["t.py::test_\\u00fc[a b]"]', "PASS_TO_PASS": "[]"},
         {"fail_to_pass": ("t.py::test_ü[a b]",), "pass_to_pass": ()}),
        # As Python and numpy print a list; each test counts once, and one in both lists must be mended.
        ({"FAIL_TO_PASS": """["it's", 'a', 'a\\\\b', 'a']""", "PASS_TO_PASS": "['a' 'b'\n 'b' 'c d']"},
         {"fail_to_pass": ("it's", "a", "a\\b"), "pass_to_pass": ("b", "c d")}),
        ({"FAIL_TO_PASS": None, "fail_to_pass": ["a"], "pass_to_pass": "[]"}, {"fail_to_pass": ("a",)}),
        ({"version": 3.0, "hints_text": float("nan"), "patch": None}, {"version": "3.0", "hints_text": ""}),
        ({"test_cmds": ["x"], "test_command": "pytest", "image_name": "a/b"}, {"test_command": "pytest"}),
        ({"patch": "", "test_patch": ""}, {"patch": "", "test_patch": ""}),
        *(({"instance_id": "python__mypy-1", "repo": "python/mypy", "version": version},
           {"test_command": command})
          for version, command in (("1.6", "pytest -n0 -rA"), ("1.7", "pytest -rA"), ("1.11", "pytest -rA"))),
        # The cases that the test patch names, also of its context, and of other tests that decide.
        ({"instance_id": "python__mypy-1", "repo": "python/mypy", "version": "1.7",
          "test_patch": f"{DIFF}@@ -9 +9 @@ [case testOne]\n+[case testTwo-xfail]\n+[case $(rm)]\n",
          "FAIL_TO_PASS": ["mypy/test/testcheck.py::TypeCheckSuite::check-x.test::testOneMore"],
          "PASS_TO_PASS": ["mypy/test/testcheck.py::TypeCheckSuite::testTwo"]},
         {"test_command": "pytest -rA -k 'testOne or testTwo-xfail or testTwo'", "test_files": ()}),
    ],
)  # fmt: skip
def test_columns_become_fields(tmp_path: Path, columns: dict[str, Any], fields: dict[str, Any]) -> None:
    (task,) = load(tmp_path, row(**columns))
    assert {name: getattr(task, name) for name in fields} == fields


def test_row_may_bring_its_own_environment(tmp_path: Path) -> None:
    (tmp_path / "data" / "mine" / ".git").mkdir(parents=True)
    own = {"test_command": "python -m unittest -v", "setup": "export A=1", "log_parser": "unittest"}
    (task,) = load(tmp_path / "data", row(repo="me/mine", repository="mine", **own))
    assert (task.repository, task.image) == (tmp_path / "data" / "mine", None)
    assert {name: getattr(task, name) for name in own} == own


def test_optional_columns_may_be_null(tmp_path: Path) -> None:
    names = ("hints_text", "version", "created_at", "environment_setup_commit", "image_name", "repository")
    null = dict.fromkeys((*names, "test_command", "setup", "log_parser"))
    assert load(tmp_path, row(**null)) == load(tmp_path, row())


def test_json_file_holds_a_list_of_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([row(), row(instance_id="b")], indent=1))
    assert [task.instance_id for task in load_file(file)] == ["getmoto__moto-1", "b"]


def test_byte_order_mark_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    text = json.dumps(row(problem_statement="one\u2028two\x85three"), ensure_ascii=False)
    file.write_bytes(b"\xef\xbb\xbf\r\n" + text.encode() + b"\r\n   \n")
    (task,) = load_file(file)
    assert task.problem_statement == "one\u2028two\x85three"


# What is refused: the sentence names the file, the row, the column, what was found and what was expected.


REFUSED: list[tuple[str, dict[str, Any], str]] = json.loads((HERE / "refused.json").read_text())


@pytest.mark.parametrize("family", sorted({family for family, *_ in REFUSED}))
def test_invalid_column_is_named(tmp_path: Path, family: str) -> None:
    for columns, says in (case for one, *case in REFUSED if one == family):
        message = refusal(tmp_path, row(instance_id="first"), changed(family, columns))
        assert message.startswith(f"{str(tmp_path / 'rows.jsonl')!r}, line 2")
        assert says in message


def test_endless_name_of_a_repository_and_unsafe_id_are_refused(tmp_path: Path) -> None:
    assert "expected a git work tree" in refusal(tmp_path, row(repository="a" * 5000))
    for unsafe in ("", "../up", "-x", "a\n", "é", ".hidden", "x" * 201):
        assert "the column 'instance_id' is" in refusal(tmp_path, row(instance_id=unsafe))


def test_repeated_id_is_rejected(tmp_path: Path) -> None:
    message = refusal(tmp_path, row(), row(instance_id="b"), row())
    assert "line 3 ('getmoto__moto-1'): the instance_id is already taken by line 1" in message


FOREIGN: list[tuple[str, bytes | None, str]] = [
    ("a.jsonl", b"\n \n", "holds no rows"),
    ("a.json", b"", "holds no rows"),
    ("a.json", b"[]", "holds no rows"),
    ("a.jsonl", b"{nope", "line 1: the row is not JSON"),
    ("a.jsonl", b"[" * 100_000, "line 1: the row is not JSON"),
    ("a.jsonl", b"9" * 5000, "line 1: the row is not JSON"),
    ("a.json", b"[{]", "the file is not JSON"),
    ("a.json", b"{}\n{}", "a file with one row a line ends in .jsonl"),
    ("a.json", b'{"instance_id": {"0": "a"}}', "expected a list of rows, found an object"),
    ("a.json", b"[3]", "row 1: expected an object with one key per column, found 3"),
    ("a.jsonl", b'\n{"a": "\xff"}', "line 2: the row is not UTF-8 text (byte 8"),
    ("a.json", "[]".encode("utf-16"), "is not UTF-8 text"),
    ("a.jsonl", b'\n{"a": 1, "b": {"c": 1, "c": 1}}', "line 2: the key 'c' is twice in one object"),
    ("a.json", b'[{"repo": "a", "repo": "b"}]', "the key 'repo' is twice in one object"),
    ("a.csv", b"a,b", "expected a name that ends in .jsonl"),
    ("a.parquet", b"PAR1", "is not a .parquet file that can be read: "),
    ("absent.jsonl", None, "cannot read the tasks in"),
    ("nul\0.jsonl", None, "cannot read the tasks in"),
]


def test_faults_are_told_by_kind_and_left_out_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = [row(instance_id=f"e-{number}", problem_statement=" " * number) for number in range(3)]
    foreign = [{"fix_patch": "x", "resolved_issues": [1]}, {"trajectory": [1]}]
    lists = [row(instance_id=f"l-{text}", FAIL_TO_PASS=text) for text in "ab"]
    file = tmp_path / "rows.jsonl"
    rows = [row(instance_id="a"), *empty, *lists, row(instance_id="b"), row(instance_id="b"), *foreign]
    file.write_text("".join(json.dumps(value) + "\n" for value in rows) + '{"cut')
    with pytest.raises(TaskError) as caught:
        load_file(file)
    head, *kinds = str(caught.value).split("\n")
    hint = "leave them out with --skip-invalid or --filter COLUMN=GLOB:"
    assert head == f"{str(file)!r}: 9 of 11 rows are invalid; {hint}"
    for line, says in zip(
        kinds,
        (
            "3 of 11 rows, the first is line 2 ('e-0'): the column 'problem_statement' is empty",
            "2 of 11 rows, the first is line 5 ('l-a'): the column 'FAIL_TO_PASS' is 'a', expected a list",
            "1 of 11 rows, line 11: the row is not JSON: ",
            "1 of 11 rows, line 8 ('b'): the instance_id is already taken by line 7",
            "1 of 11 rows, line 9: its columns are those of Multi-SWE-bench, which is not supported",
            "1 of 11 rows, line 10: it holds an attempt or a prompt, and no task",
        ),
        strict=True,
    ):
        assert line.startswith(says)
    assert [task.instance_id for task in load_file(file, skip_invalid=True)] == ["a", "b"]
    assert [record.getMessage() for record in caplog.records] == [
        f"left out of {str(file)!r}: {line}" for line in kinds
    ]
    # A bad row matters only to who asks for it.
    assert [task.instance_id for task in load_file(file, only=("a",))] == ["a", "b"]
    with pytest.raises(TaskError, match=r"line 5 \('l-a'\): the column 'FAIL_TO_PASS' is 'a'.*string$"):
        load_file(file, only=("a", "l-a"), skip_invalid=True)
    file.write_text("".join(json.dumps(value) + "\n" for value in empty))
    with pytest.raises(TaskError, match=r"rows.jsonl': 3 of 3 rows, the first .* is empty, expected text$"):
        load_file(file, skip_invalid=True)


def test_values_of_data_frames_and_tables_are_read_as_json() -> None:
    numpy, pandas, pyarrow = map(pytest.importorskip, ("numpy", "pandas", "pyarrow"))
    columns = {
        "FAIL_TO_PASS": numpy.array(["a", "b"], dtype=object),
        "PASS_TO_PASS": pyarrow.array(["c"]),
        "hints_text": pandas.NA,
        "version": numpy.float64("nan"),
        "created_at": pandas.Timestamp("2024"),
        "repo": pyarrow.scalar("getmoto/moto"),
        "setup": numpy.nan,
        "log_parser": numpy.str_("pytest"),
    }
    task = task_of(Row("x", "row 1", row(**columns), None))
    plain = task_of(Row("x", "row 1", row(FAIL_TO_PASS=["a", "b"], PASS_TO_PASS=("c",)), None))
    assert task == plain


def test_foreign_file_is_rejected(tmp_path: Path) -> None:
    for name, content, expected in FOREIGN:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(TaskError) as caught:
            load_file(tmp_path / name)
        assert repr(str(tmp_path / name)) in str(caught.value)
        assert expected in str(caught.value)


# Universal rules.

test_ids = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4)


@given(ids=test_ids, as_text=st.booleans())
@settings(max_examples=50, deadline=None)
def test_valid_row_keeps_its_test_ids(ids: list[str], as_text: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        value = json.dumps(ids) if as_text else ids
        try:
            (task,) = load(Path(directory), row(FAIL_TO_PASS=value))
        except TaskError:
            wrong = any(not test.strip() or "\0" in test for test in ids)
            assert wrong or not any(test[0].isalnum() or test[0] in "._/" for test in ids)
        else:
            assert task.fail_to_pass == tuple(dict.fromkeys(ids))


@given(content=st.binary(max_size=60), name=st.sampled_from(["a.json", "a.jsonl"]))
@settings(max_examples=50, deadline=None)
def test_any_bytes_are_a_task_error(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / name
        file.write_bytes(content)
        with pytest.raises(TaskError):
            load_file(file)
