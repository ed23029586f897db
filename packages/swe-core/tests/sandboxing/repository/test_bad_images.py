"""Incomplete images and odd test commands give an error or a correct verdict."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import cast

import pytest

from swe_core.api.grader import Graded
from swe_core.api.sandbox import ASSETS_DIR, Asset, Sandbox, SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.errors import GraderError, SandboxError, SweError
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


class Lacking:
    """A provider of sandboxes whose PATH has all of /usr/bin but one program."""

    def __init__(self, program: str, inner: SandboxProvider, programs: Path) -> None:
        self._inner, self._programs = inner, programs
        programs.mkdir()
        for name in os.listdir("/usr/bin"):
            if name != program:
                (programs / name).symlink_to(f"/usr/bin/{name}")

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        asset = Asset(name="programs", path=self._programs, digest="0")
        env = {"PATH": f"{ASSETS_DIR}/programs"}
        return self._inner.open(spec.model_copy(update={"assets": (asset,), "env": env}))


async def test_image_without_repository_is_an_error(task: Task, provider: SandboxProvider) -> None:
    with pytest.raises(SandboxError, match=r"'/testbed'.*not the top of a git work tree"):
        await grade(task, provider, SandboxSpec(network="none"))


async def test_image_without_git_is_an_error(
    task: Task, repo: Repo, provider: SandboxProvider, tmp_path: Path
) -> None:
    with pytest.raises(SweError, match="git"):
        await grade(task, Lacking("git", provider, tmp_path / "programs"), repo.spec)


async def test_image_without_test_runner_is_an_error(
    task: Task, repo: Repo, provider: SandboxProvider, tmp_path: Path
) -> None:
    """For any patch."""
    task = task.model_copy(update={"test_command": "pytest -rA"})
    lacking = Lacking("pytest", provider, tmp_path / "programs")
    for patch in ("", "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1,2 @@\n+# more\n def add(a, b):\n"):
        with pytest.raises(
            GraderError, match=r"'pytest -rA' printed no pytest results .exit code 127.*pytest.*not found"
        ):
            await grade(task, lacking, repo.spec, patch)


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


@pytest.mark.slow
async def test_truncated_log_without_reporter_is_an_error(
    task: Task, repo: Repo, provider: SandboxProvider
) -> None:
    """The end of the tests is unknown."""
    command = f"yes | head -c 400000; PYTEST_ADDOPTS= {PYTEST} tests/test_calc.py; yes | head -c 2000000 #"
    with pytest.raises(GraderError, match="printed no pytest results"):
        await grade(task.model_copy(update={"test_command": command}), provider, repo.spec)


HANGS = {"at once": "", "after 30 MB": "head -c 30000000 /dev/zero; ", "without a log": "exec >/dev/null; "}


@pytest.mark.parametrize("how", slow_but(["at once"], HANGS))
async def test_hanging_command_is_unresolved(
    task: Task, repo: Repo, provider: SandboxProvider, how: str
) -> None:
    task = task.model_copy(update={"test_command": f"{HANGS[how]}sleep 600 #"})
    graded = await grade(task, provider, repo.spec, timeout=2)
    assert graded.grade.reason == "the tests did not end within 2 s and were killed"


async def test_silent_command_is_an_error(task: Task, repo: Repo, provider: SandboxProvider) -> None:
    with pytest.raises(GraderError, match=r"'true' printed no pytest results .exit code 0.: nothing printed"):
        await grade(task.model_copy(update={"test_command": "true"}), provider, repo.spec)
