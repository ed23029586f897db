"""The folder of an exported environment server, as a pure function of what it serves."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from swe_core.errors import UsageError

BASE_IMAGE = "python:3.12-slim-bookworm"
_LONGEST_EPISODE = 3600.0
"""Seconds: the longest that OpenEnv's validation lets a folder declare."""
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
TEMPLATE = files("swe_openenv.export") / "template"
_TEXTS = {
    "__init__.py": "init.py.tmpl",
    "client.py": "client.py.tmpl",
    "models.py": "models.py.tmpl",
    "openenv.yaml": "openenv.yaml.tmpl",
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    "server/__init__.py": "server_init.py.tmpl",
    "server/app.py": "app.py.tmpl",
    "server/Dockerfile": "Dockerfile.tmpl",
}
"""Path in the folder → template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is exported.

    Args:
        name: Name of the environment, in snake case.
        settings: Text of the settings file.
        inputs: Path in the folder → input file.
        requirements: pip's requirements of the server.
        wheels: Wheels that the image installs, in place of some requirements.
        base_image: Image on which the server's is based.
        split: Name of the split of all tasks.
        tasks: Number of tasks.
        interactive: Whether the client is the agent.
        cpus, memory_mb, disk_mb: Resources of one sandbox.
        episode: Seconds that an episode may take.
        alone: Whether the server needs no network and no key.
    """

    name: str
    settings: str
    inputs: Mapping[str, Path]
    requirements: Sequence[str]
    wheels: Sequence[Path] = ()
    base_image: str = BASE_IMAGE
    split: str
    tasks: int
    interactive: bool
    cpus: float
    memory_mb: int
    disk_mb: int
    episode: float
    alone: bool


def check_name(name: str) -> None:
    """Check the name of an environment, which is also that of a Python package.

    Raises:
        UsageError: It is not in snake case.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: expected snake case, such as swe_env")


def content_of(export: Export) -> dict[str, bytes | Path]:
    """Return path in the folder → content, or the file with the content.

    Raises:
        UsageError: An input file has the path of another file of the folder.
    """
    values = _values(export)
    content: dict[str, bytes | Path] = {
        place: Template((TEMPLATE / name).read_text(encoding="utf-8")).substitute(values).encode()
        for place, name in _TEXTS.items()
    }
    wheels = {f"wheels/{wheel.name}": wheel for wheel in export.wheels}
    requirements = [*(f"./{place}" for place in wheels), *export.requirements]
    content |= {
        "server/env.toml": export.settings.encode(),
        "server/requirements.txt": "".join(f"{line}\n" for line in requirements).encode(),
        "validation/runtime.json": _probe(export).encode(),
    }
    for place in export.inputs:
        if place in content:
            raise UsageError(f"the settings name the file {place!r}, which the folder has itself: rename it")
    return dict(sorted((content | wheels | dict(export.inputs)).items()))


def write(content: Mapping[str, bytes | Path], directory: Path) -> None:
    """Write the files of a folder.

    Raises:
        UsageError: The folder is not empty, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"the folder {str(directory)!r} is not empty: give another, or remove it")
        for place, text in content.items():
            path = directory / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the folder {str(directory)!r} cannot be written: {error.strerror or error}"
        ) from None


def _values(export: Export) -> dict[str, str]:
    tools = ["exec", "read", "write", "submit"] if export.interactive else ["run_rollout"]
    return {
        "name": export.name,
        "prefix": _prefix(export.name),
        "title": export.name.replace("_", " ").title(),
        "base_image": export.base_image,
        "copy_wheels": "COPY wheels wheels"
        if export.wheels
        else "# The packages come from the package index.",
        "dependencies": json.dumps(list(export.requirements)),
        "cpu": str(export.cpus),
        "memory_mb": str(export.memory_mb),
        "disk_mb": str(export.disk_mb),
        "episode_timeout_s": str(min(export.episode, _LONGEST_EPISODE)),
        "network": "no-network" if export.alone else "public",
        "tools": json.dumps(sorted(["capabilities", "list_tasks", *tools])),
        "counts": json.dumps({export.split: export.tasks}),
        "credentials": json.dumps(not export.alone),
        "tasks": str(export.tasks),
        "split": export.split,
        "action": 'Exec(command="git status")' if export.interactive else "RunAgent()",
        "import": "Exec" if export.interactive else "RunAgent",
    }


def _prefix(name: str) -> str:
    """Return what OpenEnv expects the classes of an environment to begin with: `Swe` for `swe_env`."""
    return "".join(word.capitalize() for word in name.replace("_env", "").split("_")) or "Env"


def _probe(export: Export) -> str:
    """Return the episode that OpenEnv's validation plays: its step must have a reward."""
    plan = {
        "plan_schema_version": "1",
        "reset": {"episode_id": "validation", "seed": 1, "options": {}},
        "actions": [{"type": "submit" if export.interactive else "run_agent"}],
    }
    return json.dumps(plan, indent=2) + "\n"
