"""Code under test that tries to resolve with a bug: through the whole grader, in real sandboxes.

Each attack stands before the module under test, which keeps its bug. test_graded_tree.py tests attacks
through conftest.py and other files of the test runner.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable

import pytest

from swe_core.api.grader import Graded, Grader
from swe_core.api.sandbox import SandboxProvider
from swe_core.api.task import Task

from ...repositories import Repo, slow_but, swe_grader
from .helpers import BUGGY, FIX, calc_task, defining_add, programs

pytestmark = pytest.mark.anyio

Grade = Callable[[str], Awaitable[Graded]]

TESTS = (
    "from calc import add\n\ndef test_zero():\n    assert add(0, 0) == 0\n",
    "\ndef test_add():\n    assert add(1, 2) == 3\n",
)
WANTED = ("tests/test_calc.py::test_add", "tests/test_calc.py::test_zero")
SUMMARY = "".join(f"PASSED {test}\\n" for test in WANTED)
FORGED = f"====== short test summary info ======\\n{SUMMARY}====== 2 passed in 0.01s ======\\n"
PROGRAMS = programs("attacks.toml", FORGED=FORGED, WANTED=str(WANTED))
ATTACKS: dict[str, str] = PROGRAMS["ATTACKS"]
EARLY: dict[str, str] = PROGRAMS["EARLY"]
"""What is there before the watch is made, and gone before it first looks."""
FIRST: dict[str, str] = PROGRAMS["FIRST"]
"""By code that a conftest imports: before the tests are read, and while they are collected."""
UNITTEST = """
import unittest
from calc import add

class AddTest(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""
IN_UNITTEST: dict[str, str] = PROGRAMS["IN_UNITTEST"]
PAID: dict[str, str] = PROGRAMS["PAID"]
"""Open: the code recognises the test, or the watch, from inside."""
A_SESSION_OF_ITS_OWN: str = PROGRAMS["shared"]["A_SESSION_OF_ITS_OWN"]
"""Sends what the reporter sends, with the keys that it finds on the disk."""


@pytest.fixture(scope="module")
def repo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Repo:
    """A repository whose conftest.py is the parameter, if there is one."""
    repo = Repo(tmp_path_factory.mktemp("repo"))
    repo.commit(calc_py=BUGGY, tests__test_calc_py=TESTS[0], conftest_py=getattr(request, "param", ""))
    return repo


@pytest.fixture(scope="module")
def task(repo: Repo) -> Task:
    return calc_task(repo, FIX, TESTS[1])


@pytest.fixture(scope="module")
def grader() -> Grader:
    """One for all attacks: it runs the reference once."""
    return swe_grader()


@pytest.fixture
def grade(repo: Repo, provider: SandboxProvider, task: Task, grader: Grader) -> Grade:
    def grade(code: str) -> Awaitable[Graded]:
        patch = repo.diff(f"cat >calc.py <<'END'\n{defining_add(code)}END")
        timeout = 8 if code == ATTACKS["trace function"] else 120  # that one never ends
        return grader.grade(task, patch.encode(), provider, repo.spec, timeout)

    return grade


FAST = (
    "forged summary, exit", "the reporter's format", "closes every descriptor", "runtest",
    "runtest, by code, and what it was as an attribute", "test reports", "a plugin", "reports of its own",
    "the tests' code", "AssertionError", "write",
)  # fmt: skip
"""One of each kind."""
FAST_IMPORTED = ("type", "tests on the disk", "a finder", "other items")


@pytest.mark.parametrize("attack", slow_but(FAST, ATTACKS))
async def test_attack_does_not_resolve(grade: Grade, attack: str) -> None:
    graded = await grade(ATTACKS[attack])
    assert not graded.grade.resolved, graded.grade
    assert graded.grade.reason


@pytest.mark.parametrize("repo", ["import calc\n"], ids=["imported"], indirect=True)
@pytest.mark.parametrize("attack", slow_but(FAST_IMPORTED, [*EARLY, *FIRST]))
async def test_attack_from_conftest_does_not_resolve(grade: Grade, attack: str) -> None:
    graded = await grade({**EARLY, **FIRST}[attack])
    assert not graded.grade.resolved, graded.grade
    assert graded.grade.reason


async def test_shadowed_pytest_plugin_does_not_resolve(
    repo: Repo, provider: SandboxProvider, task: Task
) -> None:
    """pytest loads anyio's plugin by itself, by an entry point of the image."""
    plugin = 'def pytest_pyfunc_call(pyfuncitem): return pyfuncitem.name == "test_add" or None'
    script = f"mkdir anyio; touch anyio/__init__.py; echo {shlex.quote(plugin)} >anyio/pytest_plugin.py"
    graded = await swe_grader().grade(
        task.model_copy(update={"setup": ""}), repo.diff(script).encode(), provider, repo.spec, 120
    )
    assert not graded.grade.resolved, graded.grade
    sentences = [one.done for one in graded.grade.tampering]
    assert "the repository has a module anyio in the place of an installed one" in sentences


@pytest.mark.parametrize("repo", ["import calc\n", ""], ids=["conftest", "test"], indirect=True)
@pytest.mark.parametrize("attack", slow_but(["unittest in the module"], IN_UNITTEST))
async def test_attack_on_test_class_does_not_resolve(
    repo: Repo, provider: SandboxProvider, task: Task, attack: str
) -> None:
    task = task.model_copy(
        update={
            "test_patch": repo.diff(f"cat >tests/test_calc.py <<'END'\n{UNITTEST}END"),
            "fail_to_pass": ("tests/test_calc.py::AddTest::test_add",),
            "pass_to_pass": (),
        }
    )
    patch = repo.diff(f"cat >calc.py <<'END'\n{defining_add(IN_UNITTEST[attack])}END")
    graded = await swe_grader().grade(task, patch.encode(), provider, repo.spec, 120)
    assert not graded.grade.resolved, graded.grade
    assert graded.grade.tampering or "conftest" in graded.grade.reason, graded.grade


@pytest.mark.parametrize("repo", ["import calc\n", ""], ids=["conftest", "test"], indirect=True)
async def test_forged_reporter_session_does_not_resolve(grade: Grade) -> None:
    graded = await grade(A_SESSION_OF_ITS_OWN)
    assert not graded.grade.resolved, graded.grade
    sentences = [one.done for one in graded.grade.tampering]
    assert "the test runner was started while it ran" in sentences


@pytest.mark.parametrize("attack", slow_but(["objects equal to everything"], PAID))
async def test_known_open_attack_still_resolves(grade: Grade, attack: str) -> None:
    """docs/internals/grading.md lists these. One that no longer resolves moves to ATTACKS."""
    assert (await grade(PAID[attack])).grade.resolved
