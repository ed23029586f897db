# A pytest plugin, its first part: what must stay as it is while tests run. It goes on from `codes.py`, and
# runs in the image's own Python and pytest: nothing newer than Python 3.6 and pytest 3.10.
#
# mypy: ignore-errors
# ruff: noqa: F821, RUF005, SIM905, UP031
import ast  # noqa: F401 (so that it is watched, as is what follows it)
import builtins
import os
import sys
import types
import unittest.case  # noqa: F401 (so that it is watched)
from itertools import chain, repeat
from operator import attrgetter, is_, itemgetter, methodcaller

import pytest
from _pytest.assertion.rewrite import rewrite_asserts

WATCHED = (
    "_pytest.assertion _pytest.fixtures _pytest.nodes _pytest.outcomes _pytest.python _pytest.python_api "
    "_pytest.raises _pytest.recwarn _pytest.reports _pytest.runner _pytest.skipping _pytest.terminal "
    "_pytest.unittest ast pluggy pytest unittest"
).split()
WATCHED_ROOTS = tuple(root + "." for root in WATCHED)
# A class may not get a new one of these, which would stand before that of a class that it is derived from.
GROWING = ("Function", "TestCaseFunction", "CallInfo", "TestReport", "CollectReport", "TestCase")
# What stands between a test function and its verdict: hooks, and attributes that an item may have itself.
CALLED = tuple(
    "pytest_" + name
    for name in (
        *("runtest_protocol", "runtest_setup", "runtest_call", "runtest_teardown", "runtest_makereport"),
        *("runtest_logreport", "pyfunc_call"),
    )
)
# Of what is watched, that which each test passes through. It is looked at before and after each call, when
# honest fixtures may have replaced other things for a time.
CORE = (
    *("_pytest.python.Function.", "_pytest.python.pytest_pyfunc_call", "_pytest.reports.TestReport."),
    *("_pytest.runner.", "_pytest.skipping.", "_pytest.unittest.TestCaseFunction."),
    *("pluggy._call", "pluggy._exec", "pluggy._hooks", "pluggy._result", "pluggy.callers", "pluggy.hooks"),
    *("unittest.case.TestCase.", "unittest.case._Outcome.", "builtins.AssertionError"),
)
BUILTINS = frozenset(name for name in vars(builtins) if not name.startswith("__"))
OWN = ("config", "ihook", "obj", "repr_failure", "runtest", "session", "setup", "teardown")


def make_quick_look(entries):
    """A function that says whether all entries are as they were, without a line of Python for each."""
    get_code = attrgetter("__code__")
    named, codes = {}, {}
    for _, space, name, value, code in entries:
        _, names, values = named.setdefault(id(space), (space, [], []))
        names.append(name)
        values.append(value)
        if code is not None:
            function = raw_function(value)
            codes[id(function), id(code)] = (function, code)
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

    def add(where, space):
        for name, value in list(space.items()):
            plain = isinstance(value, (types.FunctionType, type, property, staticmethod, classmethod))
            if plain and name != "_getini_unknown_type":
                entries.append((where + "." + name, space, name, value, raw_code(value)))

    for module_name, module in list(sys.modules.items()):
        if module is None or not (module_name + ".").startswith(WATCHED_ROOTS):
            continue
        space = vars(module)
        spaces.append((module_name, space, BUILTINS.intersection(space)))
        add(module_name, space)
        for name, value in list(space.items()):
            if isinstance(value, type) and value.__module__ == module_name:
                add(module_name + "." + name, vars(value))
                if name in GROWING:
                    grown.append((module_name + "." + name, vars(value), set(vars(value)), value))
    for name, value in vars(builtins).items():
        if name != "_":
            entries.append(("builtins." + name, vars(builtins), name, value, None))
    for name in ("write", "_exit", "fork", "getpid"):
        entries.append(("os." + name, vars(os), name, getattr(os, name), None))

    unchanged = []  # of all entries, and of the core; made when it is asked for, and again after a change

    def quick(place):
        if not unchanged:
            unchanged.extend((make_quick_look(entries), make_quick_look(core_entries())))
        return unchanged[place]()

    def core_entries():
        return [entry for entry in entries if entry[0].startswith(CORE)]

    def forgive(root, plugins):
        """Take over what was replaced by code that is not below `root`: plugins that are installed."""
        for plugin in plugins:
            for name, value in list(vars(plugin).items()) if isinstance(plugin, types.ModuleType) else ():
                code = raw_code(value)
                if code is not None and not code.co_filename.startswith(root):
                    installed.setdefault(name.lstrip("_"), []).append((value, code))
        for place, entry in enumerate(entries):
            now = entry[1].get(entry[2], marker)
            if now is entry[3]:
                continue
            code = raw_code(now)
            if code is not None and not code.co_filename.startswith(root):
                entries[place] = entry[:3] + (now, code)

    def configured():
        """Take over what these plugins replaced or added since, as pytest-subtests does, by functions of
        theirs with the same name; code under test may be loaded by now."""
        for where, space, names, kind in grown:
            for name in space.keys() - names:
                entry = (where + "." + name, space, name, space[name], raw_code(space[name]))
                known = "original" in name and any(old[3] is entry[3] for old in entries)
                harmless = (known or entry[3] is False) and not any(
                    name in vars(base) for base in kind.__mro__[1:]
                )
                if harmless or entry[3:] in installed.get(name, ()):
                    entries.append(entry)
                    names.add(name)
        for place, entry in enumerate(entries):
            now = entry[1].get(entry[2], marker)
            if now is not entry[3] and (now, raw_code(now)) in installed.get(entry[2], ()):
                entries[place] = entry[:3] + (now, raw_code(now))
        del unchanged[:]

    def follow(where, space, names):
        """Watch these entries of a module or class too."""
        for name in names:
            value = space.get(name, marker)
            if value is not marker:
                entries.append((where + "." + name, space, name, value, raw_code(value)))
        del unchanged[:]

    def watch():
        changed = []
        if not quick(0):
            changed = replaced(entries)
            if not changed:  # replacements were taken over
                del unchanged[:]
        for where, space, names in spaces:
            if not BUILTINS.isdisjoint(space):
                changed += [where + "." + name for name in BUILTINS.intersection(space) - names]
        for where, space, names, _ in grown:
            if len(space) != len(names):
                new = [name for name in space if name not in names and not name.startswith("_pytest")]
                changed += [where + "." + name for name in new]
        return changed

    def watch_core():
        return [] if quick(1) else replaced(core_entries())

    return watch, forgive, configured, follow, watch_core


