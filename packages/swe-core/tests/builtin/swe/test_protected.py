"""The rules of what a patch cannot change, without a sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.task import Task
from swe_core.builtin.swe.git_trees import LINK, SUBMODULE, Changes, Entry, Trees, ancestors, blob_id
from swe_core.builtin.swe.merge_trees import digest_of_tests, merge_trees
from swe_core.builtin.swe.protected import Protection
from swe_core.builtin.swe.test_files import absent_files, files_to_run
from swe_testing.records import make_task

OLD, NEW, GOLD = (Entry("100644", digit * 40) for digit in "123")


def trees(*base: str, model: Changes | None = None, tests: Changes | None = None, **others: Any) -> Trees:
    given = {"reference": tests or {}, **others}
    return Trees(base=dict.fromkeys(base, OLD), model=model or {}, tests=tests or {}, **given)


def task(*ids: str, **changed: Any) -> Task:
    return make_task(**{"fail_to_pass": ids or ("x",), "test_command": "pytest -rA", **changed})


def kind(path: str, repository: Trees, row: Task) -> str | None:
    return Protection(repository, row).kind(path)


FLAT = (
    "calc.py", "tests/test_calc.py", "tests/data/x.json", "pkg/test_ops.py", "pkg/ops.py",
    "pkg/__init__.py",
)  # fmt: skip

NAMED = {
    "by its path": (task("tests/test_calc.py::test_a[x y]"), "tests/test_calc.py", "calc.py"),
    "all of its directory": (task("tests/test_calc.py::test_a"), "tests/data/new.json", "pkg/data.json"),
    "beside the product": (task("pkg/test_ops.py::T::test_a"), "pkg/test_ops.py", "pkg/ops.py"),
    "kept": (task("x", pass_to_pass=["pkg/test_ops.py::test"]), "pkg/test_ops.py", "pkg/test_other.py"),
    "expected": (task("x", expected={"pkg/test_ops.py::t": "PASSED"}), "pkg/test_ops.py", "pkg/ops.py"),
    "unittest": (task("test_a (tests.test_calc.T)", log_parser="unittest"), "tests/test_calc.py", "calc.py"),
    "dotted": (task("pkg.test_ops.T.test_a", log_parser="unittest"), "pkg/test_ops.py", "pkg/ops.py"),
    "from a directory of its own": (task("test_a (test_calc.T.test_a)", log_parser="unittest"),
     "tests/test_calc.py", "calc.py"),
    "no product by its name": (task("calc.T.test_a", log_parser="unittest"), "conftest.py", "pkg/ops.py"),
    "test_files": (task("x", test_files=["pkg/test_ops.py"]), "pkg/test_ops.py", "tests/test_calc.py"),
    "a directory of test_files": (task("x", test_files=["tests/"]), "tests/test_calc.py", "pkg/test_ops.py"),
    "in the command": (task("x", test_command="pytest -rA tests"), "tests/new.py", "pkg/test_ops.py"),
    "a file in the command": (task("x", test_command="pytest ./pkg/test_ops.py"), "pkg/test_ops.py",
     "pkg/ops.py"),
    "hidden": (task("x", hidden=["/r2e_tests", "/testbed/run.sh"]), "r2e_tests/a.py", "run2.sh"),
    "hidden in the repository": (task("x", hidden=["/testbed/run.sh"]), "run.sh", "r2e_tests/a.py"),
    "a doctest is the product": (task("pkg/ops.py::pkg.ops.f"), "conftest.py", "pkg/ops.py"),
    "a doctest in a text": (task("tests/data/x.json::x.json"), "tests/data/x.json", "calc.py"),
    "doctest at the root": (task("calc.py::calc.add"), "conftest.py", "calc.py"),
}  # fmt: skip


@pytest.mark.parametrize("how", NAMED)
def test_protection_recognises_test_files(how: str) -> None:
    row, protected, free = NAMED[how]
    assert kind(protected, trees(*FLAT), row) is not None
    assert kind(free, trees(*FLAT), row) is None


def test_protection_uses_nearest_tests_directory() -> None:
    """astropy/tests/runner.py is the product."""
    row = task("pkg/tests/tests/test_runner.py::test_a")
    repository = trees("pkg/tests/runner.py", "pkg/tests/tests/test_runner.py")
    assert kind("pkg/tests/runner.py", repository, row) is None
    assert kind("pkg/tests/tests/util.py", repository, row) == "tests"


COMMANDS = {
    "bash run_tests.sh": "run_tests.sh",
    "./run_tests.sh --fast": "run_tests.sh",
    "cd /testbed && /testbed/run_tests.sh": "run_tests.sh",
    "pytest -c ci/pytest.cfg": "ci/pytest.cfg",
    "pytest --rootdir=. -c=ci/pytest.cfg": "ci/pytest.cfg",
    "python tools/runner.py": "tools/runner.py",
    "python3.9 -m nox -s tests": "noxfile.py",
    "make test": "Makefile",
    "tox -e py": "tox.toml",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_the_test_command_runs_are_protected(command: str) -> None:
    path = COMMANDS[command]
    repository = trees(
        "run_tests.sh", "ci/pytest.cfg", "tools/runner.py", "setup.py", "Makefile", "noxfile.py"
    )
    assert kind(path, repository, task("x", test_command=command)) == "runner-config"
    assert kind(path, repository, task("x", test_command="pytest -rA")) is None


def test_files_that_the_test_command_mentions_are_not_protected() -> None:
    row = task("x", setup="python setup.py develop", test_command="pytest --doctest-modules pkg/ops.py")
    assert kind("setup.py", trees("setup.py", *FLAT), row) is None
    assert kind("pkg/ops.py", trees(*FLAT), row) is None


@pytest.mark.parametrize("name", ["pytest.ini", ".coveragerc", "setup.cfg"])
def test_config_is_protected_where_the_runner_reads_it(name: str) -> None:
    def reads(path: str, row: Task) -> bool:
        rules = Protection(trees("a/b/test_x.py", "c/d.py"), row)
        return rules.kind(path) == "runner-config" or rules.shares_config(path)

    row = task("a/b/test_x.py::test")
    assert [reads(f"{where}{name}", row) for where in ("", "a/", "a/b/", "c/")] == [True, True, True, False]
    assert reads(f"c/{name}", task("no_file")), "where no test is known, every place counts"


def test_compiled_files_of_the_base_are_restored() -> None:
    repository = trees("pkg/__pycache__/x.pyc", "tests/test_a.py", model={"pkg/__pycache__/x.pyc": NEW})
    done = merge_trees(repository, Protection(repository, task("tests/test_a.py::t")), {})
    assert done.is_base
    assert [found.kind for found in done.tampering] == ["shadow"]


def test_shadow_modules_beside_tests_are_protected() -> None:
    row = task("plain/test_x.py::test")
    assert kind("plain/json.py", trees("plain/test_x.py"), row) == "shadow"
    assert kind("plain/json.py", trees("plain/test_x.py", "plain/__init__.py"), row) is None
    assert kind("plain/json.py", trees("plain/test_x.py", "plain/json.py"), row) is None


FILES_TO_RUN: list[tuple[Task, tuple[str, ...]]] = [
    (task("tests/test_b.py::t"), ("tests/test_b.py",)),
    # What is no module is run where an id names it: pytest ends where it collects nothing of a file.
    (task("tests/doc.rst::doc.rst"), ("tests/test_b.py", "tests/doc.rst")),
    # Other tests that decide are run too, unless no tree has their file or the command runs it already.
    (task("tests/test_b.py::t", pass_to_pass=["pkg/test_ops.py::t", "pkg/test_ops.py::u", "gone.py::t"]),
     ("tests/test_b.py", "pkg/test_ops.py")),
    (task("pkg/test_ops.py::t", test_command="pytest -rA pkg"), ("tests/test_b.py",)),
    (task("sub/x/test_x.py::t", "calc.py::calc.add"), ("tests/test_b.py", "sub/x/test_x.py", "calc.py")),
    (task("pkg/test_ops.py::t", test_command="pytest --cov=pkg -rA"), ("tests/test_b.py", "pkg/test_ops.py")),
    (task("test_a (test_calc.T)", "pkg.test_ops.T.test_a", log_parser="unittest"),
     ("tests/test_b.py", "tests/test_calc.py", "pkg/test_ops.py")),
    (task("pkg/test_ops.py:test_a", "test_b", log_parser="swebench:parse_log_sympy"),
     ("tests/test_b.py", "tests/check.test", "tests/doc.rst", "pkg/test_ops.py")),
    (task("pkg/test_ops.py::t", test_files=[]), ()),
    (task("pkg/test_ops.py::t", test_files=["x"]), ("x",)),
]  # fmt: skip


@pytest.mark.parametrize(("row", "files"), FILES_TO_RUN)
def test_files_to_run_hold_all_tests_that_decide(row: Task, files: tuple[str, ...]) -> None:
    touched: Changes = {
        "tests/test_b.py": NEW, "tests/gone.py": None, "tests/conftest.py": NEW, "tests/__init__.py": NEW,
        "tests/x.json": NEW, "tests/check.test": NEW, "tests/xcsv": NEW, "tests/doc.rst": NEW,
    }  # fmt: skip
    repository = trees(*FLAT, tests=touched)
    repository = replace(repository, base={**repository.base, "sub": Entry(SUBMODULE, "4" * 40)})
    assert files_to_run(row, repository) == files


def test_files_that_only_ids_name_are_absent() -> None:
    row = task("pkg/test_ops.py::t", "test_ops.py::t", "gone.py::t", pass_to_pass=["[100%]"])
    assert absent_files(row, trees(*FLAT)) == ("gone.py",)


def test_deep_names_of_tests_are_not_followed() -> None:
    """All directories above one would not fit into the memory."""
    assert not list(ancestors("a/" * 4096))
    assert files_to_run(task(".".join(["a"] * 50_000), log_parser="unittest"), trees(*FLAT)) == ()


def test_files_to_run_without_a_test_patch_fit_on_a_command_line() -> None:
    assert files_to_run(task("calc.py::t", "pkg/ops.py::t"), trees(*FLAT)) == ("calc.py", "pkg/ops.py")
    assert files_to_run(task("calc.T.t", log_parser="unittest"), trees(*FLAT)) == ()
    many = [f"tests/unit/{'x' * 30}{number}/test_x.py" for number in range(2000)]
    assert files_to_run(task(*(f"{path}::t" for path in many)), trees(*many)) == ("tests/unit",)
    many.append("tests_x/test_x.py")
    assert files_to_run(task(*(f"{path}::t" for path in many)), trees(*many)) == ()


def test_digest_of_tests_depends_on_the_reference_only() -> None:
    row = task("tests/test_a.py::t")

    def digest(**changes: Any) -> str:
        repository = trees("tests/test_a.py", "calc.py", **changes)
        return digest_of_tests(repository, Protection(repository, row))

    plain = digest()
    assert digest(model={"tests/test_a.py": NEW, "calc.py": NEW}) == plain
    assert digest(reference={"calc.py": GOLD}) == plain
    assert digest(reference={"tests/new.py": GOLD}) != plain
    assert digest(reference={"tests/test_a.py": None}) != digest(reference={"tests/test_a.py": GOLD}) != plain


def test_blob_id_equals_git_object_id() -> None:
    assert blob_id(b"hello\n", 40) == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert blob_id(b"", 64) == "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813"


def test_paths_outside_the_repository_protect_nothing() -> None:
    assert list(ancestors("/opt/x")) == ["/opt", "/"]
    assert list(ancestors("a/b/c")) == ["a/b", "a"]
    row = task(
        "/opt/test_x.py::t", "//a::t", setup="source /opt/bin/activate; cd //; ls ..", test_files=["/x"]
    )
    assert kind("calc.py", trees(*FLAT), row) is None


# Whatever a patch does

PARTS = (
    "a", "pkg", "tests", "test_x.py", "conftest.py", "sitecustomize.py", "x.py", ".gitattributes",
    "json.py",
)  # fmt: skip
PATHS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("/".join)
TARGETS = {"e": b"x.py", "f": b"../../../..", "d": b"/etc", "c": b"a/b", "b": b".git/config"}
ENTRIES = st.one_of(
    st.sampled_from([NEW, Entry("100755", "2" * 40), OLD]),
    st.sampled_from(sorted(TARGETS)).map(lambda digit: Entry(LINK, digit * 40)),
)


def consistent(tree: dict[str, Entry]) -> dict[str, Entry]:
    return {path: entry for path, entry in tree.items() if not any(p.startswith(f"{path}/") for p in tree)}


FULL = st.dictionaries(PATHS, ENTRIES, max_size=8).map(consistent)


def changed(before: dict[str, Entry], after: dict[str, Entry]) -> dict[str, Entry | None]:
    return {path: after.get(path) for path in {*before, *after} if before.get(path) != after.get(path)}


@settings(max_examples=100, deadline=None, database=None)
@given(base=FULL, model=FULL, tests=FULL, kept=st.booleans())
def test_merged_tree_is_consistent_and_protected(
    base: dict[str, Entry], model: dict[str, Entry], tests: dict[str, Entry], kept: bool
) -> None:
    reference = consistent({**base, **tests})
    repository = Trees(
        base=base,
        model=changed(base, consistent({**base, **model}) if kept else model),
        tests=changed(base, reference),
        reference=changed(base, reference),
    )
    rules = Protection(repository, task("tests/test_x.py::test", "pkg/test_x.py::test"))
    contents = {digit * 40: target for digit, target in TARGETS.items()}
    done = merge_trees(repository, rules, contents)
    graded = {p: e for p, e in {**base, **done.changes}.items() if e is not None}
    for path in {*base, *model, *reference, *graded}:
        assert not (path in graded and any(above in graded for above in ancestors(path)))
        if rules.kind(path) is not None:
            assert graded.get(path) == reference.get(path), path
        elif graded.get(path) is not None and graded[path].mode == LINK and graded[path] != base.get(path):
            assert graded[path] == reference.get(path) or graded[path].id[0] in "ec"
    assert all(done.changes[path] != base.get(path) for path in done.changes)
    told = {found.path for found in done.tampering}
    for path in repository.model:
        assert graded.get(path) in (repository.in_model(path), reference.get(path), base.get(path), None)
        if graded.get(path) not in (repository.in_model(path), reference.get(path)):
            assert path in told
    empty = Trees(base=base, model={}, tests=repository.tests, reference=repository.reference)
    protection = Protection(empty, task("tests/test_x.py::t", "pkg/test_x.py::t"))
    assert merge_trees(empty, protection, contents).is_base
