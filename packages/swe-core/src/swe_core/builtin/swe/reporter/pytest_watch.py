# The first part of the pytest plugin: what must not change while tests run. It follows `modules.py`, runs in
# the image's own Python and pytest, and works with Python 3.6 and pytest 3.10.
#
# mypy: ignore-errors
# ruff: noqa: F821, RUF005, SIM905 (names of the other parts; Python 3.6)
import ast  # noqa: F401 (so that it is watched)
import builtins
import os
import sys
import types
import unittest.case  # noqa: F401 (so that it is watched)
from operator import attrgetter, is_, itemgetter

WATCHED = (
    "_pytest.assertion _pytest.fixtures _pytest.nodes _pytest.outcomes _pytest.python _pytest.python_api "
    "_pytest.raises _pytest.recwarn _pytest.reports _pytest.runner _pytest.skipping "
    "_pytest.unittest ast functools inspect pluggy pytest unittest"
).split()
WATCHED_ROOTS = tuple(root + "." for root in WATCHED)
# Of what is watched, that which each test passes through: it is looked at before each call. The second is
# that of unittests.
CORE = (
    *("_pytest.python.Function.", "_pytest.python.pytest_pyfunc_call", "_pytest.reports.TestReport."),
    *("_pytest.runner.", "_pytest.skipping.", "builtins.AssertionError"),
    *("pluggy._call", "pluggy._exec", "pluggy._hooks", "pluggy._result", "pluggy.callers", "pluggy.hooks"),
)
CORE_OF_CASES = (
    *("_pytest.unittest.TestCaseFunction.", "unittest.case.TestCase.", "unittest.case._Outcome."),
)  # fmt: skip
# Classes of test runners to which names may not be added, also for the time of one call.
GROWING = (
    *("_pytest.nodes.Node", "_pytest.nodes.Item", "_pytest.python.PyobjMixin", "_pytest.python.Function"),
    *("_pytest.runner.CallInfo", "_pytest.reports.TestReport"),
)
# What no test calls: options, summaries, and what adds and removes hooks.
UNCALLED = (
    *("addoption", "_summary", "_sessionstart", "_sessionfinish", "_configure", "show_test_item"),
    *("set_specification", "has_spec", "_add_hookimpl", "_remove_plugin", "is_historic", "call_historic"),
    *("call_extra", "__repr__", "__setattr__", "collect_one_node", "normalize_hookimpl_opts", "varnames"),
)
GROWING_OF_CASES = ("unittest.case.TestCase",)
CODE = (types.FunctionType, type, property, staticmethod, classmethod)
CONSTANT = (bool, int, float, str, bytes, tuple, frozenset)
UNUSED = ("ast._Unparser", "unittest.loader", "unittest.main", "unittest.runner")  # by pytest
SET_LATER = ("_getini_unknown_type", "_config", "_current")
MADE_BY_CODE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: others cannot be changed
# Modules that tests compare values with, and that may be loaded after the watch was made.
COMPARING = (
    *("unittest.mock", "numpy.testing", "numpy.testing._private.utils", "pandas._testing"),
    *("pandas._testing.asserters", "torch.testing._comparison", "django.test.testcases"),
)


def make_quick_look(entries):
    """A function that says whether all entries are as they were, without a line of Python for each; of
    functions it sees the code alone."""
    get_code = attrgetter("__code__")
    named, codes = {}, {}
    seen = set()
    for _, space, name, value, made in entries:
        if (id(space), name) in seen:  # a class that has two names, say
            continue
        seen.add((id(space), name))
        _, names, values = named.setdefault(id(space), (space, [], []))
        names.append(name)
        values.append(value)
        if made:
            function = raw_function(value)
            codes[id(function)] = (function, made[0])
    # A getter of one name would not give a tuple.
    spaces = [
        (itemgetter(names[0], *names), space, values[:1] + values) for space, names, values in named.values()
    ]
    functions = [function for function, _ in codes.values()]
    codes = [code for _, code in codes.values()]

    def unchanged():
        try:
            for get, space, values in spaces:
                if not all(map(is_, get(space), values)):
                    return False
        except KeyError:
            return False
        return all(map(is_, map(get_code, functions), codes))

    return unchanged


