# A pytest plugin, its first part: what must stay as it is while tests run. It goes on from `codes.py`, and
# runs in the image's own Python and pytest: nothing newer than Python 3.6 and pytest 3.10.
#
# mypy: ignore-errors
# ruff: noqa: B905, F821, RUF005, SIM905, UP031
import ast  # noqa: F401 (so that it is watched, as is what follows it)
import builtins
import os
import sys
import types
import unittest.case
from itertools import chain
from marshal import dumps
from operator import attrgetter, is_, itemgetter, methodcaller

import pytest
from _pytest import fixtures
from _pytest.assertion.rewrite import rewrite_asserts

WATCHED = (
    "_pytest.assertion _pytest.fixtures _pytest.nodes _pytest.outcomes _pytest.python _pytest.python_api "
    "_pytest.raises _pytest.recwarn _pytest.reports _pytest.runner _pytest.skipping "
    "_pytest.unittest ast functools inspect pluggy pytest unittest"
).split()
WATCHED_ROOTS = tuple(root + "." for root in WATCHED)
# What stands between a test function and its verdict: hooks, and attributes that an item may have itself.
CALLED = tuple(
    "pytest_" + name
    for name in (
        *("runtest_protocol", "runtest_setup", "runtest_call", "runtest_teardown", "runtest_makereport"),
        *("runtest_logreport", "pyfunc_call", "fixture_setup"),
    )
)
COLLECTING = tuple(
    "pytest_" + name
    for name in (
        *("collectstart", "make_collect_report", "pycollect_makemodule", "pycollect_makeitem"),
        *("generate_tests", "itemcollected", "collection_modifyitems"),
    )
)
# Of what is watched, that which each test passes through. It is looked at before and after each call, when
# honest fixtures may have replaced other things for a time. The second part is that of unittest's tests.
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
BUILTINS = frozenset(name for name in vars(builtins) if not name.startswith("__"))
OWN = ("ihook", "obj", "repr_failure", "runtest", "setup", "teardown", "callspec")
SAID = ("config", "session", "parent", "name", "nodeid", "originalname", "_fixtureinfo")
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


class Path(str):
    """For pytest 4, which wants one of py.path."""

    strpath = property(str)


def make_defining():
    """A function that gives what `@pytest.fixture` stands before, of what pytest before 8.4 makes of it."""
    wrappers = [
        code
        for name, function in vars(fixtures).items()
        if name.startswith("wrap_function_to_") and type(function) is types.FunctionType
        for code in function.__code__.co_consts
        if type(code) is types.CodeType
    ]

    def defining(function):
        code = function.__code__
        if not any(code is one for one in wrappers):
            return function
        inner = getattr(getattr(function, "__pytest_wrapped__", None), "obj", None)
        called = dict(zip(code.co_freevars, function.__closure__ or ())).get("function")  # by pytest 3.10
        return function if called is not None and called.cell_contents is not inner else inner

    return defining


def make_files(root, known, odd, follow):
    """A function that says what of an item, and of its module, is not what its file has to define."""
    with_source = "source" in rewrite_asserts.__code__.co_varnames[:2]
    config, inspected, defining = [None], set(), make_defining()
    place = [None]  # where the last item stands: its parent, and what that says

    def rewritten(source, path):
        tree = compile(source, path, "exec", ONLY_TREE, True)
        if with_source:
            rewrite_asserts(tree, source, path, config[0])
        else:
            rewrite_asserts(tree, Path(path), config[0])
        return compile(tree, path, "exec", 0, True)

    defined_in, is_defined, others_in = make_defined(root, known, odd, rewritten, plain)
    first_case, again_case, instance = make_cases(odd)
    inspect_imports = make_imports(root, known, odd)

    def inspect_module(module, path):
        """Compare all that a module defines, and watch what it binds from now on."""
        functions, names = defined_in(path).functions, defined_in(path).names
        compare_names(module, path)
        for name in {**functions, **defined_in(path).constants}:
            *classes, last = name.split(".")
            space = vars(module)
            for kind in classes:
                found = space.get(kind)
                space = vars(found) if type(found) is type else {}
            if last not in space:
                continue
            function = raw_function(space[last])
            if function is not None and is_defined(path, name, defining(function)) is False:
                odd("%s in %s is another one" % (name, path))
            if classes:
                follow(path, space, [last])
        follow(path, vars(module), names)

    def compare_names(module, path):
        for name in others_in(path, vars(module)):
            odd("%s in %s is another one" % (name, path))

    def inspect(item):
        if item.parent is not place[0]:
            config[0] = item.config
            module = item.getparent(pytest.Module)
            path = "" if module is None else str(getattr(module, "path", None) or module.fspath)
            classes = [node.name + "." for node in item.listchain() if isinstance(node, pytest.Class)]
            above = item.parent.nodeid, item.parent.nodeid.replace("::()", "")  # the former before pytest 4
            place[:] = item.parent, module, path, "".join(classes), [one + "::" for one in above]
        _, module, path, classes, above = place
        function = getattr(item, "obj", None)
        if path not in known or function is None:
            return
        try:
            if path not in inspected:
                inspected.add(path)
                inspect_module(module.obj, path)
            name = getattr(item, "originalname", None) or item.name.partition("[")[0]
            if is_defined(path, classes + name, function) is False:
                odd("code of %s" % item.nodeid)
            if item.name.partition("[")[0] != name or item.nodeid not in [one + item.name for one in above]:
                odd("%s is not the test of that name" % item.nodeid)
            kind = getattr(item, "cls", None)
            if kind is not None and issubclass(kind, unittest.TestCase):
                for one in vars(kind):
                    if one.startswith("assert") and classes + one not in defined_in(path).functions:
                        odd("%s of %s is another one" % (one, item.nodeid))
                first_case(kind)
        except Changed:
            odd("the file %s on the disk is another one" % path)

    def is_of_tests(function):
        """Whether a function is one that a file of the task's own defines."""
        path = function.__code__.co_filename
        name = getattr(function, "__qualname__", "").replace(".<locals>", "")
        try:
            return path in known and bool(is_defined(path, name, function))
        except Changed:
            odd("the file %s on the disk is another one" % path)
            return False

    def inspect_rest():
        """Inspect what else of the task's own was imported, conftest.py and helpers of tests, and what all of
        it imports."""
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if type(module) is types.ModuleType and type(path) is str and path in known:
                try:
                    if path in inspected:
                        compare_names(module, path)
                    else:
                        inspected.add(path)
                        inspect_module(module, path)
                except Changed:
                    odd("the file %s on the disk is another one" % path)
        inspect_imports({name for path in inspected for name in defined_in(path).modules})

    return inspect, inspect_rest, is_of_tests, again_case, instance


