"""Grader: resolved if a shell command succeeds in the patched repository.

It suits tasks without tests, such as "make the type checker pass". Unlike the grader `swe` it protects
nothing: a patch can change what the command reads. Do not train on its rewards.

swe-core run -p examples/grader/swe_grader_command.py --set 'grader.command.command=make check'
"""

from __future__ import annotations

from pydantic import Field

from swe_core import Component, Config, Grade, Graded, Grader, SandboxProvider, SandboxSpec, Task, hookimpl
from swe_core.errors import SandboxTimeout


class CommandConfig(Config):
    command: str = Field(min_length=1, description="shell command, run in the repository after the patch")


class CommandGrader:
    def __init__(self, config: CommandConfig) -> None:
        self.command = config.command

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        if not patch:
            return Graded(grade=Grade(resolved=False, reason="the patch is empty"))
        async with provider.open(spec) as sandbox:
            applied = await sandbox.exec(["git", "apply", "-"], stdin=patch, timeout=timeout)
            if applied.exit_code != 0:
                return Graded(
                    grade=Grade(resolved=False, reason="the patch does not apply"), log=applied.stderr
                )
            try:
                done = await sandbox.exec(["sh", "-c", self.command], timeout=timeout)
            except SandboxTimeout as error:
                return Graded(grade=Grade(resolved=False, reason=str(error)))
        resolved = done.exit_code == 0
        reason = "" if resolved else f"the command exited with {done.exit_code}"
        return Graded(
            grade=Grade(resolved=resolved, reason=reason, test_exit_code=done.exit_code),
            log=done.stdout + done.stderr,
        )


@hookimpl
def swe_graders() -> list[Component[Grader]]:
    return [Component("command", CommandGrader, CommandConfig, "whether a shell command succeeds")]
