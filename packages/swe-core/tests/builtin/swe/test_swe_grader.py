"""The grader "swe": verdicts from real test runs in real, fresh sandboxes."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import anyio
import pytest

from swe_core.api.grader import Graded, Suspicion
from swe_core.api.sandbox import Asset, Sandbox, SandboxProvider, SandboxSpec
from swe_core.builtin.swe import grader
from swe_core.builtin.swe.run_tests import HeadAndTail, run_tests
from swe_core.errors import GraderError, SandboxBroken, SandboxDied, SandboxError, SandboxTimeout
from swe_testing.waiting import until

from ...repositories import Repo, slow_but, swe_grader
from .helpers import BUGGY, FIX, PYTEST, calc_task

OLD_TEST = "from calc import add\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
NEW_TEST = "\ndef test_add():\n    assert add(1, 2) == 3\n"


class Graders:
    """A task of a repository of its own, and how to grade scripts that change it."""

    def __init__(self, repo: Repo, provider: SandboxProvider) -> None:
        self.repo = repo
        self.provider = provider
        repo.commit(calc_py=BUGGY, tests__test_calc_py=OLD_TEST, conftest_py="")
        self.task = calc_task(repo, FIX, NEW_TEST)

    async def grade(
        self, given: str | bytes, *, timeout: float = 120, settings: Any = (), **changed: Any
    ) -> Graded:
        task = self.task.model_copy(update=changed)
        data = given.encode() if isinstance(given, str) else given
        grader = swe_grader(**dict(settings))
        return await grader.grade(task, data, self.provider, self.repo.spec, timeout)

    async def grade_script(self, script: str, **changed: Any) -> Graded:
        """Grade what an agent that ran `script` would have changed."""
        return await self.grade(await self.repo.patch_by(script, self.provider), **changed)


@pytest.fixture
def calc(repo: Repo, provider: SandboxProvider) -> Graders:
    return Graders(repo, provider)


async def test_gold_patch_resolves(calc: Graders) -> None:
    """After the task's lines for the shell; errors are in the log where they were printed."""
    graded = await calc.grade(
        calc.task.patch,
        setup="set -o pipefail\nexport PYTEST_DISABLE_PLUGIN_AUTOLOAD=1\nexport GREETING=hello  # bash",
        test_command=f"echo out $GREETING; echo err >&2; echo again; {PYTEST}",
    )
    assert (graded.grade.resolved, graded.grade.reward, graded.grade.reason) == (True, 1.0, "")
    assert graded.grade.fail_to_pass == {"tests/test_calc.py::test_add": "PASSED"}
    assert graded.grade.pass_to_pass == {"tests/test_calc.py::test_zero": "PASSED"}
    assert graded.grade.test_exit_code == 0
    assert graded.grade.test_seconds > 0
    assert graded.log.startswith(b"out hello\nerr\nagain\n")
    assert b"2 passed" in graded.log


async def test_empty_patch_is_graded_without_a_test_run(calc: Graders) -> None:
    graded = await calc.grade(b"\n")
    assert (graded.grade.reward, graded.log) == (0.0, b"")
    assert graded.grade.reason == "the patch is empty: the agent changed nothing"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def add(a, b): return a - b # nothing",
         "1 of 1 FAIL_TO_PASS tests do not pass: 'tests/test_calc.py::test_add' FAILED"),
        ("def add(a, b): return 3",
         "1 of 1 PASS_TO_PASS tests no longer pass: 'tests/test_calc.py::test_zero' FAILED"),
        pytest.param("def", "'tests/test_calc.py::test_add' MISSING", marks=pytest.mark.slow),
        ("import os; os._exit(0)", "gave no results with this patch (exit code 0)"),
    ],
)  # fmt: skip
@pytest.mark.slow
async def test_breaking_patch_is_unresolved(calc: Graders, code: str, reason: str) -> None:
    graded = await calc.grade_script(f"echo '{code}' >calc.py")
    assert not graded.grade.resolved
    assert reason in graded.grade.reason


