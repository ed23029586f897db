"""Choose the component that fills a role, and validate its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from swe_core.api import contracts
from swe_core.api.component import Config
from swe_core.errors import ConfigError, PluginError
from swe_core.plugins.builtins import DEFAULTS
from swe_core.plugins.manager import GROUP, RegisteredComponent, Role, allow_list
from swe_core.plugins.manager import PluginSet as PluginSet  # what `load_plugins` returns is public
from swe_core.run.settings import RunOptions, Settings, validate

Shared = Mapping[str, tuple[str, Any]]
"""Component setting → (the run option that sets it, the option's value or None)."""


@dataclass(frozen=True, slots=True)
class ResolvedComponent:
    """A component that fills a role, with its validated settings."""

    registered: RegisteredComponent
    config: Config

    @property
    def name(self) -> str:
        """Return the component's name."""
        return self.registered.name

    def with_settings(self, shared: Shared) -> ResolvedComponent:
        """Return this component with the run options in `shared` over its settings.

        Raises:
            ConfigError: The component has no such setting or does not accept the value.
        """
        return ResolvedComponent(
            self.registered, _config(self.registered, self.config.model_dump(exclude_unset=True), shared)
        )

    def create(self) -> Any:
        """Build the component's object.

        Raises:
            SweError: The plugin raised it.
            PluginError: The plugin raised any other exception, or the object does not fill the role.
        """
        role = self.registered.role
        what = "task source" if role == "tasks" else role
        who = f"the {what} {self.name!r} of the plugin {self.registered.plugin!r}"
        return contracts.create(self.registered.component, self.config, role, who)


def load_plugins(run: RunOptions, environment: Mapping[str, str] = os.environ) -> PluginSet:
    """Load the plugins that `run` names and `SWE_PLUGINS` in `environment` allows.

    The executor's plugin need not be among `run.plugins`: they say what runs, and it says where.

    Raises:
        PluginError: A plugin that `run` names cannot be loaded.
    """
    plugins = run.plugins
    if plugins is not None and run.executor is not None and entry_points(group=GROUP, name=run.executor):
        plugins = tuple(dict.fromkeys((*plugins, run.executor)))
    return PluginSet(plugins, run.extra_plugins, allow_list(environment))


def default_component(role: Role, worker: ResolvedComponent) -> str:
    """Return the default component of `role`: the worker's default, else the core's."""
    defaults = worker.registered.component.defaults
    return defaults[role] if role in defaults else DEFAULTS[role]


def resolve_component(
    settings: Settings,
    plugins: PluginSet,
    role: Role,
    explicit: str | None,
    shared: Shared | None = None,
    default: str | None = None,
    preset: Mapping[str, Mapping[str, Any]] | None = None,
) -> ResolvedComponent:
    """Return the component that fills `role`, with validated settings.

    Args:
        explicit: Value of the role's own option, such as `--agent`.
        preset: Component name → default settings, below the user's.

    Raises:
        PluginError: No component or more than one fills the role.
        ConfigError: A setting is wrong, or the component has no setting for a given option.
    """
    registered = plugins.choose(role, explicit, default or DEFAULTS[role])
    if registered is None:
        raise PluginError(f"nothing fills the role {role!r}: choose with --{role} NAME")
    table = {
        **(preset or {}).get(registered.name, {}),
        **getattr(settings, registered.role).get(registered.name, {}),
    }
    return ResolvedComponent(registered, _config(registered, table, shared or {}))


def _config(registered: RegisteredComponent, table: Mapping[str, Any], shared: Shared) -> Config:
    """Return a component's settings: its own table, overridden by run options."""
    values = dict(table)
    for key, (option, value) in shared.items():
        if value is None:
            continue
        if key not in registered.component.config.model_fields:
            raise ConfigError(f"the {registered.role} {registered.name!r} takes no {option}: leave it out")
        values[key] = value
    return validate(registered.component.config, values, f"the {registered.role} {registered.name!r}")
