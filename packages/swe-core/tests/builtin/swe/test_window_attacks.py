"""Attacks between the import of a test module and the first look at its tests, and on what the look believes.

Each resolved once. `add` is an object whose class pytest or unittest looks up during collection; then it
changes the module that imported it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.api.sandbox import SandboxProvider

from ...repositories import Repo, slow_but, swe_grader
from .helpers import FIX, calc_task, programs, with_and_without_import

pytestmark = pytest.mark.anyio

PROGRAMS = programs("window_attacks.toml")
WINDOW: str = PROGRAMS["shared"]["WINDOW"]
FILES: dict[str, str] = PROGRAMS["files"]
ATTACKS: dict[str, tuple[str, str]] = PROGRAMS["ATTACKS"]
"""In the window: by the name of the test, what is run then."""
AT_IMPORT: dict[str, tuple[str, str]] = PROGRAMS["AT_IMPORT"]
HONEST: dict[str, tuple[str, str, str]] = PROGRAMS["HONEST"]


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Repo]:
    return with_and_without_import(
        tmp_path_factory,
        calc_py=FILES["calc"],
        conftest_py=FILES["conftest"],
        tests____init___py="",
        tests__helpers_py=FILES["helpers"],
        tests__test_calc_py=FILES["tests"],
    )


async def resolves(repo: Repo, provider: SandboxProvider, test: str, code: str) -> bool:
    row = calc_task(repo, FIX, FILES["hidden"], test)
    patch = repo.diff(FIX if not code else f"cat >>calc.py <<'END'\n{code}\nEND")
    graded = await swe_grader().grade(row, patch.encode(), provider, repo.spec, 60)
    assert bool(graded.grade.tampering) != graded.grade.resolved, graded.grade
    return graded.grade.resolved


FAST = [
    "an object",
    "other globals",
    "an imported name",
    "a hook by a closure of the tests",
    "a method of unittest",
]
FAST_AT_IMPORT = [
    "a default below a decorator",
    "a fixture by a closure of the library",
    "a module of another kind",
]


@pytest.mark.parametrize("name", slow_but(FAST, ATTACKS))
async def test_attack_during_collection_does_not_resolve(
    repos: dict[str, Repo], provider: SandboxProvider, name: str
) -> None:
    test, code = ATTACKS[name]
    assert not await resolves(repos[""], provider, test, f"{WINDOW}\ndef late(m):\n    {code}\n")


@pytest.mark.parametrize("name", slow_but(FAST_AT_IMPORT, AT_IMPORT))
async def test_attack_at_import_does_not_resolve(
    repos: dict[str, Repo], provider: SandboxProvider, name: str
) -> None:
    test, code = AT_IMPORT[name]
    early = "helpers" in code and "def add" not in code
    assert not await resolves(repos["import calc\n" if early else ""], provider, test, code)


async def test_fix_resolves(repos: dict[str, Repo], provider: SandboxProvider) -> None:
    for start in repos:
        assert await resolves(repos[start], provider, "test_decorated", "")


@pytest.mark.parametrize("name", slow_but(["a decorator of tests"], HONEST))
async def test_rewritten_product_decorator_resolves(
    tmp_path: Path, provider: SandboxProvider, name: str
) -> None:
    before, hidden, after = HONEST[name]
    repo = Repo(tmp_path / "repo")
    repo.commit(calc_py=FILES["calc"] + before, tests__test_calc_py="import calc\ndef test_zero(): pass\n")

    def fixed(inner: str) -> str:
        code = FILES["calc"].replace("a - b", "a + b") + after.replace("{}", inner)
        return f"cat >calc.py <<'END'\n{code}END"

    row = calc_task(repo, fixed("inner"), hidden)
    other = repo.diff(fixed("wrapper")).encode()
    grade = (await swe_grader().grade(row, other, provider, repo.spec, 60)).grade
    assert (grade.resolved, grade.tampering, grade.suspicious) == (True, (), ()), grade.reason
