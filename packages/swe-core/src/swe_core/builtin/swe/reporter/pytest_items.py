# Whether tests are what their files define, and remain so. This part follows `pytest_watch.py` and works with
# Python 3.6 and pytest 3.10.
#
# mypy: ignore-errors
# ruff: noqa: B905, F821, UP031 (names of the other parts; Python 3.6)
import sys
import types
import unittest
from itertools import chain
from marshal import dumps
from operator import attrgetter, is_, methodcaller

import pytest
from _pytest import fixtures
from _pytest.assertion.rewrite import rewrite_asserts

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
OWN = ("ihook", "obj", "repr_failure", "runtest", "setup", "teardown", "callspec")
SAID = ("config", "session", "parent", "name", "nodeid", "originalname", "_fixtureinfo")


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
    """Functions that say what is not what the files of the tests have to define: `executed` of a module whose
    body has just run, `inspect` of an item, `inspect_rest` of all other modules; `is_of_tests`, whether they
    define a function; and those of `make_defined` and `make_cases` that others need."""
    with_source = "source" in rewrite_asserts.__code__.co_varnames[:2]
    config, inspected, defining = [None], {}, make_defining()  # modules, by path and id
    place = [None]  # where the last item stands: its parent, and what that says

    def rewritten(source, path):
        tree = compile(source, path, "exec", ONLY_TREE, True)
        if with_source:
            rewrite_asserts(tree, source, path, config[0])
        else:
            rewrite_asserts(tree, Path(path), config[0])
        return compile(tree, path, "exec", 0, True)

    defined_in, is_defined, others_in, wraps_product = make_defined(root, known, odd, rewritten, plain)
    first_case, again_case, instance, undefined = make_cases(odd)
    inspect_imports = make_imports(root, known, odd)

    def executed(module, origin, its_config):
        """Inspect a module of the tests right after its body has run, which imports code under test."""
        if origin not in known:
            return
        config[0] = its_config
        if type(module) is not types.ModuleType or vars(module).get("__file__") != origin:
            odd("the module of %s is another one" % origin)
            return
        try:
            inspect_module(module, origin)
        except Changed:
            odd("the file %s on the disk is another one" % origin)

    def inspect_module(module, path):
        """Compare all that a module defines, and watch what it binds from now on."""
        if (path, id(module)) in inspected:
            return
        inspected[path, id(module)] = module
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
            if function is not None and is_defined(path, name, defining(function), vars(module)) is False:
                odd("%s in %s is another one" % (name, path))
            if classes:
                follow(path, space, [last])
        follow(path, vars(module), names)
        for name in defined_in(path).classes:
            value = vars(module).get(name)
            if issubclass(type(value), type) and issubclass(value, unittest.TestCase):
                inspect_case(value, path)

    def inspect_case(kind, path):
        """Say what of a class of unittests its file does not define."""
        for name in undefined(kind, defined_in(path).words):
            odd("%s of %s in %s is another one" % (name, kind.__name__, path))
        first_case(kind)

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
            suffix = "/" + item.nodeid.partition("::")[0]
            if not path.endswith(suffix) and any(one.endswith(suffix) for one in known):
                odd("%s is said to be in another file" % item.nodeid)
            place[:] = item.parent, module, path, "".join(classes), [one + "::" for one in above]
        _, module, path, classes, above = place
        function = getattr(item, "obj", None)
        if path not in known or function is None:
            return
        try:
            inspect_module(module.obj, path)
            name = getattr(item, "originalname", None) or item.name.partition("[")[0]
            if is_defined(path, classes + name, function, vars(module.obj), True) is False:
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
            return path in known and bool(is_defined(path, name, function)) and not wraps_product(function)
        except Changed:
            odd("the file %s on the disk is another one" % path)
            return False

    def inspect_rest():
        """Inspect what else of the task's own was imported, conftest.py and helpers of tests, and what all of
        it imports."""
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if origin != path and type(origin) is str and origin in known:
                odd("the module of %s is another one" % origin)
            if type(module) is types.ModuleType and type(path) is str and path in known:
                try:
                    if (path, id(module)) in inspected:
                        compare_names(module, path)
                    inspect_module(module, path)
                except Changed:
                    odd("the file %s on the disk is another one" % path)
        inspect_imports({name for path, _ in inspected for name in defined_in(path).modules})

    return executed, inspect, inspect_rest, is_of_tests, wraps_product, again_case, instance


def make_guard(root, known, odd, is_of_tests, wraps_product, again_case):
    """Functions: `trust` what plugins are made of, `remember` what an item is when it is collected, `compare`
    it and its hooks with that, `judge_all` hooks, and two that look at its arguments."""
    items, kinds, judged, last, executes = {}, [], {}, {}, []
    modules, functions, classes = {}, {}, {}  # that are trusted, by id
    places = set()  # their files
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
            places.add(getattr(module, "__file__", None))
            spaces = [vars(module)]
            for value in vars(module).values():
                if isinstance(value, type):
                    classes[id(value)] = value
                    spaces.append(vars(value))
            for space in spaces:
                for value in space.values():
                    function = value if type(value) is FunctionType else raw_function(value)
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
        """Say where a test has arguments before its fixtures gave it any."""
        arguments = vars(item).get("funcargs")
        if arguments is not None and (type(arguments) is not dict or arguments):
            odd("%s has arguments before its set-up" % item.nodeid)

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
                elif is_trusted(inner):
                    continue
                elif below(root, code.co_filename) or wraps_product(inner):
                    odd("the fixture %s of the code under test" % name)
                elif code.co_filename not in places:
                    odd("the fixture %s of %s" % (name, code.co_filename))

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
