"""What a task's set-up lines export, for its agent: the agent's shell is that of the tests.

The project of a published image lives in an environment that set-up lines activate before the tests (conda's
`testbed`, a `.venv`, variables of the row). The agent gets the variables, and nothing else: the lines run in
a sandbox of their own, since they may install something or put hidden tests back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from swe_core.api.limits import Limits
from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.errors import SandboxError, SandboxTimeout, raised_as

MAX_ENVIRONMENT = 1024 * 1024
"""Most bytes of an environment; Linux starts no program with more than a few of these."""

# bash where there is one, as for the tests. `env` writes before and after the lines to a descriptor of its
# own, since the lines may print.
_READ = r"""
exec 9>&1 1>&2
{ locale -a 2>/dev/null; printf '\0'; env -0; printf '\0'; } >&9
if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; fi
exec sh -c "$1"
"""
_AFTER = "\nenv -0 >&9"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # not an exported function of bash
_KEPT = frozenset(("HOME", "OLDPWD", "PWD", "SHLVL", "_"))
"""Variables of the sandbox and of each shell."""
_LOCALE = re.compile(r"LANG|LANGUAGE|LC_\w+")

# /etc/profile sets PATH anew for login shells, and reads no file of the image's own home directory.
_PROFILE = 'unset OLDPWD PWD SHLVL; export -p >"$HOME/.profile"'


def opens_too_slowly(limit: float) -> SandboxError:
    """Return the error for a sandbox that did not open within `limit` seconds."""
    return SandboxError(f"the sandbox did not open within its budget of {limit:g} s (limits.open)")


@dataclass(slots=True)
class _Reading:
    """One environment, or why the lines give none. A failure of the sandbox is neither: it is read again."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    value: Mapping[str, str] | str | None = None


class TaskEnvironments:
    """The environments of a run's tasks, each read once for an image and its set-up lines."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, ...], _Reading] = {}

    async def of(
        self, task: Task, provider: SandboxProvider, spec: SandboxSpec, limits: Limits
    ) -> Mapping[str, str]:
        """Return the variables that the set-up lines of a task add or change.

        A variable that they remove stays. HOME stays the sandbox's. A locale that the image does not have
        before these lines is left out, since the agent's sandbox does not have it either.

        Args:
            provider: Opens a sandbox in which the lines run.
            spec: The sandbox of the agent.
            limits: The lines get the time of a test run, of which they are a part in a grade.

        Raises:
            SandboxError: No sandbox opened, or the lines did not run to their end.
        """
        if not task.setup.strip():
            return {}
        key = (spec.image or "", str(spec.repository), spec.workdir, task.setup)
        reading = self._readings.setdefault(key, _Reading())
        async with reading.lock:
            if reading.value is None:
                with anyio.move_on_after(limits.open) as opening:
                    async with provider.open(spec.for_grading()) as sandbox:
                        opening.deadline = math.inf  # the lines have a limit of their own
                        reading.value = await _read(task, sandbox, limits.grade)
        if reading.value is None:
            raise opens_too_slowly(limits.open)
        if isinstance(reading.value, str):
            raise SandboxError(
                f"the set-up lines of the task {task.instance_id!r} give its agent no environment: "
                f"{reading.value}; correct them in the column 'setup'"
            )
        return reading.value


async def _read(task: Task, sandbox: Sandbox, timeout: float) -> Mapping[str, str] | str:
    argv = ["sh", "-c", _READ, "sh", task.setup + _AFTER]
    try:
        with raised_as(SandboxError):
            done = await sandbox.exec(argv, cwd="/", timeout=timeout, max_output=MAX_ENVIRONMENT)
    except SandboxTimeout:
        return f"they did not end within {timeout:g} s (limits.grade)"
    if done.truncated and len(done.stdout) == MAX_ENVIRONMENT:  # and not what they print
        return f"it has more than {MAX_ENVIRONMENT} bytes"
    sections = done.stdout.split(b"\0\0")
    if len(sections) != 2 or not sections[1]:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
        return f"the shell ended before their end with exit code {done.exit_code}{said and f': {said}'}"
    locales, _, before = sections[0].partition(b"\0")
    old, new = _variables(before), _variables(sections[1])
    known = {_plain_locale(name) for name in locales.decode(errors="replace").split()}
    return {
        name: value
        for name, value in new.items()
        if old.get(name) != value
        and name not in _KEPT
        and not (known and _LOCALE.fullmatch(name) and not known.issuperset(_locales(value)))
    }


def _variables(text: bytes) -> dict[str, str]:
    """Return the variables of an `env -0` whose names are those of a shell's."""
    pairs = (part.decode(errors="surrogateescape").partition("=") for part in text.split(b"\0"))
    return {name: value for name, _, value in pairs if _NAME.fullmatch(name)}


def _locales(value: str) -> set[str]:
    """Return the locales that a variable names; LANGUAGE may name several, and languages without one."""
    return {_plain_locale(name) for name in value.split(":") if "." in name}


def _plain_locale(name: str) -> str:
    """Return a locale's name as `locale -a` prints it: `en_US.UTF-8` is `en_US.utf8`."""
    language, dot, charset = name.partition(".")
    return language + dot + charset.lower().replace("-", "")


async def write_profile(sandbox: Sandbox, environment: Mapping[str, str], timeout: float) -> None:
    """Give login shells the variables that all other commands of the agent get.

    Raises:
        SandboxError: The file in HOME cannot be written.
    """
    with raised_as(SandboxError):
        done = await sandbox.exec(["sh", "-c", _PROFILE], cwd="/", env=environment, timeout=timeout)
    if done.exit_code != 0:
        said = done.stderr[-300:].decode(errors="replace").strip()
        raise SandboxError(f"cannot write '.profile' in the home directory of the sandbox: {said}")
