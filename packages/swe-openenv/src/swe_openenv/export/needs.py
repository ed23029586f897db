"""What an exported server needs: distributions, and files that its settings name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from swe_core.errors import ConfigError
from swe_core.run.components import PluginSet, ResolvedComponent
from swe_core.run.plan import Plan
from swe_core.run.settings import Settings

CORE, OURS = "swe-core", "swe-openenv"
_ROWS = (".jsonl", ".json", ".parquet")


def distributions(plan: Plan, plugins: PluginSet) -> Mapping[str, str]:
    """Return distribution → version of all that the run of a plan loads, sorted by name.

    Installed plugins that the settings neither name nor choose are not needed.
    """
    named = plan.settings.run.plugins or ()
    used = {name for name, plugin in plugins.plugins.items() if name in named}
    for resolved in (plan.sandbox, plan.grader, plan.model_side):
        if isinstance(resolved, ResolvedComponent):
            used.add(resolved.registered.plugin)
    chosen = {("agent", plan.agent.name), ("tasks", plan.settings.run.tasks)}
    used |= {each.plugin for each in plugins.components() if (each.role, each.name) in chosen}
    files = set(plan.settings.run.extra_plugins)
    found = {CORE, OURS, *(plugins.plugins[name].origin for name in used)} - files
    return {name: version(name) for name in sorted(found)}


def extras(plan: Plan) -> str:
    """Return the extras of swe-core that the run of a plan needs, such as `[demo]`."""
    found = []
    if isinstance(plan.model_side, ResolvedComponent) and plan.model_side.name == "vllm":
        found.append("vllm")
    tasks = plan.settings.run.tasks or ""
    if tasks == "demo":
        found.append("demo")
    elif ("/" in tasks and not Path(tasks).exists()) or tasks.endswith(".parquet"):
        found.append("datasets")
    return f"[{','.join(found)}]" if found else ""


def input_files(settings: Settings) -> dict[str, Path]:
    """Return every file that the settings of the core name, by its path in the working directory.

    Raises:
        ConfigError: A file is not below the working directory, or missing.
    """
    found = {}
    for what, path in _named(settings):
        if path.is_absolute() or ".." in path.parts or path.parts[:1] == ("~",):
            raise ConfigError(
                f"{what} {str(path)!r} is not below the working directory, which is what is copied: name it "
                "relative to there"
            )
        if not path.is_file():
            raise ConfigError(f"{what} {str(path)!r}: there is no such file in {str(Path.cwd())!r}")
        found[path.as_posix()] = path
    return dict(sorted(found.items()))


def _named(settings: Settings) -> Iterator[tuple[str, Path]]:
    run = settings.run
    for name in ("verified", "image_map", "recording"):
        path: Path | None = getattr(run, name)
        if path is not None:
            yield f"run.{name}", path
    if run.tasks is not None and Path(run.tasks).suffix.lower() in _ROWS:
        yield "run.tasks", Path(run.tasks)
    for plugin in run.extra_plugins:
        if plugin.endswith(".py"):
            yield "run.extra_plugins", Path(plugin)
