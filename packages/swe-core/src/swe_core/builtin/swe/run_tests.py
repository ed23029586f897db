"""One run of a task's tests: the command, its exit code, its log."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import anyio

from swe_core.api.sandbox import Sandbox
from swe_core.api.task import Task
from swe_core.builtin.swe.git_trees import ancestors
from swe_core.builtin.swe.parsers import log_reader
from swe_core.builtin.swe.report import FD, NOTHING_REPORTED, Report, Reporter
from swe_core.errors import SandboxError
from swe_core.system.detached import closed

# stdout and stderr in one stream, in order, and what was stderr is the reporter's; bash where there is one,
# since set-up lines `source` things
_SHELL = f'exec {FD}>&2 2>&1; if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; fi; exec sh -c "$1"'


class HeadAndTail:
    """Keeps the first quarter of `limit` bytes and the last three: results stand at the end of a log."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 4
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def add(self, chunk: bytes) -> None:
        """Append `chunk`."""
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._tail_limit:
            self._shorten()

    def _shorten(self) -> None:
        surplus = max(0, len(self._tail) - self._tail_limit)
        self._cut += surplus
        del self._tail[:surplus]

    def value(self) -> bytes:
        """Return what was kept, with a line that says how much was not."""
        self._shorten()
        note = f"\n[... {self._cut} bytes left out ...]\n".encode() if self._cut else b""
        return bytes(self._head) + note + bytes(self._tail)


@dataclass(frozen=True, slots=True)
class TestRun:
    """The end of a test run.

    Args:
        exit_code: That of the test command; None if it was killed at its time limit.
        log: stdout and stderr, merged.
        seconds: Wall time.
        report: The reporter's report, also of a run that was killed.
    """

    __test__ = False  # not a test class, in spite of its name

    exit_code: int | None
    log: bytes
    seconds: float
    report: Report = NOTHING_REPORTED

    @property
    def last_line(self) -> str:
        """Return the last line of the log that says something, at most 300 characters."""
        lines = self.log[-10_000:].decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "nothing printed")


def test_script(task: Task, workdir: str, files: Sequence[str], environment: str) -> str:
    """Return the shell script of a test run: the task's set-up lines, then its test command on `files`.

    Args:
        environment: Shell commands of the grader in between. They add nothing to the log, even if set-up
            lines say `set -x`.
    """
    command = " ".join((task.test_command.strip(), *map(shlex.quote, files)))
    ours = f"; {{ {environment}; }} 2>/dev/null" if environment else ""
    return f"{task.setup}\ncd -- {shlex.quote(workdir)} || exit 126{ours}\n{command}"


async def run_tests(
    sandbox: Sandbox,
    task: Task,
    files: Sequence[str],
    known: Mapping[str, str],
    *,
    timeout: float,
    log_bytes: int,
) -> TestRun:
    """Run the tests once; a time-out kills the process tree and is no exception.

    Where pytest refuses to start since it does not find the reporter, because the command sets PYTHONPATH or
    is `python -I`, they run without it.

    Args:
        files: What is run, relative to the repository.

    Raises:
        SandboxError: The reporter could not be put there.
        SandboxDied: The sandbox went away.
    """
    conftests = {f"{above}/conftest.py".lstrip("/") for file in files for above in ("", *ancestors(file))}
    first = (*sorted(conftests), *files)
    reporter = Reporter(log_reader(task.log_parser).runner, known, first)
    await reporter.install(sandbox)
    run = await _run(sandbox, task, files, reporter, reporter.environment, timeout, log_bytes)
    if run.exit_code is not None and reporter.was_not_found(run.log):
        left = max(0.0, timeout - run.seconds)
        again = await _run(sandbox, task, files, reporter, "", left, log_bytes)
        run = replace(again, seconds=run.seconds + again.seconds)
    return run


async def _run(
    sandbox: Sandbox,
    task: Task,
    files: Sequence[str],
    reporter: Reporter,
    environment: str,
    timeout: float,
    log_bytes: int,
) -> TestRun:
    log = HeadAndTail(log_bytes)
    script = test_script(task, sandbox.spec.workdir, files, environment)
    exit_code: int | None = None
    started = time.monotonic()
    process = await sandbox.start(["sh", "-c", _SHELL, "sh", script], cwd="/")
    try:
        with anyio.move_on_after(timeout):
            async for stream, chunk in process.output():
                if stream == "stdout":
                    log.add(chunk)
                else:
                    reporter.feed(chunk)
            exit_code = await process.wait()
    finally:
        seconds = time.monotonic() - started
        await closed(process.kill, "the end of the test run", SandboxError)
    return TestRun(exit_code, log.value(), seconds, reporter.report())
