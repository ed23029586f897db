"""PluginSet: discover, select, block and list plugins, and report broken ones."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import pluggy
from pydantic import InstanceOf, TypeAdapter

from swe_core.api.component import Component, RunOption
from swe_core.api.contracts import FILE_PLUGIN, calling, check_component, checked, failed
from swe_core.errors import PluginError, sentence
from swe_core.plugins import hookspecs
from swe_core.plugins.builtins import BUILTINS, KNOWN_DISTRIBUTIONS, REMOVED
from swe_core.plugins.forgotten import HOOKS as HOOK_NAMES
from swe_core.plugins.forgotten import forgotten, unmarked

T = TypeVar("T")

GROUP = "swe_core"
ALLOW_VARIABLE = "SWE_PLUGINS"

Role = Literal["agent", "sandbox", "grader", "engine", "tasks", "worker", "executor"]
HOOKS: Mapping[Role, str] = {
    "agent": "swe_agents",
    "sandbox": "swe_sandboxes",
    "grader": "swe_graders",
    "engine": "swe_engines",
    "tasks": "swe_tasks",
    "worker": "swe_workers",
    "executor": "swe_executors",
}


_FLAG = re.compile(r"--[a-z][a-z0-9-]+")
_SETTING = re.compile(r"\w+(\.[\w-]+)+")


@dataclass(frozen=True, slots=True)
class RegisteredComponent:
    """A component and the plugin that offers it."""

    role: Role
    component: Component[Any]
    plugin: str

    @property
    def name(self) -> str:
        """Return the component's name."""
        return self.component.name


@dataclass(slots=True)
class Plugin:
    """One plugin, loaded or broken.

    Args:
        name: Name of its entry point, stem of its file or name of its module.
        origin: Distribution name, file path or module name.
        version: The distribution's version; "" without one.
        builtin: Whether it ships with the core.
        components: Its components; empty when it is broken.
        options: Its options of `swe-core run`; empty when it is broken.
        error: One sentence why it is broken, else None.
    """

    name: str
    origin: str
    version: str = ""
    builtin: bool = False
    components: list[RegisteredComponent] = field(default_factory=list)
    options: list[RunOption] = field(default_factory=list)
    error: str | None = None


