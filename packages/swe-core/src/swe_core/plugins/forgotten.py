"""Find what the author of a plugin module has forgotten: a hook without `@hookimpl`, or with a wrong name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from types import FunctionType

import pluggy

from swe_core.api.agent import AgentSpec
from swe_core.api.component import Component
from swe_core.api.engine import Engine
from swe_core.api.executor import Executor
from swe_core.plugins import hookspecs

HOOKS = frozenset(name for name in dir(hookspecs) if name.startswith("swe_"))
"""Names of all hooks."""

_ADD = "add it (from swe_core import hookimpl)"
_CONTRACTS = {AgentSpec: "swe_agents", Engine: "swe_engines", Executor: "swe_executors"}
_METHODS = {"open": "swe_sandboxes", "grade": "swe_graders", "tasks": "swe_tasks"}


def unmarked(manager: pluggy.PluginManager, module: object) -> str | None:
    """Return a sentence if a function of the module has the name of a hook, but no `@hookimpl`."""
    for name, function in _functions(module):
        if name in HOOKS and not manager.parse_hookimpl_opts(module, name):
            return f"its function {function.__name__} lacks @hookimpl: {_ADD}"
    return None


def forgotten(manager: pluggy.PluginManager, module: object) -> str:
    """Return the likeliest reason why a module implements no hook, with the remedy."""
    for name, _ in _functions(module):
        if near := difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.7):
            return f"its function {name} is no hook: rename it to {near[0]}, and add @hookimpl"
    for name, kind in _classes(module):
        for attribute in dir(kind):
            if attribute in HOOKS or manager.parse_hookimpl_opts(kind, attribute):
                return f"its {attribute} is in the class {name}: move it to the module, with @hookimpl"
    for name, value in vars(module).items():
        if isinstance(value, Component):
            return f"its Component {name} is returned by no hook: {_hook('swe_agents', name)}"
    for name, kind in _classes(module):
        fits = [hook for contract, hook in _CONTRACTS.items() if issubclass(kind, contract)]
        fits += [hook for method, hook in _METHODS.items() if hasattr(kind, method)]
        if fits:
            example = _hook(fits[0], f"Component('mine', lambda config: {name}())")
            return f"its class {name} is offered by no hook: {example}"
    return f"it has no function with @hookimpl: {_hook('swe_agents', 'Component(…)')}"


def _hook(name: str, component: str) -> str:
    return f"add one such as @hookimpl def {name}(): return [{component}]"


def _functions(module: object) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions that the module itself defines."""
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == getattr(module, "__name__", None):
            yield name, value


def _classes(module: object) -> Iterator[tuple[str, type]]:
    """Yield the classes that the module itself defines."""
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == getattr(module, "__name__", None):
            yield name, value