def make_guard(root, known, odd, is_of_tests, again_case):
    """Functions: `trust` what plugins are made of, `remember` what an item is when it is collected, `compare`
    it and its hooks with that, `judge_all` hooks, and two that look at its arguments."""
    items, kinds, judged, last, executes = {}, [], {}, {}, []
    modules, functions, classes = {}, {}, {}  # that are trusted, by id
    getters = {}  # of several hooks at once
    judged_fixtures = {}  # functions, by id
    remembered = [MISSING, None]  # the last function, and its codes; no method, which would hold its object
    get_hookexec, get_impl = attrgetter("_hookexec"), attrgetter("function", "function.__code__", "argnames")
    get_hookimpls = methodcaller("get_hookimpls")
    get_said = attrgetter(*SAID)

    def trust(manager):
        """Take all that is loaded now of pytest and of its plugins' packages, and what executes hooks."""
        plugins = manager.get_plugins()
        executes.append(getattr(manager, "_inner_hookexec", None))
        packages = {"_pytest", "pluggy"}
        for plugin in plugins:
            name = plugin.__name__ if type(plugin) is types.ModuleType else type(plugin).__module__
            packages.add(name.partition(".")[0])
            if type(plugin) is types.ModuleType:
                modules[id(vars(plugin))] = plugin
        for name, module in list(sys.modules.items()):
            place = getattr(module, "__file__", None) or ""
            theirs = name.partition(".")[0] in packages and type(module) is types.ModuleType
            if theirs and (not place.startswith(root) or "/site-packages/" in place):
                modules[id(vars(module))] = module
        for module in modules.values():
            spaces = [vars(module)]
            for value in vars(module).values():
                if isinstance(value, type):
                    classes[id(value)] = value
                    spaces.append(vars(value))
            for space in spaces:
                for value in space.values():
                    function = raw_function(value)
                    if function is not None:
                        functions[id(function)] = function, function.__code__

    def is_trusted(function):
        """Whether a function, of a hook say, is pytest's, an installed plugin's or the tests'."""
        function = getattr(function, "__func__", function) if type(function) is types.MethodType else function
        if type(function) is not types.FunctionType:
            return False
        found = functions.get(id(function))
        if found is not None:
            return function.__code__ is found[1]
        return is_of_tests(function)

    def own_of(item, given):
        own = vars(item)
        try:
            said = get_said(item)
        except AttributeError:  # no function: a doctest, say, whose fixtures pytest before 8 finds later
            return [*map(own.get, OWN), *(getattr(item, name, MISSING) for name in SAID[:-1])]
        spec, info = own.get("callspec"), own.get("_fixtureinfo")
        fixtures = getattr(info, "name2fixturedefs", None) or {}
        defs = [one for many in fixtures.values() for one in many]
        functions = [getattr(one, "func", None) for one in defs]
        kinds = map(type, (item, own, own.get("_request"), spec, info, *defs))
        return [*map(own.get, OWN), *said, *given, *given.values(), *functions, *kinds]

    def contents_of(given):
        """What parameters hold that can be changed in place; None of what is no plain data."""
        found = []
        for value in given.values():
            if type(value) in (list, dict, set):
                try:
                    found.append(dumps(value, 2))
                except ValueError:
                    found.append(None)
        return found

    def given_to(item):
        spec = vars(item).get("callspec")
        earlier = getattr(spec, "funcargs", None)  # before pytest 8
        given = getattr(spec, "params", None) or {}
        return {**earlier, **given} if earlier else given

    def before_setup(item):
        """Say where somebody gave a test its arguments already."""
        arguments = vars(item).get("funcargs")
        if arguments is not None and (type(arguments) is not dict or arguments):
            odd("somebody gave %s its arguments" % item.nodeid)

    def before_call(item, made):
        """Compare the arguments of a test with what its fixtures gave.

        Args:
            made: By id: a definition of a fixture, and what it gave.
        """
        arguments, given = vars(item).get("funcargs") or {}, given_to(item)
        fixtures = getattr(vars(item).get("_fixtureinfo"), "name2fixturedefs", None) or {}
        for name, value in arguments.items():
            of = fixtures.get(name)
            if not of:  # `request`
                continue
            right = made.get(id(of[-1]), (None, MISSING))[1]
            if getattr(getattr(of[-1], "func", None), "__name__", "") == "get_direct_param_fixture_func":
                right = given.get(name, right)
            if value is not right or type(arguments) is not dict:
                odd("the argument %s of %s is another one" % (name, item.nodeid))

    def judge_fixtures(item):
        """Say where the code under test defines a fixture."""
        found = getattr(vars(item).get("_fixtureinfo"), "name2fixturedefs", None) or {}
        for name, many in found.items():
            for one in many:
                function = getattr(one, "func", None)
                if id(function) in judged_fixtures:
                    continue
                judged_fixtures[id(function)] = function
                inner = getattr(function, "__func__", function)
                code = raw_code(inner)
                if code is None:
                    odd("the fixture %s is no function" % name)
                elif below(root, code.co_filename) and not is_of_tests(inner):
                    odd("the fixture %s of the code under test" % name)

    def remember(item):
        function = getattr(item, "obj", None)
        judge_fixtures(item)
        if function is not remembered[0]:  # which many parametrized tests have in common
            codes = None if function is None else codes_within(function)
            remembered[:] = [function if type(function) is FunctionType else MISSING, codes]
        codes = remembered[1]
        given = given_to(item)
        items.setdefault(id(item), (item, type(item), own_of(item, given), codes, contents_of(given)))
        if id(type(item)) not in classes:
            path = getattr(sys.modules.get(type(item).__module__), "__file__", None)
            if path not in known:
                odd("tests of a kind that the code under test defines")

    def called(hooks, names):
        """Who executes the hooks, who is called by them, and whose code that is; without a line of Python for
        each."""
        if names not in getters:
            getters[names] = attrgetter(*names)
        callers = getters[names](hooks)
        impls = chain.from_iterable(map(get_impl, chain.from_iterable(map(get_hookimpls, callers))))
        return [*map(type, callers), *map(get_hookexec, callers), *impls]

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
            if code is not before[1] or any(type(argument) is not str for argument in one.argnames):
                odd("code of the hook %s" % name)
            elif not is_trusted(one.function):
                inside = code is None or code.co_filename.startswith(root)
                odd("a hook of %s" % ("the code under test" if inside else code.co_filename))

    def judge_all(node, names):
        """Judge hooks of the configuration, or of an item, which may have others."""
        config = getattr(node, "config", node)
        # pytest 7 and 8 put something before the hooks of a configuration.
        place, hooks = (type(node), names), config.pluginmanager.hook if node is config else node.ihook
        try:
            now = called(hooks, names)
        except AttributeError:  # one has no code
            now = []
        before = last.get(place, ())
        if not now or len(now) != len(before) or not all(map(is_, now, before)):
            last[place] = now
            for name in names:
                judge(name, getattr(hooks, name))
        if getattr(config.pluginmanager, "_inner_hookexec", None) is not executes[0]:
            odd("hooks are executed by another function")

    def compare(item):
        found = items.get(id(item))
        if found is None or found[0] is not item:
            odd("nobody saw that %s was collected" % item.nodeid)
            return
        _, kind, own, codes, contents = found
        given = given_to(item)
        if type(item) is not kind or not same(own_of(item, given), own) or contents_of(given) != contents:
            odd("%s is another one" % item.nodeid)
            return
        plain = len(codes or ()) == 1 and type(item.obj) is FunctionType and item.obj.__code__ is codes[0]
        if not plain and codes and codes[0] is not None and codes_within(item.obj)[: len(codes)] != codes:
            odd("code of %s" % item.nodeid)
        case = getattr(item, "cls", None)
        if case is not None:
            again_case(case)
        ihook = item.ihook
        judge_all(item.config, CALLED)
        if ihook is not item.config.pluginmanager.hook:
            judge_all(item, CALLED)

    return trust, remember, compare, judge_all, before_setup, before_call
