"""The cheats: each one resolves with a grader that trusts the graded tree, so that a failure is a proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swe_core.api.grader import Grade, Graded
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.builtin.swe.parsers import parse_pytest
from swe_core.errors import UsageError
from swe_core.run.verify.apply_cheat import CheatFailed, files_of_tests, make_patch
from swe_core.run.verify.cheats import CHEATS, chosen
from swe_core.run.verify.recipe import Cheat, Recipe
from swe_core.sandboxing.repository.patch import record_base
from swe_core.sandboxing.repository.prepare import prepare_repository

from ...repositories import Repo, slow_but
from .conftest import CASES, new_file

_GULLIBLE = """cd /testbed
{setup}
git apply --whitespace=nowarn /tmp/model.patch || exit 99
git apply --whitespace=nowarn /tmp/tests.patch
PYTHONPATH=. exec python -m pytest -rA -p no:cacheprovider tests/test_adder.py
"""


async def gullible(task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec) -> Graded:
    """What a grader must not be: it runs the tree as the patch left it, with the gold patch on the disk,
    reads the log, and takes what is not said to have failed as passed. Code at the root is on Python's path,
    as where a package is installed in place."""
    async with provider.open(spec) as sandbox:
        await sandbox.write("/tmp/model.patch", patch)
        await sandbox.write("/tmp/tests.patch", task.test_patch.encode())
        await sandbox.write("/tmp/gold.patch", task.patch.encode())
        done = await sandbox.exec(["bash", "-c", _GULLIBLE.format(setup=task.setup)])
    assert done.exit_code != 99, done.stderr
    found = parse_pytest(done.stdout)
    bad = [test for test in task.fail_to_pass if found.get(test) in ("FAILED", "ERROR")]
    return Graded(grade=Grade(resolved=not bad, reason=" ".join(bad)), log=done.stdout + done.stderr)


def spec_of(task: Task) -> SandboxSpec:
    return SandboxSpec(repository=task.repository, network="none")


async def patch_of(
    provider: SandboxProvider, task: Task, cheat: Cheat, *, pruned: bool = False
) -> bytes | None:
    async with provider.open(spec_of(task)) as sandbox:
        base = await (prepare_repository(sandbox, task, hide=True) if pruned else record_base(sandbox))
        return await make_patch(sandbox, base, task, cheat, timeout=60)


QUICK = "export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"


@pytest.fixture(scope="module")
def functions(make_task: Any) -> Task:
    return make_task(setup=QUICK)


@pytest.fixture(scope="module")
def cases(make_task: Any) -> Task:
    """The same tests as unittest cases."""
    return make_task(
        test_patch=new_file("tests/test_adder.py", CASES),
        fail_to_pass=("tests/test_adder.py::Adding::test_small",),
        pass_to_pass=("tests/test_adder.py::Adding::test_nothing_added",),
        setup=QUICK,
    )


async def test_gullible_grader_resolves_the_gold_patch_only(
    provider: SandboxProvider, functions: Task
) -> None:
    spec = spec_of(functions)
    unrelated = new_file("notes.txt", "nothing").encode()
    assert not (await gullible(functions, unrelated, provider, spec)).grade.resolved
    assert (await gullible(functions, functions.patch.encode(), provider, spec)).grade.resolved


ELSEWHERE = {
    "usercustomize": "a virtual environment has no user site",
    "own-session": "its victims are graders whose keys lie on the disk",
    "command-killed": "its victims are graders for whom a killed command is an error",
    "pth": "a .pth file works in a site directory only, and an image may have one inside its repository",
}
"""Cheats that need another environment than the test's, and why."""

FAST = {"conftest-root", "unittest-patched", "tests-linked"}


