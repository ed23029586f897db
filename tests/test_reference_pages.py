"""docs/cli.md, docs/settings.md and docs/errors.md say what the program says."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from swe_core import errors
from swe_core.errors import RunStopped, SweError, UsageError, boundary_of

DOCS = Path(__file__).parents[1] / "docs"
PLUGINS = {"codex", "docker", "hf", "openenv", "pi", "trl"}


@pytest.mark.parametrize("name", ["cli", "settings"])
def test_generated_page_is_current(name: str) -> None:
    """In another process: options of plugins are added to a command once, for all plugins there are."""
    if missing := PLUGINS - {point.name for point in entry_points(group="swe_core")}:
        pytest.skip(f"the page covers all plugins of this repository, and {missing} are not installed")
    generator = DOCS / f"generate_{name}.py"
    env = {**os.environ, "COLUMNS": "40"}  # the page's width is its own
    command = [sys.executable, str(generator), "--print"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (DOCS / f"{name}.md").read_text(), f"run python {generator}"


def test_every_setting_has_a_description() -> None:
    page = (DOCS / "settings.md").read_text()
    assert [line for line in page.splitlines() if line.endswith(": None.")] == []
    assert {"run", "budget", "sandbox.hf", "engine.vllm"} <= set(re.findall(r"^## \[(.+)\]$", page, re.M))


def test_command_reference_has_every_command() -> None:
    """Also those of groups, and the option that a plugin adds."""
    page = (DOCS / "cli.md").read_text()
    for words in (
        "### swe-core run\n",
        "### swe-core tasks list\n",
        "### swe-core doctor\n",
        "### swe-core openenv serve\n",
        "--weight-sync",
    ):
        assert words in page


def catalogue() -> dict[str, list[str]]:
    """Exception → the cells of its row."""
    text = (DOCS / "errors.md").read_text().partition("## The catalogue")[2]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip().strip("`"): [cell.strip() for cell in cells] for cells in rows}


EXCEPTIONS = {
    name: found
    for name, found in vars(errors).items()
    if inspect.isclass(found) and issubclass(found, SweError)
}


def test_every_exception_is_in_the_catalogue_and_no_other() -> None:
    assert list(catalogue()) == list(EXCEPTIONS)


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_catalogue_is_right_about(name: str) -> None:
    found, (_, parent, boundary, means, remedy) = EXCEPTIONS[name], catalogue()[name]
    assert parent == f"`{found.__bases__[0].__name__}`"
    of_a_rollout = found not in (SweError, RunStopped) and not issubclass(found, UsageError)
    wanted = f"`{boundary_of(instance(found), 'agent')}`" if of_a_rollout else "–"
    assert boundary == wanted
    assert means
    assert remedy


def instance(kind: type[SweError]) -> SweError:
    return kind(1, 1) if kind is errors.ContextOverflow else kind("it failed")


def test_tree_in_the_docstring_is_the_tree() -> None:
    tree = (errors.__doc__ or "").translate(dict.fromkeys(map(ord, "│├└─"), " "))
    first = [line.split()[0] for line in tree.splitlines() if line.split()]
    assert [word for word in first if word in EXCEPTIONS] == list(EXCEPTIONS)