class Counting:
    """A provider that counts what it opens."""

    def __init__(self, inner: SandboxProvider) -> None:
        self.inner, self.opened = inner, 0

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        self.opened += 1
        return self.inner.open(spec)


@pytest.mark.parametrize("first", slow_but(["gold"], ["gold", "other"]))
@pytest.mark.slow
async def test_reference_runs_once_per_task(calc: Graders, first: str) -> None:
    """The project replaces a builtin; a graded gold patch is the reference too."""
    conftest = "import builtins\nbuiltins.hash = lambda value: 1\n"
    calc.repo.commit(conftest_py=conftest)
    task = calc.task.model_copy(update={"base_commit": calc.repo.head})
    other = calc.repo.diff(f"{FIX}; echo '# other' >>calc.py")
    grader, provider = swe_grader(), Counting(calc.provider)
    opened = []
    for patch in (task.patch if first == "gold" else other, other):
        graded = await grader.grade(
            task, patch.encode(), cast(SandboxProvider, provider), calc.repo.spec, 120
        )
        assert graded.grade.resolved, graded.grade.reason
        opened.append(provider.opened)
    assert opened == ([1, 2] if first == "gold" else [2, 3])


@pytest.mark.parametrize("setting", slow_but(["unresolved"], ["mark", "unresolved"]))
@pytest.mark.slow
async def test_fix_with_suspicious_code_follows_the_setting(calc: Graders, setting: str) -> None:
    fix = await calc.repo.patch_by(f"{FIX}; echo 'import gc' >>calc.py", calc.provider)
    grade = (await calc.grade(fix, settings={"suspicious": setting})).grade
    assert grade.suspicious == (
        Suspicion(kind="all objects of the interpreter", name="import gc", path="calc.py", line=3),
    )
    assert grade.resolved is (setting == "mark")
    wanted = "the patch adds import gc (all objects of the interpreter) at line 3 of calc.py"
    assert grade.reason.startswith(wanted) is (setting == "unresolved")
    assert grade.fail_to_pass == {"tests/test_calc.py::test_add": "PASSED"}


async def test_inapplicable_patch_is_unresolved(calc: Graders) -> None:
    graded = await calc.grade("not a patch\n")
    assert not graded.grade.resolved
    assert graded.grade.reason.startswith("the patch does not apply to the task's base: ")
    assert graded.grade.test_exit_code is None


TAMPERING = {
    "changed": "echo 'def test_add(): pass' >tests/test_calc.py",
    "directory became a link": "mv tests elsewhere; ln -s elsewhere tests",
    "file became a directory": "cd tests; rm test_calc.py; mkdir test_calc.py; echo x >test_calc.py/x",
    "committed": "echo 'def test_add(): pass' >tests/test_calc.py; git add -A; "
    "git -c user.name=n -c user.email=e commit -qm hidden",
    "tests of its own": "echo 'def test_new(): assert 0' >tests/test_new.py; echo 'x = 1' >test_utils.py; "
    "printf 'import pytest\\n@pytest.fixture\\ndef two(): return 2\\n' >tests/conftest.py",
}


@pytest.mark.parametrize("how", slow_but(["changed"], TAMPERING))
@pytest.mark.slow
async def test_test_files_of_the_task_replace_those_of_the_patch(calc: Graders, how: str) -> None:
    graded = await calc.grade_script(TAMPERING[how])
    assert not graded.grade.resolved
    assert graded.grade.test_exit_code is None or (
        graded.grade.fail_to_pass == {"tests/test_calc.py::test_add": "FAILED"}
    )
    honest = await calc.grade_script(f"{FIX}; {TAMPERING[how]}")
    assert honest.grade.resolved, honest.grade.reason
    assert honest.grade.suspicious == ()