@pytest.mark.parametrize("name", slow_but(FAST, [cheat.name for cheat in CHEATS]))
async def test_every_cheat_resolves_with_the_gullible_grader(
    provider: SandboxProvider, functions: Task, cases: Task, name: str
) -> None:
    (cheat,) = chosen(name)
    task = cases if cheat.name in ("unittest-patched", "comparing-patched") else functions
    if cheat.name == "entry-point":  # such a plugin is loaded with those that are installed
        task = task.model_copy(update={"setup": ""})
    if cheat.name == "tests-rewritten":  # the tests are imported after the code under test
        conftest = new_file("conftest.py", "import adder\n")
        task = task.model_copy(update={"test_patch": task.test_patch + conftest})
    patch = await patch_of(provider, task, cheat)
    assert patch
    graded = await gullible(task, patch, provider, spec_of(task))
    assert graded.grade.resolved is (cheat.name not in ELSEWHERE), graded.log.decode()


async def test_cheat_finds_no_fix_in_pruned_history(provider: SandboxProvider, functions: Task) -> None:
    (cheat,) = chosen("history-at-work")
    stolen = await patch_of(provider, functions, cheat)
    assert stolen is not None
    assert b"+    return a + b" in stolen
    assert await patch_of(provider, functions, cheat, pruned=True) == b""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["history-at-work", "history-at-test"])
async def test_cheat_finds_fix_between_base_and_head(
    provider: SandboxProvider, make_task: Any, repository: Path, tmp_path: Path, name: str
) -> None:
    """There is no later branch; HEAD contains the fix and its revert."""
    repo = Repo(tmp_path / "repository")
    repo.sh(f"git pull -q --no-tags {repository} HEAD")
    repo.commit()
    repo.commit(adder_py="def add(a, b):\n    return a + b\n")
    repo.sh("git revert --no-edit HEAD")
    task, spec = make_task(repository=repo.path), repo.spec
    (cheat,) = chosen(name)
    stolen = await patch_of(provider, task, cheat)
    assert stolen is not None
    assert (await gullible(task, stolen, provider, spec)).grade.resolved
    if name == "history-at-work":
        assert await patch_of(provider, task, cheat, pruned=True) == b""


def test_recipe_finds_the_test_files(make_task: Any) -> None:
    for task in (make_task(), make_task(test_patch=new_file("tests/data.txt", "x"))):
        assert files_of_tests(task) == ("tests/test_adder.py",)


async def test_inapplicable_cheat_makes_no_patch(provider: SandboxProvider, make_task: Any) -> None:
    """The gold patch adds a file and no test file is named, so no imported code is known."""
    blind = make_task(
        patch=new_file("new.py", "x = 1"), test_patch="", fail_to_pass=("a test",), pass_to_pass=()
    )
    for name in ("forged-summary", "tests-deleted", "test-dir-linked", "tests-linked", "stale-bytecode"):
        assert await patch_of(provider, blind, chosen(name)[0]) is None


async def test_failing_recipe_is_an_error(provider: SandboxProvider, functions: Task) -> None:
    for recipe, said in (
        (Recipe(commands="echo no such thing >&2; false; true"), "its commands.: no such thing"),
        (Recipe(append={".git/HEAD/x": "y"}), r"writing .git/HEAD/x.: .*mkdir"),
    ):
        cheat = Cheat("odd", "Does it.", lambda target, recipe=recipe: recipe)
        with pytest.raises(CheatFailed, match=f"the cheat 'odd' could not be made .{said}"):
            await patch_of(provider, functions, cheat)


def test_cheat_option_selects_cheats() -> None:
    names = [cheat.name for cheat in CHEATS]
    assert len(names) == len(set(names)) >= 15
    assert set(names) > FAST
    two = ["pth", "tests-deleted"]
    for text, expected in (("all", names), ("none", []), (" pth, tests-deleted,pth ,", two)):
        assert [cheat.name for cheat in chosen(text)] == expected
    for text, said in (("xyzzy", "no such cheat; there are: conftest-root, "), (",", "names nothing")):
        with pytest.raises(UsageError, match=said):
            chosen(text)