class PluginSet:
    """The plugins of one process.

    Built-ins are always loaded. Installed plugins (entry points in group `swe_core`) are loaded too: all of
    them, or those that `select` names. A broken plugin stays in the set with its error and raises only when
    the user names it.

    Args:
        select: Names from `--plugins`; each becomes the choice for every role that it fills.
        extra: Values of `-p`: `no:NAME`, a module name, or a path of a `.py` file.
        allow: Allow-list of entry point names (`SWE_PLUGINS`); None allows all, an empty one none.

    Raises:
        PluginError: A selected plugin is unknown, blocked, not allowed or broken.
    """

    def __init__(
        self,
        select: Sequence[str] | None = None,
        extra: Sequence[str] = (),
        allow: Sequence[str] | None = None,
    ) -> None:
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.plugins: dict[str, Plugin] = {}
        self.chosen: list[str] = []
        self._blocked = {value[3:] for value in extra if value.startswith("no:")}
        for name in self._blocked - BUILTINS.keys() - _installed():
            near = _nearest(name, BUILTINS.keys() | _installed())
            raise PluginError(f"-p no:{name}: there is no plugin {name!r} to block{near}")
        self._allow = None if allow is None else set(allow)
        for name, module in BUILTINS.items():
            if name not in self._blocked:
                plugin = Plugin(name, "swe-core", _version("swe-core"), builtin=True)
                self._load(plugin, lambda module=module: importlib.import_module(module))
        self._load_installed(None if select is None else set(select))
        for value in extra:
            if not value.startswith("no:"):
                self._load_extra(value)
        for name in select or ():
            self._choose(name)

    # loading

    def _load_installed(self, wanted: set[str] | None) -> None:
        for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name):
            allowed = self._allow is None or point.name in self._allow
            if point.name in self._blocked or not allowed:
                continue
            if wanted is not None and point.name not in wanted:
                continue
            dist = point.dist
            plugin = Plugin(point.name, dist.name if dist else point.value, dist.version if dist else "")
            if point.name in self.plugins:
                taken = self.plugins[point.name]
                plugin.error = (
                    f"the plugin name {point.name!r} is taken twice, by {taken.origin!r} and by "
                    f"{plugin.origin!r}: uninstall one of them"
                )
                if taken.builtin:
                    self.plugins[f"{point.name} ({plugin.origin})"] = plugin
                else:
                    taken.error, taken.components, taken.options = plugin.error, [], []
                    if self.manager.has_plugin(point.name):
                        self.manager.unregister(name=point.name)
                continue
            self._load(plugin, point.load)

    def _load_extra(self, value: str) -> None:
        """Load `-p VALUE`, which unlike an installed plugin must not be broken."""
        if value.endswith(".py") or os.sep in value:
            path = Path(value)
            if not path.is_file():
                raise PluginError(f"-p {value!r}: there is no such file; give the path of a .py file")
            plugin = Plugin(path.stem, str(path))
            self._refuse_taken(plugin)
            self._load(plugin, lambda: _import_file(path))
        else:
            plugin = Plugin(value, value)
            self._refuse_taken(plugin)
            self._load(plugin, lambda: importlib.import_module(value))
        if plugin.error:
            meant = f"./{value}.py"
            near = f": did you mean -p {meant}?" if Path(meant).is_file() else ""
            raise PluginError(f"-p {value!r} cannot be loaded: {plugin.error}{near}")
        self._refuse_idle(plugin, f"-p {value!r}")
        self.chosen.append(plugin.name)

    def _refuse_idle(self, plugin: Plugin, what: str) -> None:
        """Refuse a named plugin that offers nothing: the run would use something else.

        Args:
            what: The plugin in a sentence.
        """
        module = self.manager.get_plugin(plugin.name)
        callers = self.manager.get_hookcallers(module) or ()
        if not callers:
            raise PluginError(f"{what} registers nothing: {forgotten(self.manager, module)}")
        filled = {registered.role for registered in plugin.components}
        for role, hook in HOOKS.items():
            if role not in filled and any(caller.name == hook for caller in callers):
                raise PluginError(f"{what} offers nothing: its {hook} returned no Component")

    def _refuse_taken(self, plugin: Plugin) -> None:
        if plugin.name in self.plugins:
            raise PluginError(
                f"-p {plugin.origin!r}: the plugin name {plugin.name!r} is already taken by "
                f"{self.plugins[plugin.name].origin!r}; rename the file or block the other with "
                f"-p no:{plugin.name}"
            )

    def _load(self, plugin: Plugin, load: Any) -> None:
        """Load one plugin and record what it offers, or any exception as its error."""
        self.plugins[plugin.name] = plugin
        try:
            module = load()
            _refuse_coroutines(self.manager, module)
            self.manager.register(module, plugin.name)
            self._check_hooks(plugin.name)
            plugin.components = self._collect(plugin.name)
            plugin.options = self._collect_options(plugin.name)
        except (Exception, SystemExit) as error:
            plugin.error = failed(error) if isinstance(error, Exception) else sentence(error)
            plugin.components = []
            if self.manager.has_plugin(plugin.name):
                self.manager.unregister(name=plugin.name)

    def _check_hooks(self, name: str) -> None:
        plugin = self.manager.get_plugin(name)
        for attribute in dir(plugin):
            if attribute not in HOOK_NAMES and self.manager.parse_hookimpl_opts(plugin, attribute):
                raise PluginError(
                    f"it implements an unknown hook {attribute!r}{_nearest(attribute, HOOK_NAMES)}"
                )
        if problem := unmarked(self.manager, plugin):
            raise PluginError(problem)

    def _collect(self, name: str) -> list[RegisteredComponent]:
        components: list[RegisteredComponent] = []
        for role, hook in HOOKS.items():
            for impl in getattr(self.manager.hook, hook).get_hookimpls():
                if impl.plugin_name != name:
                    continue
                for component in _returned(impl.function, hook, Component):
                    check_component(component)
                    if any(
                        (registered.role, registered.name) == (role, component.name)
                        for registered in components
                    ):
                        raise PluginError(f"it offers the {role} {component.name!r} twice")
                    components.append(RegisteredComponent(role, component, name))
        return components

    def _collect_options(self, name: str) -> list[RunOption]:
        options: list[RunOption] = []
        for impl in self.manager.hook.swe_options.get_hookimpls():
            if impl.plugin_name != name:
                continue
            for option in _returned(impl.function, "swe_options", RunOption):
                if not _FLAG.fullmatch(option.flag) or not _SETTING.fullmatch(option.setting):
                    raise PluginError(
                        f"its option {option.flag!r} for the setting {option.setting!r}: expected a flag "
                        "such as '--my-option' and a setting such as 'worker.mine.my_option'"
                    )
                options.append(option)
        return options

    # choosing

    def _choose(self, name: str) -> None:
        plugin = self.plugins.get(name)
        if plugin is not None:
            if plugin.error:
                raise PluginError(
                    f"the plugin {name!r} ({plugin.origin} {plugin.version}) is broken: {plugin.error}"
                )
            self._refuse_idle(plugin, f"the plugin {name!r} ({plugin.origin} {plugin.version})")
        elif not any(registered.name == name for registered in self.components()):
            raise PluginError(self._unknown(name))
        self.chosen.append(name)

    def _unknown(self, name: str) -> str:
        if name in self._blocked:
            return f"{name!r} is blocked by -p no:{name}: leave that out, or choose another"
        installed = _installed()
        if name in installed and not (self._allow is None or name in self._allow):
            return f"the plugin {name!r} is installed but not in {ALLOW_VARIABLE}: add it there or unset it"
        if name in installed:
            return f"the plugin {name!r} is installed but not among --plugins: add it there"
        if name in KNOWN_DISTRIBUTIONS:
            return f"the plugin {name!r} is not installed: pip install {KNOWN_DISTRIBUTIONS[name]}"
        if name in REMOVED:
            return f"the plugin {name!r} no longer exists: {REMOVED[name]}"
        known = installed | KNOWN_DISTRIBUTIONS.keys() | {registered.name for registered in self.components()}
        return (
            f"unknown plugin {name!r}{_nearest(name, known)}; if it is a distribution of its own, install it "
            f"first: pip install swe-agents-{name} (or swe-sandbox-{name}, swe-trainer-{name})"
        )

    def components(self, role: Role | None = None) -> list[RegisteredComponent]:
        """Return the components of all working plugins, of one role or of all."""
        return [
            registered
            for plugin in self.plugins.values()
            for registered in plugin.components
            if role is None or registered.role == role
        ]

    def find(self, role: Role, name: str) -> RegisteredComponent:
        """Return the component `name` of `role`.

        Raises:
            PluginError: No plugin or more than one offers it, or its plugin is broken.
        """
        found = [registered for registered in self.components(role) if registered.name == name]
        if len(found) > 1:
            names = _enumeration([repr(registered.plugin) for registered in found])
            raise PluginError(
                f"the plugins {names} each offer the {role} {name!r}: block all but one with -p no:PLUGIN"
            )
        if found:
            return found[0]
        broken = self.plugins.get(name)
        if broken is not None and broken.error:
            raise PluginError(f"the plugin {name!r} is broken: {broken.error}")
        if name in self._blocked or (broken is None and name in _installed()):
            raise PluginError(self._unknown(name))
        if name in REMOVED:
            raise PluginError(f"the {role} {name!r} no longer exists: {REMOVED[name]}")
        have = sorted({registered.name for registered in self.components(role)})
        hint = None if name in self.plugins else KNOWN_DISTRIBUTIONS.get(name)
        remedy = f"pip install {hint}" if hint else f"there are: {', '.join(have) or 'none'}"
        raise PluginError(f"unknown {role} {name!r}{_nearest(name, have)}; {remedy}")

    def selected(self, role: Role) -> list[RegisteredComponent]:
        """Return the components of `role` that the plugins of `--plugins` and `-p` offer."""
        candidates: dict[tuple[str, str], RegisteredComponent] = {}
        for name in self.chosen:
            plugin = self.plugins.get(name)
            components = plugin.components if plugin else [o for o in self.components() if o.name == name]
            candidates |= {(o.plugin, o.name): o for o in components if o.role == role}
        return list(candidates.values())

    def choose(self, role: Role, explicit: str | None, default: str | None) -> RegisteredComponent | None:
        """Return the component that fills `role`.

        The first of these decides: `explicit`, the role's own option; the plugins of `--plugins` and `-p`;
        `default`, a built-in's name or None.

        Raises:
            PluginError: Two selected plugins fill the role, or the name is unknown.
        """
        if explicit is not None:
            return self.find(role, explicit)
        found = self.selected(role)
        if len(found) > 1:
            names = _enumeration([f"{each.name!r} (plugin {each.plugin!r})" for each in found])
            raise PluginError(f"{names} can each be the {role}: choose one with --{role} NAME")
        if found:
            return found[0]
        return None if default is None else self.find(role, default)

    # calling

    def notify(self, hook: str, **values: object) -> list[str]:
        """Call a notification hook of every plugin and collect the errors.

        Returns:
            One sentence for each plugin whose implementation raised.
        """
        problems: list[str] = []
        for impl in getattr(self.manager.hook, hook).get_hookimpls():
            try:
                impl.function(*(values[name] for name in impl.argnames))
            except Exception as error:  # a notification must not end the rollout
                problems.append(f"the plugin {impl.plugin_name!r} failed in {hook}: {sentence(error)}")
        return problems


