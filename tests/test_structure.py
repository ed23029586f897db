"""The import rules of docs/architecture.md, and other rules that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "packages"
CORE = PACKAGES / "swe-core" / "src" / "swe_core"
SURFACE = ("errors", "api", "plugins.hookspecs", "bundles", "sandboxing", "system")
PUBLIC = tuple(f"swe_core.{name}" for name in SURFACE)
FOR_TRAINERS = ("swe_core.rollout", "swe_core.run", "swe_core.hub")
FOR_SERVERS = ("swe_core.rollout", "swe_core.run", "swe_core.tokens")
PLUGINS = {
    *("swe_agents", "swe_agents_pi", "swe_executor_ray", "swe_openenv"),
    *("swe_sandbox_docker", "swe_sandbox_hf", "swe_trainer_trl"),
}
FOR_EXECUTORS = ("swe_core.rollout.nodes", "swe_core.run.node")
ALSO = {
    "swe_executor_ray": FOR_EXECUTORS,
    "swe_trainer_trl": FOR_TRAINERS,
    "swe_openenv": FOR_SERVERS,
    "swe_sandbox_hf": ("swe_core.hub.errors",),
}
HEAVY = {"torch", "transformers", "datasets", "docker", "huggingface_hub", "aiohttp", "vllm", "trl"}
HEAVY |= {"httpx", "requests", "openenv", "fastapi", "fastmcp", "uvicorn", "ray"}
EXTRAS = {"numpy", "pytest"}
LONG: Mapping[str, str] = {
    "swe-core/src/swe_core/builtin/local/supervisor.py": "one file is all of swe_core that a sandbox sees",
}
"""Modules of more than 600 lines, by path, each with its reason."""


@cache
def modules() -> Mapping[str, Path]:
    """Every module of every package, by its dotted name."""
    found = {}
    for path in PACKAGES.glob("*/src/**/*.py"):
        parts = path.relative_to(PACKAGES).with_suffix("").parts[2:]
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """The modules that each module imports: at its top, inside functions, and for types only."""
    return {name: frozenset(_imports_of(name, path)) for name, path in modules().items()}


def _imports_of(name: str, path: Path) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            source = ".".join([*above, *filter(None, [node.module])]) if node.level else str(node.module)
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                yield whole if whole in modules() else source


def room(name: str, package: str) -> str | None:
    """The room of a module: the folder or file at the root of its package; None for the package itself."""
    parts = name.split(".")
    return parts[1] if parts[0] == package and len(parts) > 1 else None


def arrows(package: str) -> dict[str, set[str]]:
    """Room → the rooms that it imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, imported in imports().items():
        if (source := room(name, package)) is not None:
            found[source] |= {target for each in imported if (target := room(each, package))} - {source}
    return found


def table(head: str) -> dict[str, set[str]]:
    """Room → the rooms that it may import, from the table below a heading of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = re.split(r"(?m)^#+ ", text.partition(f"## {head}\n")[2], maxsplit=1)[0]
    rows = [[one.strip() for one in row.strip("|").split("|")] for row in section.splitlines() if "|" in row]
    found: dict[str, set[str]] = {}
    for *_, name, _, may in rows[2:]:
        rooms = re.findall(r"`(\w+)(?:\.py|/)`", name)
        for each in rooms:
            allowed = found.keys() - set(rooms) if may == "all above" else set(re.findall(r"`(\w+)`", may))
            found[each] = set(allowed)
    return found


@pytest.mark.parametrize(
    ("package", "head"),
    [
        ("swe_core", "Rooms"),
        ("swe_trainer_trl", "Rooms of the trainer"),
        ("swe_openenv", "Rooms of swe-openenv"),
    ],
)
def test_rooms_import_what_the_table_allows(package: str, head: str) -> None:
    allowed, found = table(head), arrows(package)
    assert allowed.keys() == found.keys(), "each room has a row"
    extra = {source: targets - allowed[source] for source, targets in found.items()}
    assert {source: targets for source, targets in extra.items() if targets} == {}


def test_rooms_have_nine_floors_and_no_circle() -> None:
    floors: dict[str, int] = {}
    found = arrows("swe_core")
    for name in TopologicalSorter(found).static_order():  # raises CycleError
        floors[name] = 1 + max((floors[below] for below in found[name]), default=0)
    assert max(floors.values()) <= 9
    assert len(floors) + len(["__init__.py"]) <= 19


@pytest.mark.parametrize("package", ["swe_core", "swe_trainer_trl"])
def test_modules_have_no_circle(package: str) -> None:
    graph = {
        name: {each for each in imported if each.startswith(f"{package}.") and each != name}
        for name, imported in imports().items()
        if name.startswith(f"{package}.") and modules()[name].name != "__init__.py"
    }
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_plugin_packages_import_the_public_surface() -> None:
    """They import no other plugin package, and the core imports none."""
    wrong = []
    for name, imported in imports().items():
        package = name.partition(".")[0]
        for each in imported:
            other = each.partition(".")[0]
            if other in PLUGINS - {package}:
                wrong.append(f"{name} imports {each}")
            if package in PLUGINS and other == "swe_core" and each != "swe_core":
                public = PUBLIC + ALSO.get(package, ())
                if not any(f"{each}.".startswith(f"{room}.") for room in public):
                    wrong.append(f"{name} imports {each}")
    assert wrong == []


def test_guide_names_the_public_surface() -> None:
    section = (ROOT / "docs" / "plugins.md").read_text().partition("## Compatibility")[2]
    names = (*PUBLIC, *FOR_TRAINERS, *FOR_EXECUTORS, *FOR_SERVERS)
    assert [name for name in names if f"`{name}`" not in section] == []


def test_core_names_no_agent_and_no_provider() -> None:
    """But for `builtin/` and the list of what ships with the core."""
    names = {f"{mark}{name}{mark}" for mark in "\"'" for name in ("pi", "docker", "mini", "local", "hf")}
    wrong = [
        f"{path.relative_to(CORE)}: {name}"
        for path in CORE.rglob("*.py")
        if "builtin" not in path.parts and path != CORE / "plugins" / "builtins.py"
        for name in names
        if name in path.read_text()
    ]
    assert wrong == []


def test_sources_have_no_assert() -> None:
    """Control flow raises from the error tree; only the conformance suites assert."""
    wrong = [
        f"{name}:{node.lineno}"
        for name, path in modules().items()
        if not name.startswith("swe_testing") and "demo" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert wrong == []


def test_modules_have_at_most_600_lines() -> None:
    lines = {str(one.relative_to(PACKAGES)): len(one.read_text().splitlines()) for one in modules().values()}
    assert {path: count for path, count in lines.items() if count > 600 and path not in LONG} == {}


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["plugins"]])
def test_start_imports_nothing_heavy(command: list[str]) -> None:
    run_without(HEAVY, *command)


def test_rollout_imports_neither_numpy_nor_pytest(tmp_path: Path) -> None:
    """They come with extras. The tests of the task run pytest in a process of their own."""
    task = ("--agent", "oracle", "--tasks", "demo", "--task", "demo__memofn-1")
    run, out = ("run", *task, "--set", "sandbox.local.unisolated=true"), str(tmp_path / "run")
    assert "resolved 1 of 1" in run_without(EXTRAS, *run, "--out", out)
    assert "resolved" in run_without(EXTRAS, "report", out)


def run_without(packages: set[str], *command: str) -> str:
    """Run a command of swe-core, which must succeed and import none of `packages`; return what it prints."""
    script = (
        "import sys; from swe_core.cli import main\n"
        f"sys.argv = ['swe-core', *{command!r}]\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        f"found = {packages!r} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
