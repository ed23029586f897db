"""Attacks that audits of the source found. Each resolved once, without a report of tampering.

As in test_attacks.py, each stands before the module under test, which keeps its bug.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.api.grader import Grader
from swe_core.api.sandbox import SandboxProvider

from ...repositories import Repo, slow_but, swe_grader
from .helpers import calc_task, programs, with_and_without_import

pytestmark = pytest.mark.anyio

PROGRAMS = programs("audited_attacks.toml")
HERE: str = PROGRAMS["shared"]["HERE"]
FORGED_CACHE: str = PROGRAMS["shared"]["FORGED_CACHE"]
ATTACKS: dict[str, tuple[str, str]] = PROGRAMS["ATTACKS"]
IMPORTED: dict[str, tuple[str, str]] = PROGRAMS["IMPORTED"]
"""By code that conftest.py imports."""
OF_UNITTEST: dict[str, tuple[str, str]] = PROGRAMS["OF_UNITTEST"]
BESIDE: dict[str, tuple[str, str]] = PROGRAMS["BESIDE"]
"""Another fix than the gold patch's, and tests that do more than compare."""
FILES: dict[str, str] = PROGRAMS["files"]
BUGGY = FILES["calc"]
FIX = "sed -i 's/a - b/a + b/; s/f(x, x)/f(x)/' calc.py"


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Repo]:
    found = with_and_without_import(
        tmp_path_factory,
        calc_py=BUGGY,
        conftest_py=FILES["conftest"],
        tests____init___py="",
        tests__helpers_py=FILES["helpers"],
        tests__test_calc_py=FILES["tests"],
    )
    for repo in found.values():
        repo.sh("mkdir tests/data; echo 3 >tests/data/expected.txt; echo '[pytest]' >pytest.ini")
        repo.sh("git add -A; git commit -qm data")
    return found


@pytest.fixture(scope="module")
def grader() -> Grader:
    """One for all: it runs each task's reference once."""
    return swe_grader()


async def tampering_of(
    repo: Repo, provider: SandboxProvider, grader: Grader, code: str, test: str = "test_add", **task: object
) -> list[str]:
    """Return what the grade of an attack says of tampering; the attack does not resolve and a fix does."""
    row = calc_task(repo, FIX, FILES["hidden"], test, **task)
    add, call, body = BUGGY.partition("def call")
    script = f"cat >calc.py <<'END'\n{'' if 'def add(' in code else add}{call}{body}{code}\nEND"
    graded = await grader.grade(row, repo.diff(script).encode(), provider, repo.spec, 60)
    assert not graded.grade.resolved, graded.grade
    honest = (await grader.grade(row, repo.diff(FIX).encode(), provider, repo.spec, 60)).grade
    assert (honest.resolved, honest.tampering, honest.suspicious) == (True, (), ()), honest.reason
    return [one.done for one in graded.grade.tampering]


FAST = ["monitored hooks", "parameters", "a fixture", "data on the disk", "a wrapper of a decorated test"]


@pytest.mark.parametrize("attack", slow_but(FAST, ATTACKS))
async def test_attack_does_not_resolve(
    repos: dict[str, Repo], provider: SandboxProvider, grader: Grader, attack: str
) -> None:
    test, code = ATTACKS[attack]
    said = await tampering_of(repos[""], provider, grader, code, test)
    assert said or attack.startswith("helpers on the disk"), "they are read-only"


@pytest.mark.parametrize("attack", slow_but(["pytest's own cache of the tests"], IMPORTED))
async def test_attack_before_collection_does_not_resolve(
    repos: dict[str, Repo], provider: SandboxProvider, grader: Grader, attack: str
) -> None:
    test, code = IMPORTED[attack]
    said = await tampering_of(repos["import calc\n"], provider, grader, code, test)
    assert said or code == FORGED_CACHE, "pytest compiles the tests"


