"""The reporter of unittest: its report of honest runs, its transparency, and the attacks it stops."""

from __future__ import annotations

import builtins
import shlex
import symtable
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.grader import Grade
from swe_core.api.sandbox import Sandbox, SandboxProvider
from swe_core.builtin.swe.parsers import log_reader
from swe_core.builtin.swe.test_runners import Runner, source
from swe_testing.records import make_task

from ...repositories import Repo, slow_but, swe_grader
from .helpers import BUGGY, FIX, defining_add
from .suites import PYTHON, Suite, run_twice, zoo

UNITTEST = f"{PYTHON} -m unittest -v"


@pytest.mark.parametrize("suite", zoo("zoo_unittest.toml", UNITTEST))
async def test_reporter_does_not_change_an_honest_run(sandbox: Sandbox, suite: Suite) -> None:
    watched = await run_twice(sandbox, suite, "django")
    told = watched.report
    if suite.silent:
        return
    assert told.sessions == max(1, suite.command.count(UNITTEST))
    assert bool(told.exit_status) is bool(watched.exit_code)
    found = log_reader("django").parse(watched.log)
    assert found
    # one test prints the line of another, which misleads the log parser
    statuses, found = (
        {test: status for test, status in known.items() if not test.endswith("printing")}
        for known in (told.statuses, found)
    )
    found = {
        test: status
        for test, status in found.items()
        if test in statuses or test != "test_plain.Case.test_bad"
    }
    for test in {"test_parts.Case.test_parts", "test_parts.Case.test_error_parts"} & set(statuses):
        assert statuses.pop(test) in ("FAILED", "ERROR")  # the log may tell of parts alone
        found = {known: status for known, status in found.items() if known != test}
    if "test_classes.Skips.setUpClass" not in found:  # the log of an old Python does not name it
        statuses.pop("test_classes.Skips.setUpClass", None)
    assert statuses == found
    assert set(found) - {name for name in found if " " in name} <= {*told.collected, *statuses}


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_reporter_program_is_self_contained(runner: Runner) -> None:
    """It contains all that it uses of the part that both programs share."""
    table = symtable.symtable(source(runner), "inside.py", "exec")
    known = {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }
    used, tables = set[str](), [table]
    while tables:
        one = tables.pop()
        used |= {symbol.get_name() for symbol in one.get_symbols() if symbol.is_global()}
        tables += one.get_children()
    assert used - known - set(dir(builtins)) == {"__file__", "__name__"} - set(dir(builtins))


# Cheats, through the whole grader

TESTS = """import unittest
from calc import add

class AddTest(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(add(0, 0), 0)
"""
HIDDEN = """
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""
WANTED = ("tests.test_calc.AddTest.test_add", "tests.test_calc.AddTest.test_zero")
LINES = "".join(f"{test.rpartition('.')[2]} ({test}) ... ok\\n" for test in WANTED)
FORGED = f"{LINES}\\n{'-' * 70}\\nRan 2 tests in 0.001s\\n\\nOK\\n"

ATTACKS = {
    name: code.replace("{forged}", FORGED)
    for name, code in tomllib.loads(Path(__file__).with_name("attacks_unittest.toml").read_text()).items()
}


@pytest.fixture(scope="module")
def grade(
    provider: SandboxProvider, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str | None], Awaitable[Grade]]:
    """Grades a patch that puts `code` before the buggy function, or the fix."""
    repo = Repo(tmp_path_factory.mktemp("graded"))
    repo.commit(calc_py=BUGGY, tests__test_calc_py=TESTS)
    repo.sh("touch tests/__init__.py && git add -A && git commit -qm package")
    grader = swe_grader()
    fix = repo.diff(FIX)
    task = make_task(
        base_commit=repo.head,
        patch=fix,
        test_patch=repo.diff(f"printf %s {shlex.quote(HIDDEN)} >>tests/test_calc.py"),
        fail_to_pass=WANTED[:1],
        pass_to_pass=WANTED[1:],
        test_command=UNITTEST,
        test_files=(),
        log_parser="unittest",
    )

    async def grade(code: str | None) -> Grade:
        patch = fix
        if code is not None:
            patch = repo.diff(f"printf %s {shlex.quote(defining_add(code))} >calc.py")
        return (await grader.grade(task, patch.encode(), provider, repo.spec, 120)).grade

    return grade


async def test_fix_resolves_by_the_reporter(grade: Any) -> None:
    graded = await grade(None)
    assert graded.resolved, graded.reason
    assert graded.channel == "reporter"
    assert graded.tampering == ()


HARD = ("forged log, everywhere", "the call, by code, and what it was as an attribute", "the outcome",
        "skipped", "deleted from the loader", "another test in its place")  # fmt: skip


@pytest.mark.parametrize("name", slow_but(HARD, ATTACKS))
async def test_attack_does_not_resolve(grade: Any, name: str) -> None:
    graded = await grade(ATTACKS[name])
    assert not graded.resolved
    assert graded.reason