def make_files(known, odd, follow):
    """A function that says what of an item, and of its module, is not what its file has to define."""
    with_source = "source" in rewrite_asserts.__code__.co_varnames[:2]
    config, inspected = [None], set()

    def rewritten(source, path):
        tree = compile(source, path, "exec", ONLY_TREE, True)
        if with_source:
            rewrite_asserts(tree, source, path, config[0])
        else:
            rewrite_asserts(tree, path, config[0])
        return compile(tree, path, "exec", 0, True)

    names_in, is_defined, parts_in = make_defined(known, rewritten, plain)

    def inspect_module(module, path):
        """Compare all that a module defines, and watch it from now on."""
        functions = names_in(path)
        parts, others = parts_in(path, vars(module))
        for name in others:
            odd("%s in %s is another one" % (name, path))
        follow(path, vars(module), parts)
        for name in functions:
            *classes, last = name.split(".")
            space = vars(module)
            for kind in classes:
                found = space.get(kind)
                space = vars(found) if type(found) is type else {}
            if last in space and raw_function(space[last]) is not None:
                if is_defined(path, name, raw_function(space[last])) is False:
                    odd("%s in %s is another one" % (name, path))
                follow(path, space, [last])
        follow(path, vars(module), {name.split(".")[0] for name in functions if "." in name})

    def inspect(item):
        config[0] = item.config
        module = item.getparent(pytest.Module)
        function = getattr(item, "obj", None)
        if module is None or function is None:
            return
        path = str(getattr(module, "path", None) or module.fspath)
        if path not in known:
            return
        try:
            if path not in inspected:
                inspected.add(path)
                inspect_module(module.obj, path)
            classes = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
            name = getattr(item, "originalname", None) or item.name.partition("[")[0]
            if is_defined(path, ".".join(classes + [name]), function) is False:
                odd("code of %s" % item.nodeid)
        except Changed:
            odd("the file %s on the disk is another one" % path)

    return inspect


def make_guard(known, odd):
    """Functions: `remember` what an item is when it is collected, `compare` it and its hooks with that."""
    root = os.path.join(os.getcwd(), "")
    items, judged, kinds, last = {}, {}, [], [[], []]
    get_function, get_code, get_hookexec = map(attrgetter, ("function", "__code__", "_hookexec"))
    get_hookimpls = methodcaller("get_hookimpls")

    def own_of(item):
        return [vars(item).get(name, MISSING) for name in OWN]

    def remember(item):
        function = getattr(item, "obj", None)
        codes = None if function is None else code_of(function)
        items.setdefault(id(item), (item, type(item), own_of(item), codes))

    def called(hooks):
        """Who executes the hooks, who is called by them, and whose code that is; without a line of Python for
        each."""
        callers = list(map(getattr, repeat(hooks), CALLED))
        functions = list(map(get_function, chain.from_iterable(map(get_hookimpls, callers))))
        return [*map(type, callers), *map(get_hookexec, callers), *functions, *map(get_code, functions)]

    def judge(name, hook):
        """Say who is called by a hook that should not be."""
        if not kinds:
            kinds.extend((type(hook), hook._hookexec))
        if not isinstance(hook, kinds[0]) or hook._hookexec != kinds[1]:
            odd("the hook %s is another one" % name)
            return
        for one in hook.get_hookimpls():
            code = getattr(one.function, "__code__", None)
            before = judged.setdefault(id(one.function), (one.function, code))
            if code is None:
                odd("a hook %s without code" % name)
            elif code is not before[1]:
                odd("code of the hook %s" % name)
            elif code.co_filename.startswith(root) and code.co_filename not in known:
                odd("a hook %s of %s" % (name, code.co_filename))

    def judge_all(hooks, place):
        try:
            now = called(hooks)
        except AttributeError:  # one has no code
            now = []
        if not now or len(now) != len(last[place]) or not all(map(is_, now, last[place])):
            last[place] = now
            for name in CALLED:
                judge(name, getattr(hooks, name))

    def compare(item):
        found = items.get(id(item))
        if found is None or found[0] is not item:
            odd("nobody saw that %s was collected" % item.nodeid)
            return
        _, kind, own, codes = found
        if type(item) is not kind or not all(map(is_, own_of(item), own)):
            odd("%s is another one" % item.nodeid)
            return
        if codes and codes[0] is not None and code_of(item.obj)[: len(codes)] != codes:
            odd("code of %s" % item.nodeid)
        ihook = item.ihook
        judge_all(item.config.hook, 0)
        if ihook is not item.config.hook:
            judge_all(ihook, 1)

    return remember, compare
