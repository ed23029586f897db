"""`swe-core new`: write the skeleton of a plugin package."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template

import click

from swe_core.errors import UsageError
from swe_core.plugins.builtins import KNOWN_DISTRIBUTIONS
from swe_core.plugins.manager import PluginSet, allow_list

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SUFFIX = ".tmpl"
_TASK = "--task demo__memofn-1"


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The skeleton of one role.

    Args:
        prefix: Begins the name of the distribution.
        summary: What the plugin is, at the start of a sentence.
        about: What the example does, for its README.md.
        run: Options of `swe-core run` that use it, beside `--plugins NAME`.
        files: Module → what it is, for the table of README.md, beside `plugin.py`.
        dependencies: Distributions that it needs beside swe-core.
        kit: Whether its tests use swe-testing.
    """

    prefix: str
    summary: str
    about: str
    run: str
    files: Mapping[str, str]
    dependencies: tuple[str, ...] = ()
    kit: bool = False


SKELETONS: Mapping[str, Skeleton] = {
    "agent": Skeleton(
        prefix="swe-agents",
        summary="The coding agent",
        about="The example is a loop around one shell tool. The demo task brings recorded replies, so the\n"
        "run needs no model and no key; `--model` names a real one.",
        run=_TASK,
        files={"program.py": "the program that runs in the sandbox"},
        kit=True,
    ),
    "sandbox": Skeleton(
        prefix="swe-sandbox",
        summary="The sandbox provider",
        about="The example is a directory of this host for each sandbox. **It isolates nothing**, and\n"
        "refuses to run until `sandbox.$name.unisolated=true` accepts that. The switches in\n"
        "`tests/test_sandbox.py` turn the tests of isolation off: remove them one by one.",
        run=f"{_TASK} --set sandbox.$name.unisolated=true",
        files={"process.py": "the commands that run in a sandbox"},
        kit=True,
    ),
    "grader": Skeleton(
        prefix="swe-grader",
        summary="The grader",
        about="The example accepts a patch with which a shell command succeeds. It protects nothing, so do\n"
        "not train on its rewards.",
        run=f"{_TASK} --agent oracle",
        files={},
    ),
    "engine": Skeleton(
        prefix="swe-engine",
        summary="The engine",
        about="The example plays shell commands of its settings, one per turn, and calls no model.",
        run=_TASK,
        files={},
    ),
    "tasks": Skeleton(
        prefix="swe-tasks",
        summary="The task source",
        about="The example reads one folder per task, and has one. `swe-core tasks verify --plugins $name`\n"
        "checks that the gold patch of each task is resolved and an empty one is not.",
        run="--agent oracle",
        files={
            "repository.py": "the git repository of a task",
            "folders/": "the tasks, a folder for each",
        },
        dependencies=("platformdirs>=4.2",),
    ),
}
"""Role → its skeleton."""


@click.command()
@click.argument("role", type=click.Choice(list(SKELETONS)))
@click.argument("name")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the package, which must be new. [default: the name of the distribution]",
)
def new(role: str, name: str, directory: Path | None) -> None:
    """Write the skeleton of a plugin package: a working example of ROLE with its tests.

    NAME is the plugin's name, as in --plugins NAME: small letters, digits and underscores.
    """
    skeleton = SKELETONS[role]
    _check_name(name)
    distribution = f"{skeleton.prefix}-{name.replace('_', '-')}"
    target = Path(distribution) if directory is None else directory
    values = _values(role, name, distribution, skeleton)
    _write(target, dict(_files(role, values)))
    click.echo(f"Wrote {target}: the {values['role']} {name!r} in the distribution {distribution}. Next:\n")
    for step in (
        f"cd {shlex.quote(str(target))}",
        "pip install -e '.[test]'",
        "pytest",
        f"swe-core plugins {name}",
        values["run"],
    ):
        click.echo(f"  {step}")
    click.echo(f"\nsrc/{values['package']}/plugin.py is where to begin.")


def _check_name(name: str) -> None:
    """Check the name of a new plugin.

    Raises:
        UsageError: It is no name of a plugin, or is taken.
    """
    if not _NAME.fullmatch(name):
        better = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        hint = f", such as {better!r}" if _NAME.fullmatch(better) else ""
        raise UsageError(
            f"{name!r} is no name of a plugin: expected small letters, digits and single underscores, with a "
            f"letter first{hint}; a dash could stand in no variable SWE_ROLE__NAME__KEY"
        )
    if name in KNOWN_DISTRIBUTIONS:
        raise UsageError(
            f"the name {name!r} is that of a plugin of {KNOWN_DISTRIBUTIONS[name]}: choose another"
        )
    plugins = PluginSet(allow=allow_list(os.environ))
    taken = plugins.plugins.get(name)
    if taken is not None:
        raise UsageError(f"the name {name!r} is that of a plugin of {taken.origin}: choose another")
    for registered in plugins.components():
        if registered.name == name:
            owner = f"a component of the plugin {registered.plugin!r}"
            raise UsageError(f"the name {name!r} is that of {owner}: choose another")


def _values(role: str, name: str, distribution: str, skeleton: Skeleton) -> dict[str, str]:
    """Return what the templates are filled with."""
    package = distribution.replace("-", "_")
    test = ["pytest>=8.2", *(["swe-testing"] if skeleton.kit else [])]
    rows = [f"| `src/{package}/{file}` | {about} |\n" for file, about in skeleton.files.items()]
    values = {
        "role": "task source" if role == "tasks" else role,
        "name": name,
        "NAME": name.upper(),
        "Class": "".join(part.capitalize() for part in name.removesuffix(f"_{role}").split("_")),
        "distribution": distribution,
        "package": package,
        "summary": f"{skeleton.summary} {name}",
        "files": "".join(rows),
        "dependencies": _listed(["swe-core", *skeleton.dependencies]),
        "test_dependencies": _listed(test),
    }
    values["about"] = Template(skeleton.about).substitute(values)
    options = Template(skeleton.run).substitute(values)
    return {**values, "run": f"swe-core run --plugins {name} {options}"}


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _files(role: str, values: Mapping[str, str]) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield path → content of each file of the skeleton."""
    templates = resources.files("swe_core.cli.new") / "templates"
    for folder in ("common", role):
        for path, template in _templates(templates / folder, PurePosixPath()):
            parts = [values["package"] if part == "PACKAGE" else part for part in path.parts]
            place = PurePosixPath(*parts).with_name(path.name.removesuffix(_SUFFIX))
            if place.name == "gitignore":
                place = place.with_name(".gitignore")  # a dot would hide the template, too
            yield place, Template(template.read_text(encoding="utf-8")).substitute(values)


def _templates(folder: Traversable, at: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _templates(entry, at / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield at / entry.name, entry


def _write(target: Path, files: Mapping[PurePosixPath, str]) -> None:
    """Write the files of a package into a new folder.

    Raises:
        UsageError: The folder has files already, or cannot be written.
    """
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{str(target)!r} exists already: remove it, or name another folder with --dir")
        for path, text in files.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {str(target)!r}: {error.strerror or error}") from None
