"""Incomplete images and odd test commands give an error or a correct verdict."""

from __future__ import annotations

import pytest

from swe_core.api.sandbox import SandboxProvider
from swe_testing.records import make_task

from ...repositories import Repo, slow_but, swe_grader

TEST = "from calc import add\n\ndef test_add(): assert add(1, 2) == 3\n"
PYTEST = "python -m pytest -rA -p no:cacheprovider"


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
    repo: Repo, provider: SandboxProvider, what: str
) -> None:
    """The command names its files itself."""
    repo.commit(calc_py="def add(a, b):\n    return a - b\n", tests__test_calc_py="")
    task = make_task(
        base_commit=repo.head,
        patch=repo.diff("sed -i 's/a - b/a + b/' calc.py"),
        test_patch=repo.diff(f"cat >tests/test_calc.py <<'END'\n{TEST}END"),
        fail_to_pass=("tests/test_calc.py::test_add",),
        setup="export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",
        test_command=HONEST[what].replace(PYTEST, f"{PYTEST} tests/test_calc.py") + "; (exit $?) #",
    )
    grade = swe_grader(log_mb=1).grade
    right = await grade(task, task.patch.encode(), provider, repo.spec, 120)
    assert right.grade.resolved, right.grade.reason
    assert right.grade.channel == "reporter"
    assert len(right.log) < 1024 * 1024 + 100
    nothing = repo.diff("echo '# nothing' >>calc.py").encode()
    wrong = await grade(task, nothing, provider, repo.spec, 120)
    assert wrong.grade.fail_to_pass == {"tests/test_calc.py::test_add": "FAILED"}
