"""Code under test that is root in its container, and breaks there what the grader uses afterwards."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_core.builtin.swe import SweGraderConfig, grader, swe_graders
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.records import make_task

pytestmark = pytest.mark.docker

BREAKS = {
    "git": r'it=$(command -v git); rm "$it"; printf "#!/bin/sh\nexec sleep 1000\n" >"$it"; chmod 755 "$it"',
    "the shell": r'mv /bin/sh /bin/kept; printf "#!/nowhere\n" >/bin/sh; chmod 755 /bin/sh',
    "a file of the tests": "echo y >tests/test_it.py || mv tests/test_it.py x || mv tests gone || :",
}
RESULT = "printf '%s\\n' '=== short test summary info ===' '{} t'"


@pytest.mark.parametrize(
    ("broken", "status"),
    [("the shell", "PASSED"), ("git", "PASSED"), ("a file of the tests", "PASSED"), ("the shell", "FAILED")],
)
@pytest.mark.slow
async def test_failure_is_caused_by_the_patch(
    provider: DockerProvider,
    docker_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    status: str,
) -> None:
    monkeypatch.setattr(grader, "HASH_TIMEOUT", 3.0)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("x\n")
    commit = "git init -q; git add -A; git -c user.name=a -c user.email=a@b commit -qm x; git rev-parse HEAD"
    made = await anyio.run_process(["sh", "-euc", commit], cwd=tmp_path)
    task = make_task(
        base_commit=made.stdout.decode().strip(),
        patch=f"--- /dev/null\n+++ b/run.sh\n@@ -0,0 +1 @@\n+{RESULT.format('PASSED')}\n",
        test_command=". ./run.sh; : tests/test_it.py",
        test_files=("tests/test_it.py",),
    )
    does = f"{RESULT.format(status)}; {BREAKS[broken]}"
    patch = f"--- /dev/null\n+++ b/run.sh\n@@ -0,0 +1 @@\n+{does}\n"
    spec = SandboxSpec(image=docker_image, repository=tmp_path, network="none", memory_mb=512)
    swe = next(iter(swe_graders())).create(SweGraderConfig())
    graded = await swe.grade(task, patch.encode(), provider, spec, 60)
    assert graded.grade.resolved is (broken == "a file of the tests" and status == "PASSED"), graded.grade
    if status == "PASSED" and not graded.grade.resolved:
        assert graded.grade.reason == "the files of the tests cannot be read again"
    assert (tmp_path / "tests" / "test_it.py").read_text() == "x\n"
