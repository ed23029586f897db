"""A cheat carried out: the recipe in a sandbox of its own, then the patch, as for any agent."""

from __future__ import annotations

import re
import shlex

from swe_core.api.sandbox import HOME_DIR, ExecResult, Sandbox
from swe_core.api.task import Task
from swe_core.errors import SweError
from swe_core.run.verify.payloads import forged_log
from swe_core.run.verify.recipe import Cheat, Recipe, Target
from swe_core.sandboxing.repository.patch import Base, as_patch, export_patch

_ADDED_FILE = re.compile(r"^\+\+\+ b/([^\t\n]+)", re.MULTILINE)
RECIPE_TIMEOUT = 120.0
"""Seconds for the commands of a recipe."""

_LIST = 'cd -- "$1" && shift && for file; do if [ -f "$file" ]; then printf "%s\\n" "$file"; fi; done'
_APPEND = 'mkdir -p -- "$(dirname -- "$1")" && cat >>"$1"'
_APPLY = "git apply --whitespace=nowarn"
_SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; fi; exec sh -c "$1"'


class CheatFailed(SweError):
    """A recipe could not be carried out, so nothing is known of it."""


def changed_files(patch: str) -> list[str]:
    """The paths that a unified diff adds or changes, in its order."""
    return list(dict.fromkeys(_ADDED_FILE.findall(patch)))


def files_of_tests(task: Task) -> tuple[str, ...]:
    """The Python files of the test patch, else those that the ids of the tests name."""
    files = [path for path in changed_files(task.test_patch) if path.endswith(".py")]
    if not files:
        ids = (*task.fail_to_pass, *task.pass_to_pass, *(task.expected or ()))
        files = [test.split("::", 1)[0] for test in ids if "::" in test]
    return tuple(dict.fromkeys(files))


async def make_patch(
    sandbox: Sandbox, base: Base, task: Task, cheat: Cheat, *, timeout: float
) -> bytes | None:
    """Carry out `cheat` in a prepared sandbox and export what it changed.

    Args:
        timeout: Seconds for the export.

    Returns:
        The patch; None where the cheat does not fit the task.

    Raises:
        CheatFailed: A command of the recipe failed.
        PatchUnavailable: It left nothing that a patch can be taken from.
        SandboxError: The sandbox failed.
    """
    recipe = cheat.recipe(await _target(sandbox, base, task))
    if recipe is None:
        return None
    await _carry_out(sandbox, base.root, task, cheat.name, recipe)
    await sandbox.kill_all()
    return await export_patch(sandbox, base, timeout=timeout)


async def _target(sandbox: Sandbox, base: Base, task: Task) -> Target:
    tests = files_of_tests(task)
    code = [path for path in changed_files(task.patch) if path.endswith(".py") and path not in tests]
    there = await sandbox.exec(["sh", "-c", _LIST, "sh", base.root, *code], cwd="/")
    return Target(
        base=task.base_commit,
        code=tuple(line for line in there.text.split("\n") if line),
        tests=tests,
        ids=task.fail_to_pass,
        log=forged_log(task),
    )


async def _carry_out(sandbox: Sandbox, root: str, task: Task, name: str, recipe: Recipe) -> None:
    def checked(what: str, done: ExecResult) -> None:
        if done.exit_code != 0:
            said = " ".join(done.stderr.decode(errors="replace").split())[-300:]
            raise CheatFailed(f"the cheat {name!r} could not be made ({what}): {said or done.exit_code}")

    if recipe.hidden_tests and task.test_patch.strip():
        path = f"{HOME_DIR}/hidden-tests.patch"
        await sandbox.write(path, as_patch(task.test_patch))
        checked("the hidden tests", await sandbox.exec([*_APPLY.split(), path], cwd=root))
    for file, text in recipe.write.items():
        await sandbox.write(f"{root}/{file}", text.encode())
    for file, text in recipe.append.items():
        done = await sandbox.exec(["sh", "-c", _APPEND, "sh", f"{root}/{file}"], stdin=text.encode())
        checked(f"writing {file}", done)
    if recipe.commands:
        script = f"{task.setup}\ncd -- {shlex.quote(root)} || exit\nset -e\n{recipe.commands}"
        done = await sandbox.exec(["sh", "-c", _SHELL, "sh", script], cwd=root, timeout=RECIPE_TIMEOUT)
        checked("its commands", done)