async def test_test_patch_may_add_delete_and_carry_data(calc: Graders) -> None:
    script = (
        "git rm -q tests/test_calc.py; mkdir -p 'tests/new dir'; echo '{}' >tests/data.json; "
        "echo 'from calc import add' >'tests/new dir/test_new.py'; "
        "echo 'def test_new(): assert add(1, 2) == 3' >>'tests/new dir/test_new.py'; touch tests/__init__.py"
    )
    changed = {
        "test_patch": calc.repo.diff(script),
        "fail_to_pass": ("tests/new dir/test_new.py::test_new",),
        "pass_to_pass": (),
    }
    graded = await calc.grade(calc.task.patch, **changed)
    assert graded.grade.resolved, graded.grade.reason
    assert b"1 passed" in graded.log


@pytest.mark.slow
async def test_skipped_and_expected_failures_count_as_passing(calc: Graders) -> None:
    marks = (
        "import pytest\n@pytest.mark.xfail\ndef test_xfail(): assert 0\n"
        "@pytest.mark.skip\ndef test_skip(): pass\n"
    )
    changed: dict[str, Any] = {
        "test_patch": calc.repo.diff(f"cat >>tests/test_calc.py <<'END'\n{NEW_TEST}{marks}END"),
        "fail_to_pass": ("tests/test_calc.py::test_xfail",),
        "pass_to_pass": ("tests/test_calc.py::test_skip",),
        "test_command": f"{PYTEST} -v",
    }
    assert (await calc.grade(calc.task.patch, **changed)).grade.resolved
    changed["fail_to_pass"] = ("tests/test_calc.py::test_skip", "tests/test_calc.py::test_gone")
    reason = (await calc.grade(calc.task.patch, **changed)).grade.reason
    assert "'tests/test_calc.py::test_skip' SKIPPED" in reason
    assert "'tests/test_calc.py::test_gone' MISSING" in reason


# When there is nothing to decide from


BROKEN_TASKS = {
    "no such command": ({"test_command": "no-such-runner -rA"},
     "'no-such-runner -rA' printed no pytest results .exit code 127.*not found"),
    "test patch": ({"test_patch": "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-x\n+y\n"},
     "the test patch of the task 't-1' does not apply"),
    "gold patch": ({"test_command": "true", "patch": "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-x\n+y\n"},
     "with its own gold patch, the patch does not apply"),
}  # fmt: skip


@pytest.mark.parametrize("what", slow_but(["no such command", "test patch"], BROKEN_TASKS))
async def test_broken_task_is_an_error(calc: Graders, what: str) -> None:
    changed, sentence = BROKEN_TASKS[what]
    with pytest.raises(GraderError, match=sentence):
        await calc.grade_script("echo '#' >>calc.py", **changed)


async def test_grader_rejects_a_spec_not_for_grading_and_no_repository(calc: Graders) -> None:
    for changed in ({"network": "llm"}, {"assets": (Asset(name="a", path="/a", digest="1"),)}):
        spec = calc.repo.spec.model_copy(update=changed)
        with pytest.raises(
            GraderError, match=r"no network and no assets: open it from SandboxSpec\.for_grad"
        ):
            await swe_grader().grade(calc.task, b"", calc.provider, spec, 1)
        assert spec.for_grading() == calc.repo.spec
    calc.repo.sh("rm -rf .git")
    with pytest.raises(SandboxError, match="not the top of a git work tree"):
        await calc.grade(calc.task.patch)


@pytest.mark.slow
async def test_hanging_tests_are_unresolved(calc: Graders) -> None:
    graded = await calc.grade_script(
        "echo 'import time; time.sleep(600)' >calc.py", timeout=8, test_command=f"echo started; {PYTEST}"
    )
    assert not graded.grade.resolved
    assert graded.grade.reason == "the tests did not end within 8 s and were killed"
    assert graded.grade.test_exit_code is None
    assert graded.log.startswith(b"started\n")