def make_watch():
    """A function that names what was replaced in the test runner since now."""
    marker = object()
    entries = []
    grown = []
    spaces = []  # of modules: a name in one of them would stand before the builtin of that name
    installed = {}  # functions of plugins, by their own name

    def add(where, space, constants=()):
        for name, value in list(space.items()):
            of = getattr(raw_function(value) or value, "__module__", None) or ""
            theirs = isinstance(value, CODE) and (of + ".").startswith(WATCHED_ROOTS + ("_pytest.",))
            theirs = theirs or type(value).__module__.startswith(("_pytest.", "unittest."))
            if (theirs or (isinstance(value, constants) and name[:2] != "__")) and name not in SET_LATER:
                entries.append((where + "." + name, space, name, value, makings(value)))

    def add_class(where, kind):
        add(where, vars(kind), () if kind.__module__ in ("ast", "inspect") else CONSTANT)
        grown.append((where, vars(kind), set(vars(kind)), kind))
        seen.add(id(kind))

    seen = set()
    for module_name, module in list(sys.modules.items()):
        if module is None or not (module_name + ".").startswith(WATCHED_ROOTS) or module_name in UNUSED:
            continue
        space = vars(module)
        spaces.append((module_name, space, BUILTINS.intersection(space)))
        add(module_name, space)
        for name, value in list(space.items()):
            where = module_name + "." + name
            if isinstance(value, type) and value.__module__ == module_name and where not in UNUSED:
                add_class(where, value)
    for _, _, _, kind in list(grown):  # such as abc.ABC
        for base in kind.__mro__ + type(kind).__mro__:
            if id(base) not in seen and base.__flags__ & MADE_BY_CODE:
                add_class(base.__module__ + "." + base.__name__, base)
    for name, value in vars(builtins).items():
        if name != "_":
            entries.append(("builtins." + name, vars(builtins), name, value, ()))
    for name in ("write", "_exit", "fork", "getpid"):
        entries.append(("os." + name, vars(os), name, getattr(os, name), ()))

    unchanged = {}  # by where the entries begin; each made when it is asked for, and again after a change

    def quick(start):
        if start not in unchanged:
            unchanged[start] = make_quick_look(among(entries, start))
        return unchanged[start]()

    def among(found, start):
        """Those with names that begin so; of the core, only what is called for a test."""
        found = [one for one in found if one[0].startswith(start)]
        if start:
            found = [one for one in found if raw_code(one[3]) is not None or one[0].startswith("builtins")]
            found = [one for one in found if not one[0].endswith(UNCALLED)]
        return found

    def forgive(root, plugins):
        """Take over what was replaced by code that is not below `root`: plugins that are installed."""
        for plugin in plugins:
            for name, value in list(vars(plugin).items()) if isinstance(plugin, types.ModuleType) else ():
                code = raw_code(value)
                if code is not None and not below(root, code.co_filename):
                    installed.setdefault(name.lstrip("_"), []).append((value, code))
        for place, entry in enumerate(entries):
            now = entry[1].get(entry[2], marker)
            if now is entry[3]:
                continue
            code = raw_code(now)
            if code is not None and not below(root, code.co_filename):
                entries[place] = entry[:3] + (now, makings(now))

    def configured():
        """Take over what these plugins replaced or added since, as pytest-subtests does, by functions of
        theirs with the same name; code under test may be loaded by now."""
        for where, space, names, kind in grown:
            for name in space.keys() - names:
                entry = (where + "." + name, space, name, space[name], makings(space[name]))
                known = "original" in name and any(old[3] is entry[3] for old in entries)
                function = raw_function(entry[3])
                theirs = any(function is one for found in installed.values() for one, _ in found)
                harmless = (known or theirs or entry[3] is False) and not any(
                    name in vars(base) for base in kind.__mro__[1:]
                )
                if harmless or (entry[3], raw_code(entry[3])) in installed.get(name, ()):
                    entries.append(entry)
                    names.add(name)
        for place, entry in enumerate(entries):
            now = entry[1].get(entry[2], marker)
            if now is not entry[3] and (now, raw_code(now)) in installed.get(entry[2], ()):
                entries[place] = entry[:3] + (now, makings(now))
        unchanged.clear()

    def follow(where, space, names):
        """Watch these entries of a module or class too."""
        for name in names:
            value = space.get(name, marker)
            if value is not marker:
                entries.append((where + "." + name, space, name, value, makings(value)))
        if "__builtins__" in space:
            spaces.append((where, space, BUILTINS.intersection(space)))
        unchanged.clear()

    def watch(whole):
        changed = []
        if whole or not quick(""):
            changed = replaced(entries)
            if not changed:  # replacements were taken over
                unchanged.clear()
        for where, space, names in spaces:
            if not BUILTINS.isdisjoint(space):
                changed += [where + "." + name for name in BUILTINS.intersection(space) - names]
        for where, space, names, _ in grown:
            if len(space) != len(names):
                new = [name for name in space if name not in names and not name.startswith("_pytest")]
                changed += [where + "." + name for name in new]
        return changed

    core_grown = {CORE: [one for one in grown if one[0] in GROWING]}
    core_grown[CORE_OF_CASES] = [one for one in grown if one[0] in GROWING_OF_CASES]

    def watch_core(start):
        changed = [] if quick(start) else replaced(among(entries, start))
        for where, space, names, _ in core_grown[start]:
            if len(space) != len(names):
                new = [name for name in space if name not in names and not name.startswith("_pytest")]
                changed += [where + "." + name for name in new]
        return changed

    return watch, forgive, configured, follow, watch_core
