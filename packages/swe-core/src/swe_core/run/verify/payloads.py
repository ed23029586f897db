"""The code that cheating patches carry, of payloads.toml, and the log that some of it forges."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from swe_core.api.task import Task

_CODE: Mapping[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def code(name: str, *, log: str = "", ids: Sequence[str] = (), paths: Sequence[str] = ()) -> str:
    """Return a piece of code.

    Args:
        log: What it prints.
        ids: Tests that it reports as passed.
        paths: Files of tests that it changes.
    """
    values: dict[str, object] = {
        "LOG": log,
        "BYTES": log.encode(),
        "IDS": [*ids],
        "PATHS": (*paths,),
        "NEUTER": _CODE["NEUTER"],
    }
    return re.sub(f"@({'|'.join(values)})@", lambda found: repr(values[found[1]]), _CODE[name])


def forged_log(task: Task) -> str:
    """What the task's runner prints when all its tests pass."""
    ids = (*task.fail_to_pass, *task.pass_to_pass, *(task.expected or ()))
    if task.log_parser == "unittest":
        return _unittest_log(ids)
    lines = "".join(f"PASSED {test}\n" for test in ids)
    title = " short test summary info ".center(80, "=")
    end = f" {len(ids)} passed in 0.42s ".center(80, "=")
    return f"\n{title}\n{lines}{end}\n"


def _unittest_log(ids: Iterable[str]) -> str:
    tests = list(ids)
    lines = "".join(f"{_as_unittest(test)} ... ok\n" for test in tests)
    return f"\n{lines}\n{'-' * 70}\nRan {len(tests)} tests in 0.042s\n\nOK\n"


def _as_unittest(test: str) -> str:
    if "(" in test:
        return test
    where, _, name = test.rpartition(".")
    return f"{name} ({where})"
