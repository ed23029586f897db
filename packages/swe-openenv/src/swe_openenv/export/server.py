"""Settings to the content of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import distribution
from importlib.resources import as_file
from pathlib import Path

from swe_core.bundles.installed import make_wheels
from swe_core.errors import ConfigError
from swe_core.run.components import ResolvedComponent
from swe_core.run.plan import Plan
from swe_openenv.config import ServerConfig
from swe_openenv.export.folder import BASE_IMAGE, TEMPLATE, Export, check_name, content_of
from swe_openenv.export.needs import CORE, distributions, extras, input_files
from swe_openenv.plans import load_plan

_RECORDED = "replay"
"""The engine that needs no model."""
_NOT_ISOLATED = (
    "the sandbox 'local' needs namespaces of users, which a plain container has not: set "
    "sandbox.local.unisolated = true in server/env.toml, or choose another sandbox"
)


def content_of_server(
    config: Path | None,
    name: str,
    requirements: Sequence[str] = (),
    wheels: Path | None = None,
    base_image: str | None = None,
) -> tuple[dict[str, bytes | Path], Sequence[str]]:
    """Return the files of a folder that serves `config`, and notes for the user.

    Args:
        config: TOML file with settings; None for the demo tasks.
        name: Name of the environment.
        requirements: Further requirements of the server.
        wheels: Empty folder for the wheels of the packages, which the image then installs; None for packages
            of the index.
        base_image: Image on which the server's is based.

    Raises:
        UsageError: The name, a setting, a plugin, a task or a file that the settings name is wrong.
        SweError: A wheel cannot be built.
    """
    check_name(name)
    with as_file(TEMPLATE / "env.toml") as demo:
        plan, plugins = load_plan(config or demo)
        text = (config or demo).read_text(encoding="utf-8")
    settings = plan.settings
    limits, server = settings.limits, plan.worker.config
    if not isinstance(server, ServerConfig):
        raise ConfigError(
            "the worker 'openenv' is another plugin's: block that plugin with run.extra_plugins"
        )
    packages = distributions(plan, plugins)
    ours = [f"{each}{extras(plan) if each == CORE else ''}=={at}" for each, at in packages.items()]
    export = Export(
        name=name,
        settings=text,
        inputs=input_files(settings),
        requirements=[*ours, *requirements],
        wheels=[] if wheels is None else make_wheels(map(distribution, packages), wheels),
        base_image=base_image or BASE_IMAGE,
        split=server.split,
        tasks=len(plan.tasks),
        interactive=server.interactive,
        cpus=settings.resources.cpus,
        memory_mb=settings.resources.memory_mb,
        disk_mb=settings.resources.disk_mb,
        episode=limits.open + limits.prepare + limits.agent + limits.verdict,
        alone=_alone(plan),
    )
    refuses = plan.sandbox.name == "local" and not plan.sandbox.config.model_dump().get("unisolated")
    return content_of(export), [_NOT_ISOLATED] if refuses else []


def _alone(plan: Plan) -> bool:
    """Return whether the run of a plan needs no network: local sandboxes, and no model but a recorded one."""
    engine = plan.model_side
    recorded = engine is None or (isinstance(engine, ResolvedComponent) and engine.name == _RECORDED)
    return recorded and plan.sandbox.name == "local"
