"""The effective settings of a run: each value with the layer that it comes from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from pydantic_settings import EnvSettingsSource

from swe_core.api.agent import AgentSpec
from swe_core.errors import UsageError, sentence
from swe_core.plugins.builtins import RECORDED_ENGINE
from swe_core.plugins.manager import HOOKS, PluginSet, Role
from swe_core.run.components import ResolvedComponent, default_component, resolve_component
from swe_core.run.plan import engine_of, executor_of, grader_of, refuse_unknown_tables, with_filled_in
from swe_core.run.settings import NESTED, PREFIX, Settings, command_line_values, read_settings_file
from swe_core.run.task_selection import TaskSelection, selection
from swe_core.system.redaction import MARK, secret_settings
from swe_core.system.urls import without_secrets

T = TypeVar("T")

_MISSING = object()
_RUN_OPTIONS: Mapping[Role, Mapping[str, str]] = {
    "engine": {"url": "engine_url", "model": "model", "file": "recording"},
    "executor": {"workers": "workers", "address": "address"},
}
"""Role → setting of a component → the run option that sets it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from.

    Args:
        layer: "default", "file", "environment", "command line", "plugin", "worker", "tasks" or "engine".
        name: The file, variable, plugin, worker or task source, or what the engine found it by; "" for none.
    """

    layer: str
    name: str = ""

    def __str__(self) -> str:
        words = {
            "environment": f"environment variable {self.name}",
            "tasks": f"recording of the tasks {self.name}",
            "engine": self.name,
        }
        return words.get(self.layer) or f"{self.layer} {self.name}".strip()


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Entry:
    """One effective value.

    Args:
        table: The table that it is in, such as ("engine", "vllm").
        key: Its name there: several parts where the setting is a table.
        value: As JSON; None where it is unset, a mark in place of a secret.
        origin: Where it comes from.
        choice: Whether it names the component of a role.
    """

    table: tuple[str, ...]
    key: tuple[str, ...]
    value: Any
    origin: Origin
    choice: bool = False


@dataclass(slots=True)
class Effective:
    """The effective settings.

    Args:
        entries: The values, table by table.
        idle: Table of a component that the run does not use → a sentence about that.
        problems: Why the run cannot start, one sentence each.
    """

    entries: list[Entry] = field(default_factory=list)
    idle: dict[tuple[str, ...], str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Layers:
    """The layers of settings. The arguments are those of `load_settings`.

    Raises:
        ConfigError: A layer is wrong.
    """

    def __init__(
        self,
        file: Path | None = None,
        sets: Sequence[str] = (),
        command_line: Mapping[str, Mapping[str, Any]] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self._command_line = command_line_values(sets, command_line, overrides)
        self._environment = EnvSettingsSource(Settings)()
        self._file = read_settings_file(file)
        self._file_name = str(file)

    def origin(self, path: Sequence[str]) -> Origin | None:
        """Return the layer that sets the value at `path`; None where none does."""
        if _at(self._command_line, path) is not _MISSING:
            return Origin("command line")
        lower = [part.lower() for part in path]
        if _at(self._environment, lower) is not _MISSING:
            return Origin("environment", _variable(lower))
        if _at(self._file, path) is not _MISSING:
            return Origin("file", self._file_name)
        return None


@dataclass(slots=True)
class _Used:
    """What the run would use: role → component, without those that cannot be chosen."""

    components: dict[Role, ResolvedComponent] = field(default_factory=dict)
    tasks: TaskSelection | None = None


def effective_settings(settings: Settings, plugins: PluginSet, layers: Layers) -> Effective:
    """Return every setting of a run and of its components, with its origin.

    A component that cannot be chosen is a problem of the result, and no error.
    """
    found = Effective()
    used = _used(settings, plugins, found.problems)
    engine = used.components.get("engine")
    filled: Mapping[str, str] = {}
    if engine is not None:
        settings, filled = with_filled_in(settings, engine), engine.config.filled_in()
    options = _RUN_OPTIONS["engine"]
    origin_of_option = {option: filled[key] for key, option in options.items() if key in filled}
    values = settings.model_dump(mode="json")
    for section, info in Settings.model_fields.items():
        if not (isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)):
            continue
        for key in info.annotation.model_fields:
            value, origin = values[section][key], layers.origin((section, key))
            choice = section == "run" and key in HOOKS
            if choice and value is None:
                value, origin = _choice(cast(Role, key), used, plugins, layers)
            if section == "run" and key in origin_of_option:
                origin = Origin("engine", origin_of_option[key])
            found.entries.append(
                Entry((section,), (key,), _shown((section, key), value), origin or DEFAULT, choice)
            )
    for role in HOOKS:
        found.entries += _component(role, used, values, layers)
        for name, table in values[role].items():
            chosen = used.components.get(role)
            if chosen is None or name != chosen.name:
                found.idle[role, name] = _why_idle(role, chosen)
                found.entries += _given((role, name), (), table, layers)
    return found


def _used(settings: Settings, plugins: PluginSet, problems: list[str]) -> _Used:
    """Choose the components as `plan_run` does, and collect the problems."""

    def attempt(choose: Callable[[], T]) -> T | None:
        try:
            return choose()
        except UsageError as error:
            problems.append(sentence(error))
            return None

    run, used = settings.run, _Used()
    attempt(lambda: refuse_unknown_tables(settings, plugins))
    worker = attempt(lambda: resolve_component(settings, plugins, "worker", run.worker))
    if worker is None:
        return used

    def with_default(role: Role, explicit: str | None) -> ResolvedComponent | None:
        default = default_component(role, worker)
        return attempt(lambda: resolve_component(settings, plugins, role, explicit, default=default))

    tasks = used.tasks = attempt(lambda: selection(settings, plugins))
    agent = with_default("agent", run.agent)
    spec = attempt(lambda: cast(AgentSpec, agent.create())) if agent is not None else None
    engine = None
    if spec is not None and spec.dialect is not None and tasks is not None and run.mode == "gate":
        preferred = worker.registered.component.defaults.get("engine")
        engine = attempt(lambda: engine_of(settings, plugins, tasks.source, preferred))
    found: dict[Role, ResolvedComponent | None] = {
        "agent": agent,
        "sandbox": with_default("sandbox", run.sandbox),
        "engine": engine,
        "grader": attempt(lambda: grader_of(settings, plugins)),
        "tasks": None if tasks is None else _source(settings, plugins, tasks.name),
        "worker": worker,
        "executor": attempt(lambda: executor_of(settings, plugins, default_component("executor", worker))),
    }
    used.components = {role: one for role, one in found.items() if one is not None}
    return used


def _source(settings: Settings, plugins: PluginSet, name: str) -> ResolvedComponent | None:
    """Return the component of the task source; None where it needs a setting that `--tasks` gives."""
    try:
        return resolve_component(settings, plugins, "tasks", name)
    except UsageError:  # it was chosen before, with what `--tasks` gives
        return None


def _choice(role: Role, used: _Used, plugins: PluginSet, layers: Layers) -> tuple[str | None, Origin | None]:
    """Return the component that fills a role which no option names, and why it does."""
    component, worker = used.components.get(role), used.components.get("worker")
    name = component.name if component is not None else None
    if role == "tasks" and used.tasks is not None:
        name = used.tasks.name
    if name is None or worker is None:
        return name, None
    if plugin := next((one.plugin for one in plugins.selected(role) if one.name == name), None):
        return name, Origin("plugin", plugin)
    if worker.registered.component.defaults.get(role) == name:
        return name, Origin("worker", worker.name)
    if (role, name) == ("engine", RECORDED_ENGINE) and used.tasks is not None:
        return name, layers.origin(("run", "recording")) or Origin("tasks", used.tasks.name)
    return name, None


def _component(role: Role, used: _Used, values: Mapping[str, Any], layers: Layers) -> Iterator[Entry]:
    """Yield the settings of the component that fills a role, but for those that a run option sets."""
    component, worker = used.components.get(role), used.components.get("worker")
    if component is None:
        return
    table, filled = (role, component.name), component.config.filled_in()
    preset: Mapping[str, Any] = worker.registered.component.settings.get(role, {}) if worker else {}
    for key, value in component.config.model_dump(mode="json").items():
        if values["run"].get(_RUN_OPTIONS.get(role, {}).get(key, "")) is not None:
            continue
        default = DEFAULT
        if key in preset.get(component.name, {}):
            default = Origin("worker", worker.name if worker else "")
        if key in filled:
            default = Origin("engine", filled[key])
        if role == "engine" and key == "file" and value is not None and used.tasks is not None:
            default = Origin("tasks", used.tasks.name)
        yield from _given(table, (key,), value, layers, default)


def _given(
    table: tuple[str, ...], key: tuple[str, ...], value: Any, layers: Layers, default: Origin = DEFAULT
) -> Iterator[Entry]:
    """Yield a value, or each value in a table."""
    if isinstance(value, dict) and (value or not key):
        for name, inner in value.items():
            yield from _given(table, (*key, str(name)), inner, layers, default)
        return
    if any(secret_settings({key[-1]: value})):
        value = MARK
    value = _shown((table[0], *key), value)
    yield Entry(table, key, value, layers.origin((*table, *key)) or default)


def _shown(key: tuple[str, ...], value: Any) -> Any:
    """Return a value without the secrets that the URL of an engine may have."""
    if key not in (("run", "engine_url"), ("engine", "url")) or value is None:
        return value
    if isinstance(value, str):
        return without_secrets(value)
    return [without_secrets(str(one)) for one in value]


def _why_idle(role: Role, chosen: ResolvedComponent | None) -> str:
    if chosen is None:
        return f"not used: the run has no {role}" if role == "engine" else f"the {role} is unknown"
    return f"not used: the {role} is {chosen.name}"


def _at(table: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = table
    for part in path:
        if not isinstance(found, Mapping) or part not in found:
            return _MISSING
        found = found[part]
    return found


def _variable(path: Sequence[str]) -> str:
    """Return the environment variable that sets the value at `path`, or a table that has it."""
    for length in range(len(path), 0, -1):
        name = PREFIX + NESTED.join(path[:length])
        for variable in os.environ:
            if variable.lower() == name.lower():
                return variable
    return PREFIX + NESTED.join(path).upper()