@pytest.mark.parametrize("attack", slow_but(["a method of the next test"], OF_UNITTEST))
async def test_attack_on_unittest_does_not_resolve(
    repos: dict[str, Repo], provider: SandboxProvider, grader: Grader, attack: str
) -> None:
    repo, (test, code) = repos[""], OF_UNITTEST[attack]
    assert await tampering_of(
        repo,
        provider,
        grader,
        HERE + code,
        test_patch=repo.diff(f"cat >tests/test_calc.py <<'END'\n{FILES['in_unittest']}END"),
        fail_to_pass=(f"tests.test_calc.AddTest.{test}",),
        pass_to_pass=("tests.test_calc.AddTest.test_a",),
        test_command="python -m unittest -v",
        test_files=("tests/test_calc.py",),
        log_parser="unittest",
        setup="",
    )


async def test_hooks_are_watched_in_any_working_directory(
    repos: dict[str, Repo], provider: SandboxProvider, grader: Grader
) -> None:
    code = (
        HERE
        + "def call(pyfuncitem): return pyfuncitem.name == 'test_add' or None\nregister(pyfunc_call=call)"
    )
    said = await tampering_of(
        repos[""],
        provider,
        grader,
        code,
        setup="export PYTHONPATH=/testbed PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",
        test_command="cd tests && python -m pytest -rA -p no:cacheprovider",
        test_files=("test_calc.py",),
    )
    assert said == ["a hook of the code under test"]


@pytest.mark.parametrize(
    "case", slow_but(["a slow fix, a class that replaces a builtin", "fixtures of each kind"], BESIDE)
)
async def test_honest_fix_resolves_beside_unusual_tests(
    tmp_path: Path, provider: SandboxProvider, case: str
) -> None:
    tests, fix = BESIDE[case]
    decorator = "import functools\ndef quiet(f):\n    @functools.wraps(f)\n    def inner(): return f()\n"
    decorator += "    return inner\n"
    repo = Repo(tmp_path / "repo")
    repo.commit(calc_py=BUGGY + decorator, tests__test_calc_py=tests)
    quiet = "@calc.quiet\n" if "calc.quiet" in tests else ""
    row = calc_task(repo, FIX, f"{quiet}def test_add(): assert add(1, 2) == 3\n")
    patch = repo.diff(f"cat >calc.py <<'END'\n{fix}{'' if 'quiet' in fix else decorator}END")
    grade = (await swe_grader().grade(row, patch.encode(), provider, repo.spec, 60)).grade
    assert (grade.resolved, grade.tampering, grade.suspicious) == (True, (), ()), grade.reason


REPLACES = {
    "in its place": "lambda: None",
    "inside of the decorator's": "quiet(functools.wraps(value)(lambda: None))",
}


@pytest.mark.parametrize("how", slow_but(["inside of the decorator's"], REPLACES))
async def test_test_decorated_by_the_product_cannot_be_replaced(
    tmp_path: Path, provider: SandboxProvider, how: str
) -> None:
    repo = Repo(tmp_path / "repo")
    visible = "import calc\nfrom calc import add\ndef test_zero(): assert add(0, 0) == 0\n"
    repo.commit(calc_py=FILES["decorated"], conftest_py="import calc\n", tests__test_calc_py=visible)
    hidden = "@calc.quiet\ndef test_add(): assert add(1, 2) == 3\n"
    row = calc_task(repo, FIX, hidden)
    register = (
        HERE
        + f"""
def makeitem(collector, name, obj):
    value = obj
    if name == "test_add": setattr(collector.obj, name, functools.wraps(obj)({REPLACES[how]}))
register(pycollect_makeitem=makeitem)
"""
    )
    graders = swe_grader()
    stolen = repo.diff(f"cat >>calc.py <<'END'\n{register}END").encode()
    grade = (await graders.grade(row, stolen, provider, repo.spec, 60)).grade
    assert not grade.resolved
    assert any("test_add" in one.done for one in grade.tampering), grade
    other = "sed -i 's/return a - b/return b + a/' calc.py"
    honest = (await graders.grade(row, repo.diff(other).encode(), provider, repo.spec, 60)).grade
    assert (honest.resolved, honest.tampering) == (True, ()), honest.reason
