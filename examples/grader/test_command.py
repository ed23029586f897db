"""The grader on a task of the demo, in real sandboxes."""

from __future__ import annotations

import pytest

from swe_core import SandboxSpec
from swe_grader_command import CommandConfig, CommandGrader
from swe_testing.agents import builtin


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("patch", "command", "reason"),
    [
        ("gold", "! git diff --quiet", ""),
        ("gold", "exit 3", "the command exited with 3"),
        ("gold", "sleep 1000", "did not end within 0.5 s"),
        ("", "true", "the patch is empty"),
        ("nonsense", "true", "the patch does not apply"),
    ],
)
async def test_command_decides_on_the_patched_repository(patch: str, command: str, reason: str) -> None:
    task = next(iter(builtin("tasks", "demo").tasks()))
    spec = SandboxSpec(repository=task.repository, workdir=task.workdir).for_grading()
    content = (task.patch if patch == "gold" else patch).encode()
    provider, timeout = builtin("sandbox", "local", unisolated=True), 0.5 if "sleep" in command else 60.0
    grader = CommandGrader(CommandConfig(command=command))
    grade = (await grader.grade(task, content, provider, spec, timeout)).grade
    assert grade.resolved is not bool(reason)
    assert reason in grade.reason