def allow_list(environment: Mapping[str, str]) -> list[str] | None:
    """Return the allow-list in `SWE_PLUGINS`; None where the variable is unset."""
    value = environment.get(ALLOW_VARIABLE)
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _installed() -> set[str]:
    """Return the names of all entry points, loaded or not."""
    return {point.name for point in importlib.metadata.entry_points(group=GROUP)}


def _enumeration(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _import_file(path: Path) -> ModuleType:
    name = FILE_PLUGIN + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # also SystemExit: a half-loaded module must not stay
        del sys.modules[name]
        raise
    return module


def _returned(implementation: Callable[[], object], hook: str, of: type[T]) -> list[T]:
    """Return what an implementation of a hook returned.

    Raises:
        PluginError: It raised, or returned something else than an iterable of objects of the class.
    """
    example = "Component('mine', lambda config: Mine())" if of is Component else f"{of.__name__}(…)"
    expected = f"a list of {of.__name__}s such as [{example}]"
    kind: TypeAdapter[list[T]] = TypeAdapter(list[InstanceOf[of]])  # type: ignore[valid-type]  # of is a value
    with calling(PluginError, "it", hook):
        return checked(implementation(), kind, PluginError, "it", hook, expected)


def _refuse_coroutines(manager: pluggy.PluginManager, module: object) -> None:
    """Refuse `async def` hooks: pluggy would call them and drop the coroutine."""
    for name in dir(module):
        if manager.parse_hookimpl_opts(module, name) and inspect.iscoroutinefunction(getattr(module, name)):
            raise PluginError(f"its hook {name!r} is 'async def'; hooks are plain functions")
