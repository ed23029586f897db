"""The house rules that a machine can check: who imports whom, and what a start must not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1] / "packages"
PLUGINS = {"swe_agents_pi", "swe_sandbox_docker", "swe_sandbox_hf", "swe_trainer_trl"}
HEAVY = {"torch", "transformers", "datasets", "docker", "huggingface_hub", "aiohttp", "vllm", "trl"}
HEAVY |= {"httpx", "requests"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGES.glob("*/src/**/*.py")):
        yield path.relative_to(PACKAGES).parts[2], path


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_arrows_point_one_way() -> None:
    """Plugin packages import the core; nobody imports a plugin package."""
    wrong = [
        f"{path.name} imports {name}"
        for package, path in modules()
        for name in imported(path)
        if name.split(".")[0] in PLUGINS - {package}
    ]
    assert wrong == []


LAYERS = [
    "errors",
    "task",
    "sandbox",
    "agent",
    "engine",
    "grade",
    "record",
    "component",
    "hookspecs",
    "config",
    "store",
    "request",
    "agent_run",
    "rollout",
    "runner",
    "plugins",
    "notifications",
    "choice",
    "selection",
    "assemble",
    "execute",
    "cli",
]


def test_inside_the_core_arrows_point_down() -> None:
    """errors ← roles and records ← component ← hookspecs ← plugins ← rollout ← runner ← cli."""
    wrong = []
    core = PACKAGES / "swe-core" / "src" / "swe_core"
    for path in core.rglob("*.py"):
        layer = path.relative_to(core).parts[0].removesuffix(".py")
        if layer not in LAYERS:
            continue
        source = path.read_text()
        typing_only = source.partition("if TYPE_CHECKING:")[2].partition("\n\n")[0]
        for name in imported(path):
            parts = name.split(".")
            if parts[0] != "swe_core" or len(parts) < 2 or parts[1] not in LAYERS:
                continue
            if LAYERS.index(parts[1]) > LAYERS.index(layer) and f"from {name} import" not in typing_only:
                wrong.append(f"{layer} imports {parts[1]}")
    assert wrong == []


def test_the_core_knows_no_agent_and_no_provider_by_name() -> None:
    """Outside builtin/ no module names an agent or a sandbox provider."""
    names = {'"pi"', "'pi'", '"docker"', "'docker'", '"mini"', "'mini'", '"local"', "'local'", '"hf"'}
    core = PACKAGES / "swe-core" / "src" / "swe_core"
    wrong = [
        f"{path.relative_to(core)}: {name}"
        for path in core.rglob("*.py")
        if "builtin" not in path.parts and path.name != "builtins.py"
        for name in names
        if name in path.read_text()
    ]
    assert wrong == []


def test_no_assert_in_the_sources() -> None:
    """Control flow raises from the error tree; only the conformance suites assert."""
    wrong = [
        f"{path.name}:{node.lineno}"
        for package, path in modules()
        if package != "swe_testing" and "demo" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert wrong == []


def test_modules_stay_small() -> None:
    """About 400 lines; but a program that runs by itself inside a sandbox is one file."""
    alone = {"supervisor.py", "pull.py"}
    lines = {path.name: len(path.read_text().splitlines()) for _, path in modules()}
    assert [name for name, count in lines.items() if count > (500 if name in alone else 400)] == []


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["plugins"]])
def test_a_start_imports_nothing_heavy(command: list[str]) -> None:
    script = (
        "import sys; from swe_core.cli import main\n"
        f"sys.argv = ['swe-core', *{command!r}]\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        f"found = {HEAVY!r} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