BROKEN, SILENT, DIED = SandboxBroken("it was killed"), SandboxTimeout("no answer"), SandboxDied("it is gone")
FAULTS: dict[str, tuple[list[Exception | None], Any]] = {
    "inside": ([BROKEN], "the patch broke its grading sandbox: it was killed"),
    "silent": ([SILENT], "the patch broke its grading sandbox: no answer"),
    "unreadable": ([RecursionError()], "the patch broke its grading sandbox: RecursionError"),
    "twice": ([DIED, DIED], "the patch broke its grading sandbox: it is gone"),
    "once": ([DIED], None),
    "this host": ([OSError("no space"), OSError("no space"), OSError("no space")], OSError),
    "the reference too": ([BROKEN, SandboxError("another")], SandboxBroken),
    "the reference as well": ([DIED, DIED, DIED], SandboxDied),
    "no results of the reference": ([BROKEN, GraderError("a"), GraderError("b")], SandboxBroken),
}
"""What the runs of the tests raise, one after the other; and the reason of the grade, or the error."""


@pytest.mark.parametrize("what", slow_but(["inside", "twice", "once", "the reference too"], FAULTS))
async def test_failing_sandbox_is_the_fault_of_the_patch_where_the_reference_can_be_graded(
    calc: Graders, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    faults, ends = FAULTS[what]
    left = iter(faults)

    async def run(*given: Any, **more: Any) -> Any:
        if (error := next(left, None)) is not None:
            raise error
        return await run_tests(*given, **more)

    monkeypatch.setattr(grader, "run_tests", run)
    script = "sed -i 's/a - b/b + a/' calc.py"
    if isinstance(ends, type):
        with pytest.raises(ends):
            await calc.grade_script(script)
        return
    grade = (await calc.grade_script(script)).grade
    assert (grade.resolved, grade.reason) == (ends is None, ends or "")


async def test_sandbox_that_does_not_open_is_an_error_whatever_the_patch(calc: Graders) -> None:
    patch = await calc.repo.patch_by(FIX, calc.provider)
    for error in (SandboxError("nobody answers"), BROKEN):
        calc.provider = cast(SandboxProvider, Mock(open=Mock(side_effect=error)))
        with pytest.raises(type(error)):
            await calc.grade(patch)


async def test_sandbox_death_during_the_tests_is_an_error(calc: Graders) -> None:
    died: list[SandboxDied] = []

    async def grade() -> None:
        with pytest.raises(SandboxDied) as caught:
            await calc.grade(calc.task.patch, test_command="sleep 600 #")
        died.append(caught.value)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            group.start_soon(grade)
            await until(lambda: _descendants(b"sleep\x00600"))
            for pid in _descendants(b"supervisor.py"):
                with suppress(ProcessLookupError):  # killing the outer one ends the inner ones
                    os.kill(pid, signal.SIGKILL)
    assert died


def _descendants(command: bytes) -> list[int]:
    """Processes of this machine below this one that run `command`."""
    todo, found = [os.getpid()], []
    while todo:
        with suppress(OSError):  # one ended meanwhile
            for children in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
                for pid in map(int, children.read_text().split()):
                    todo.append(pid)
                    if command in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
    return found


@pytest.mark.slow
async def test_long_log_keeps_head_and_tail(calc: Graders) -> None:
    graded = await calc.grade(
        calc.task.patch,
        test_command=f"echo first; yes 'filling line' | head -c 30000000; printf '\\377\\n'; {PYTEST}",
        settings={"log_mb": 1},
    )
    assert graded.grade.resolved
    assert len(graded.log) < 1024 * 1024 + 100
    assert graded.log.startswith(b"first\n")
    assert b" bytes left out ...]" in graded.log


def test_head_and_tail_drops_the_middle() -> None:
    data = bytes(range(256)) * 40
    note = f"\n[... {len(data) - 400} bytes left out ...]\n".encode()
    for size in (1, 7, 4096):
        kept = HeadAndTail(400)
        for start in range(0, len(data), size):
            kept.add(data[start : start + size])
        assert kept.value() == data[:100] + note + data[-300:]
    short = HeadAndTail(400)
    short.add(data[:400])
    assert short.value() == data[:400]
