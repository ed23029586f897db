"""Where and how a row's tests run, from its data set's documentation and its own columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from swe_core.builtin.rows.row import Row, found

_PUBLISHED = re.compile(r"(?:^|/)sweb\.eval\.")


@dataclass(frozen=True, slots=True)
class Environment:
    """The documented environment of all rows of a data set.

    Args:
        image: The published image; None without one.
        setup: Shell lines that its tests need.
        test_command: None where none is known for the row.
        test_files: As `Task.test_files`.
    """

    image: str | None
    setup: str
    test_command: str | None
    test_files: tuple[str, ...] | None = None
    log_parser: str = "pytest"


def _refuse_another_repository(row: Row) -> None:
    """Reject a row whose id names another repository than `repo`: image and command must belong together."""
    name, repo = row.instance_id(), row.text("repo")
    if "-" not in name.partition("__")[2]:
        return  # not OWNER__NAME-NUMBER: it names no repository
    if not name.lower().startswith(f"{repo.lower().replace('/', '__')}-"):
        row.reject(
            f"the instance_id names another repository than the column 'repo', which is {found(repo)}: "
            "correct one of them, or add a column 'image_name' with the container image that the tests run in"
        )


def task_fields(row: Row, documented: Environment) -> dict[str, Any]:
    """Return fields of a task: the row's own columns, else the documented values.

    The own columns are `repository` and `image_name` (one is enough), `test_command`, `setup`, and
    `log_parser`. Documented set-up lines apply to published images only, also under the name of a copy.

    Raises:
        TaskError: A column is wrong, or nothing says where or how the tests run.
    """
    command = row.command("test_command")
    if command is None and documented.test_command is None:
        row.reject(
            f"no test command is known for the repository {found(row.columns['repo'])}; add a column "
            "'test_command' with the shell command that the test files are appended to"
        )
    repository = row.repository()
    if row.has("image_name"):
        image: str | None = row.image("image_name")
    else:
        image = None if repository else documented.image
        if image is not None:
            _refuse_another_repository(row)
    if image is None and repository is None:
        row.reject(
            "nothing says what the tests run in; add a column 'image_name' (a container image with the "
            "repository) or 'repository' (a git work tree on this host)"
        )
    setup = row.optional("setup")
    if setup is None:
        published = image is not None and (image == documented.image or _PUBLISHED.search(image))
        setup = documented.setup if published else ""
    parser = documented.log_parser
    if row.has("log_parser"):
        parser = row.log_parser("log_parser", row.columns["log_parser"])
    elif command is not None:
        parser = "pytest"
    return {
        "image": image,
        "repository": repository,
        "setup": setup,
        "test_command": command or documented.test_command,
        "test_files": None if command else documented.test_files,
        "log_parser": row.known_parser("repo", parser),
    }
