"""Small test suites, run in a sandbox with and without the reporter."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.sandbox import Sandbox
from swe_core.builtin.swe import run_tests as runner
from swe_core.builtin.swe.git_trees import blob_id
from swe_core.builtin.swe.report import FD, Reporter
from swe_core.builtin.swe.run_tests import TestRun, run_tests
from swe_testing.records import make_task

PYTHON = os.environ.get("SWE_TEST_PYTHON", sys.executable)
"""Python whose pytest and unittest run the suites."""
OTHER = "SWE_TEST_PYTHON" in os.environ
"""Whether it is another one: attacks on parts that it lacks fail by themselves, and leave no tampering."""
OLD = Path(PYTHON).resolve().name == "python3.6"
"""Whether its pytest is 3.10: `-rA` names no tests there, a failure is a FAIL, a class has brackets."""
SUMMARY = "-rap" if OLD else "-rA"
PLUGINS = Path(PYTHON).parents[1] / "pytest-plugins"
"""Plugins for these suites only: beside pytest they would change the tests of this project."""


@dataclass(frozen=True)
class Suite:
    """A small test suite.

    Args:
        files: Its files.
        command: The test command, run in its directory.
        env: Shell commands before the reporter's.
        needs: A module, or an import statement, without which it cannot run.
        plugins: Whether pytest loads the plugins that are installed, as it does where a module is needed.
        odd: First words of the reports that the suite itself causes.
        silent: Whether no session can be complete.
        kept: A file that must be the same with and without the reporter.
        shuffled: Whether the order of its output varies.
    """

    files: dict[str, str]
    command: str
    env: str = ":"
    needs: str = ""
    plugins: bool = False
    odd: frozenset[str] = frozenset()
    silent: bool = False
    kept: str = ""
    shuffled: bool = False


def zoo(file: str, run: str) -> list[Any]:
    """The suites of a TOML file, as parameters of a test: those that are not marked `fast` there are slow.

    Args:
        run: The test command, where a suite names no other.
    """
    table = tomllib.loads(Path(__file__).with_name(file).read_text())
    unknown = f"{PYTHON} -c 'import fcntl, sys, pytest; del fcntl.F_DUPFD_CLOEXEC; "
    words = {"{unknown}": unknown + f"sys.exit(pytest.main(sys.argv[1:]))' {run.partition('pytest ')[2]}"}
    words |= {"{run}": run, "{python}": PYTHON, "{summary}": SUMMARY}
    words |= {f"${name}": text for name, text in table["program"].items()}

    def filled(text: str) -> str:
        for word, meant in words.items():
            text = text.replace(word, meant)
        return text

    found = []
    for name, suite in table["suite"].items():
        marks = () if suite.pop("fast", False) else pytest.mark.slow
        files = {
            name: filled(text) for name, text in {**table.get("files", {}), **suite.pop("files")}.items()
        }
        command, odd = filled(suite.pop("command", run)), frozenset(suite.pop("odd", ()))
        found.append(pytest.param(Suite(files, command, **suite, odd=odd), id=name, marks=marks))
    return found


async def run(sandbox: Sandbox, suite: Suite, log_parser: str) -> TestRun:
    """Run a suite with the reporter, and with nothing else in the work directory."""
    await sandbox.exec(["find", ".", "-mindepth", "1", "-delete"])
    for file, content in suite.files.items():
        await sandbox.write(f"{sandbox.spec.workdir}/{file}", content.encode())
    plugins = "" if suite.plugins or suite.needs else " PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"
    path = f" PYTHONPATH={PLUGINS}" if suite.needs else ""
    task = make_task(
        setup="unset PYTHONPATH PYTEST_ADDOPTS; export PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0"
        f"{plugins}{path}; cd {sandbox.spec.workdir}; {suite.env}; set -x",
        test_command=suite.command,
        log_parser=log_parser,
    )
    known = {name: blob_id(text.encode(), 40) for name, text in suite.files.items() if name.endswith(".py")}
    return await run_tests(sandbox, task, (), known, timeout=120, log_bytes=1 << 20)


async def run_twice(sandbox: Sandbox, suite: Suite, log_parser: str) -> TestRun:
    """Run a suite without and with the reporter; only the report may differ, and it is complete."""
    needed = suite.needs if suite.needs.startswith("from ") else f"import {suite.needs}"
    import_it = ["env", f"PYTHONPATH={PLUGINS}", PYTHON, "-c", needed]
    if suite.needs and (await sandbox.exec(import_it)).exit_code != 0:
        pytest.skip(f"{suite.needs} is not installed")

    async def once() -> tuple[TestRun, bytes]:
        done = await run(sandbox, suite, log_parser)
        return done, await sandbox.read(f"{sandbox.spec.workdir}/{suite.kept}") if suite.kept else b""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Reporter, "environment", "")
        patched.setattr(runner, "_SHELL", runner._SHELL.replace(f"exec {FD}>&2 ", "exec "))
        bare, kept = await once()
    watched, kept_too = await once()
    assert bare.report.sessions == 0
    assert _comparable(watched.log, suite) == _comparable(bare.log, suite)
    assert watched.exit_code == bare.exit_code
    assert kept_too == kept
    if suite.silent:
        assert not watched.report.complete
    else:
        assert watched.report.complete
        own = {f"{test}: {text}" for test, text in watched.report.evidence.items()}
        assert {odd for odd in own | watched.report.odd if odd.split()[0] not in suite.odd} == set()
    return watched


def _comparable(log: bytes, suite: Suite) -> list[str]:
    log = re.sub(rb"\b\d+\.\d+(s| seconds)\b", b"N", log)
    log = re.sub(rb"=+( [^\n]* )=+\n", rb"=\1=\n", log)
    text = re.sub(rb"pytest-\d+|0x[0-9a-f]+|\(\d{9,}\)", b"N", log).decode(errors="replace")
    return sorted(text) if suite.shuffled else text.split("\n")
