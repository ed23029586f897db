"""Find what the author of a plugin module has forgotten: a hook without `@hookimpl`, or with a wrong name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from types import FunctionType

import pluggy

from swe_core.plugins import hookspecs

HOOKS = frozenset(name for name in dir(hookspecs) if name.startswith("swe_"))
"""Names of all hooks."""

_ADD = "add it (from swe_core import hookimpl)"


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
    return (
        "it has no function with @hookimpl: add one such as @hookimpl def swe_agents(): return [Component(…)]"
    )


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
