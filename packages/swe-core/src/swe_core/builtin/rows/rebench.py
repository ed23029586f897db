"""SWE-rebench, V1 (Python) and V2 (twenty languages): rows with an `install_config`."""

from __future__ import annotations

import shlex
from typing import Any

from swe_core.api.task import Task
from swe_core.builtin.rows.row import CONDA, Row


def rebench_task(row: Row) -> Task:
    """Return the task of a row of SWE-rebench; see `families.task_of` for errors.

    V1 has the repository in /testbed and a command that the test files are appended to. V2 names the row's
    `language`, has the repository in a directory of its own name, and complete commands.
    """
    fields = row.common()
    config = row.table("install_config")
    parser = row.log_parser("install_config.log_parser", config.get("log_parser"))
    commands = _commands(row, config.get("test_cmd"))
    if not row.has("language"):
        return Task(
            **fields,
            image=row.image("docker_image" if row.has("docker_image") else "image_name"),
            setup=CONDA + _exports(row, config.get("env_vars")),
            test_command=" && ".join(commands),
            log_parser=parser,
        )
    return Task(
        **fields,
        image=row.image("image_name"),
        workdir=f"/{fields['repo'].rpartition('/')[2]}",
        test_command=_all_of(commands),
        test_files=(),
        log_parser=parser,
    )


def _commands(row: Row, value: object) -> list[str]:
    commands = [value] if isinstance(value, str) else value
    if (
        not isinstance(commands, list)
        or not commands
        or not all(isinstance(command, str) and command.strip() for command in commands)
    ):
        row.wrong("install_config.test_cmd", value, "a shell command, or a list of them")
    return commands


def _all_of(commands: list[str]) -> str:
    """Return one script that runs each command and exits with 1 where one failed."""
    if len(commands) == 1:
        return commands[0]
    return "\n".join(["failed=0", *(f"{{ {command}\n}} || failed=1" for command in commands), "exit $failed"])


def _exports(row: Row, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, dict):
        row.wrong("install_config.env_vars", value, "an object: variable → value")
    lines = (f"\nexport {shlex.quote(name)}={shlex.quote(str(text))}" for name, text in value.items() if text)
    return "".join(lines)
