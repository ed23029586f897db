"""Which component fills a role, and with which settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_core.api.component import Config
from swe_core.errors import ConfigError, PluginError, SweError, sentence
from swe_core.plugins.builtins import DEFAULTS
from swe_core.plugins.manager import PluginSet, RegisteredComponent, Role, allow_list
from swe_core.run.settings import RunOptions, Settings, validate

Shared = Mapping[str, tuple[str, Any]]
"""Settings of a component that are options of the run: setting → (the option's name, its value or None)."""


@dataclass(frozen=True, slots=True)
class ResolvedComponent:
    """A component that fills a role, with its validated settings."""

    registered: RegisteredComponent
    config: Config

    @property
    def name(self) -> str:
        """The component's name."""
        return self.registered.name

    def with_settings(self, shared: Shared) -> ResolvedComponent:
        """The same component with these options of the run over its settings.

        Raises:
            ConfigError: It takes no such option, or not this value.
        """
        return ResolvedComponent(
            self.registered, _config(self.registered, self.config.model_dump(exclude_unset=True), shared)
        )

    def create(self) -> Any:
        """Build it; its role says what it is.

        Raises:
            SweError: As the plugin raised it.
            PluginError: The plugin raised anything else.
        """
        try:
            return self.registered.component.create(self.config)
        except SweError:
            raise
        except Exception as error:  # the boundary to foreign code
            raise PluginError(
                f"the {self.registered.role} {self.name!r} of the plugin {self.registered.plugin!r} "
                f"cannot be created: {sentence(error)}"
            ) from error


def load_plugins(run: RunOptions, environment: Mapping[str, str] = os.environ) -> PluginSet:
    """Load the plugins that a run names, of those that SWE_PLUGINS of `environment` allows.

    Raises:
        PluginError: A plugin that the run names cannot be loaded.
    """
    return PluginSet(run.plugins, run.extra_plugins, allow_list(environment))


def default_component(role: Role, worker: ResolvedComponent) -> str:
    """Return what fills `role` where the user chooses nothing: the worker's choice or the core's."""
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
    """The component that fills `role`; `explicit` is what its own option says.

    Args:
        preset: By component, settings where the user set none.

    Raises:
        PluginError: Nothing fills it, or two things do.
        ConfigError: Its settings are wrong, or it takes no such option.
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
    """A component's settings: its own table, and over it the run's options that concern it."""
    values = dict(table)
    for key, (option, value) in shared.items():
        if value is None:
            continue
        if key not in registered.component.config.model_fields:
            raise ConfigError(f"the {registered.role} {registered.name!r} takes no {option}: leave it out")
        values[key] = value
    return validate(registered.component.config, values, f"the {registered.role} {registered.name!r}")
