"""Incomplete images and odd test commands give an error or a correct verdict."""

from __future__ import annotations

from typing import cast

import pytest

from swe_core.api.grader import Graded
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_testing.records import make_task

from ...repositories import Repo, slow_but, swe_grader

pytestmark = pytest.mark.anyio

TEST = "from calc import add\n\ndef test_add(): assert add(1, 2) == 3\n"
PYTEST = "python -m pytest -rA -p no:cacheprovider"


@pytest.fixture
def task(repo: Repo) -> Task:
    repo.commit(calc_py="def add(a, b):\n    return a - b\n", tests__test_calc_py="")
    return make_task(
        base_commit=repo.head,
        patch=repo.diff("sed -i 's/a - b/a + b/' calc.py"),
        test_patch=repo.diff(f"cat >tests/test_calc.py <<'END'\n{TEST}END"),
        fail_to_pass=("tests/test_calc.py::test_add",),
        setup="export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",
        test_command=PYTEST,
    )


async def grade(
    task: Task, provider: object, spec: SandboxSpec, patch: str = "", timeout: float = 120
) -> Graded:
    given = (patch or task.patch).encode()
    return await swe_grader(log_mb=1).grade(task, given, cast(SandboxProvider, provider), spec, timeout)


LINE = "0" * 32 + " 0 0 s" + " 00" * 300
HONEST = {
    "30 MB on the reporter's stream": f"head -c 30000000 /dev/zero >&9; {PYTEST}",
    "30 MB of lines on the reporter's stream": f"yes '{LINE}' | head -c 30000000 >&9; {PYTEST}",
    "30 MB in the log": f"head -c 30000000 /dev/zero; {PYTEST}",
    "no valid UTF-8": f"printf '\\377\\376\\300\\n'; printf '\\377\\376\\300\\n' >&9; {PYTEST}",
    "a log that is cut where the results are": (
        f"yes | head -c 400000; {PYTEST}; code=$?; yes | head -c 2000000; (exit $code)"
    ),
}


@pytest.mark.parametrize("what", slow_but(["no valid UTF-8"], HONEST))
@pytest.mark.slow
async def test_output_of_the_test_command_decides_nothing(
    task: Task, repo: Repo, provider: SandboxProvider, what: str
) -> None:
    """The command names its files itself."""
    command = HONEST[what].replace(PYTEST, f"{PYTEST} tests/test_calc.py") + "; (exit $?) #"
    task = task.model_copy(update={"test_command": command})
    right = await grade(task, provider, repo.spec)
    assert right.grade.resolved, right.grade.reason
    assert right.grade.channel == "reporter"
    assert len(right.log) < 1024 * 1024 + 100
    wrong = await grade(task, provider, repo.spec, repo.diff("echo '# nothing' >>calc.py"))
    assert wrong.grade.fail_to_pass == {"tests/test_calc.py::test_add": "FAILED"}
