# A pytest plugin that tells the host how each test ended; it goes on from `common.py`. It runs in the image's
# own Python and pytest: nothing newer than Python 3.6 and pytest 3.10.
#
# mypy: ignore-errors
# ruff: noqa: F821, RUF005, SIM905, UP031
import builtins
import os
import sys
import time
import types
import unittest.case  # noqa: F401 (so that it is watched)
from operator import attrgetter, is_, itemgetter

import pytest
from _pytest import python, runner

NAME = __name__

WATCHED = (
    "_pytest.assertion _pytest.fixtures _pytest.nodes _pytest.outcomes _pytest.python _pytest.python_api "
    "_pytest.raises _pytest.recwarn _pytest.reports _pytest.runner _pytest.skipping _pytest.terminal "
    "_pytest.unittest pluggy pytest unittest"
).split()
WATCHED_ROOTS = tuple(root + "." for root in WATCHED)
# A class may not get a new one of these, which would stand before that of a class that it is derived from.
GROWING = ("Function", "TestCaseFunction", "CallInfo", "TestReport", "CollectReport", "TestCase")
PHASES = ("setup", "call", "teardown")
ROOM = 4000  # so many characters of ids are one event; the host takes no line above 64 KiB
# What must fail, and at the end what must pass, made like a test of the task's own.
CANARIES = (
    ("assert", "    assert [1] == [2]\n", "failed f f"),
    ("raise", "    raise ValueError('no')\n", "failed f f"),
    ("raises", "    import pytest\n    with pytest.raises(ValueError):\n        pass\n", "failed f f"),
    ("equal", "    import unittest\n    unittest.TestCase('run').assertEqual(1, 2)\n", "failed f f"),
    ("true", "    import unittest\n    unittest.TestCase('run').assertTrue(0)\n", "failed f f"),
    ("pass", "    pass\n", "passed - -"),
)


def kind_of(error, expected=pytest.xfail.Exception, skipped=pytest.skip.Exception):
    """How an exception ends a test: "-" none, "s" skipped, "x" expected to fail, "f" failed."""
    if error is None:
        return "-"
    if isinstance(error, expected):
        return "x"
    if isinstance(error, skipped) or type(error).__name__ == "SkipTest":
        return "s"
    return "f"


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

    unchanged = [None]  # made by `configured`, which is before the first look

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
        unchanged[0] = make_quick_look(entries)

    def watch():
        changed = []
        if not unchanged[0]():
            changed = replaced(entries)
            if not changed:  # replacements were taken over
                unchanged[0] = make_quick_look(entries)
        for where, space, names, _ in grown:
            if len(space) != len(names):
                new = [name for name in space if name not in names and not name.startswith("_pytest")]
                changed += [where + "." + name for name in new]
        return changed

    return watch, forgive, configured


def make_hooks(send, hold, flush):
    """The plugin's hooks."""
    watch, forgive, configured = make_watch()
    sessions = []
    codes = {}
    ended = {}
    passed = []  # the id of a test, once for each of its phases that passed
    odd, look = make_look(send, watch)
    on_canary = [False]
    clock, looked = time.monotonic, [0.0]  # a look takes half a millisecond; the last is after all tests
    ran = []
    reports = [0]
    runtestprotocol = runner.runtestprotocol

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(early_config):
        sys.modules.pop(NAME, None)
        forgive(os.path.join(os.getcwd(), ""), early_config.pluginmanager.get_plugins())
        yield

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(session):
        sessions.append(session)
        remote = session.config.pluginmanager.hasplugin("dsession")
        configured()
        send("s", pytest.__version__, "%d.%d" % sys.version_info[:2], "remote" if remote else "local")
        look()

    def tell_collected(names):
        event, room = [], ROOM
        for name in names:
            if event and len(name) >= room:
                hold("c", *event)
                event, room = [], ROOM
            event.append(name)
            room -= len(name) + 1
        if event:
            hold("c", *event)
        flush()

    def tell_passed():
        for place, test in enumerate(passed):
            hold("t", test, PHASES[place], "passed", "0", "-", "-", "0")
        del passed[:]

    def pytest_itemcollected(item):
        function = getattr(item, "obj", None)
        codes[item.nodeid] = None if function is None else code_of(function)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(session):
        tell_collected([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(node, ids):
        if "collected" not in ended:
            ended["collected"] = True
            tell_collected(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(report):
        if report.outcome == "failed":
            send("e", report.nodeid)

    def watched(phase):
        @pytest.hookimpl(hookwrapper=True, trylast=True)
        def hook(item):
            if phase == "setup" and not on_canary[0] and clock() - looked[0] > 0.02:
                look()
                looked[0] = clock()
            if phase == "call" and not on_canary[0]:
                before = codes.get(item.nodeid)
                if before and before[0] is not None and code_of(item.obj)[: len(before)] != before:
                    odd("code of %s" % item.nodeid)
                if "runtest" in vars(item):
                    odd("runtest of %s" % item.nodeid)
                if isinstance(item, python.Function):
                    ran[:] = [item]
            outcome = yield
            error = outcome.excinfo
            raised = kind_of(error[1] if error else None)
            ended[item.nodeid, phase] = [raised, "?"]
            if raised == "f" and not on_canary[0]:
                send("r", item.nodeid, phase)

        return hook

    @pytest.hookimpl(hookwrapper=True, trylast=True)
    def pytest_runtest_makereport(item, call):
        yield
        seen = ended.setdefault((item.nodeid, call.when), ["?", "?"])
        seen[1] = kind_of(call.excinfo.value if call.excinfo is not None else None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(report):
        reports[0] += 1
        test, when, outcome = report.nodeid, report.when or "", report.outcome
        part = "sub" in type(report).__name__.lower()  # of a test, by pytest-subtests or pytest 9
        raised, made = ("?", "?") if part else ended.pop((test, when), ("?", "?"))
        expected = hasattr(report, "wasxfail")
        # A test of which each phase passed is one event, and one write; what failed is told at once.
        plain = outcome == "passed" and raised == made == "-" and not expected and not part
        if passed and not (plain and test is passed[0] and when == PHASES[len(passed)]):
            tell_passed()
        if plain and when == PHASES[len(passed)]:
            passed.append(test)
            if len(passed) == len(PHASES):
                del passed[:]
                send("p", test)
            return
        tell = hold if outcome == "passed" and when in ("setup", "call") else send
        tell("t", test, when, outcome, "1" if expected else "0", raised, made, "1" if part else "0")

    def brief(error, style=None):
        # The whole of it would have the source of each function on the way read.
        error.traceback = error.traceback[-1:]
        return error.getrepr(style="native")

    def run_canary(session, example, name, body):
        # The directories and classes around a test may have a set-up of their own, which is not run again.
        chain = example.listchain()[:-1]
        module = example.getparent(pytest.Module)
        plain = module is not None and not any(
            "setup" in vars(kind)
            for node in chain
            for kind in type(node).__mro__
            if kind.__name__ not in ("Node", "object")
        )
        parent = module if plain else session
        space = {
            "__name__": getattr(getattr(module, "obj", None), "__name__", "test"),
            "__builtins__": vars(builtins),
        }
        function = "%s_%s" % (getattr(example, "originalname", None) or "test_all", name)
        where = str(getattr(example, "path", None) or example.fspath)
        exec(compile("def %s():\n%s" % (function, body), where, "exec"), space)
        make = getattr(python.Function, "from_parent", None)
        info = {"name": function, "callobj": space[function]}
        item = make(parent, **info) if make else python.Function(parent=parent, **info)
        del item.fixturenames[:]
        item.repr_failure = brief
        item._preservedparent = object()  # before pytest 6, a test asks it for a set-up of each function
        on_canary[0] = True
        if parent is session:
            session.obj = None  # before pytest 7.2, nose's set-up is looked for there
        try:
            found = [report for report in runtestprotocol(item, log=False) if report.when == "call"]
        finally:
            on_canary[0] = False
            if parent is session:
                del session.obj
        seen = ended.pop((item.nodeid, "call"), ["?", "?"])
        return " ".join([found[0].outcome if found else "unseen"] + seen)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(session):
        yield
        look()
        if not ran:
            return
        for name, body, wanted in CANARIES:
            try:
                result = run_canary(session, ran[0], name, body)
            except Exception as error:  # whatever code under test made of the runner
                result = type(error).__name__
            if result != wanted:
                odd("canary %s: %s" % (name, result))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure():
        tell_passed()
        for session in sessions:
            status = session.exitstatus
            send("z", "%d" % status, "%d" % session.testsfailed, "%d" % reports[0], "%d" % len(CANARIES))
        del sessions[:]

    return {
        "pytest_load_initial_conftests": pytest_load_initial_conftests,
        "pytest_sessionstart": pytest_sessionstart,
        "pytest_itemcollected": pytest_itemcollected,
        "pytest_collection_finish": pytest_collection_finish,
        "pytest_xdist_node_collection_finished": pytest_xdist_node_collection_finished,
        "pytest_collectreport": pytest_collectreport,
        "pytest_runtest_setup": watched("setup"),
        "pytest_runtest_call": watched("call"),
        "pytest_runtest_teardown": watched("teardown"),
        "pytest_runtest_makereport": pytest_runtest_makereport,
        "pytest_runtest_logreport": pytest_runtest_logreport,
        "pytest_sessionfinish": pytest_sessionfinish,
        "pytest_unconfigure": pytest_unconfigure,
    }


def begin():
    """The hooks; none where this session has no key or no stream, or is of a kind that is not known here."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        number, key = take_key(here)
        stream = take_stream(here)
        if key is None or stream is None:
            return {}
        return make_hooks(*make_send(number, key, stream))
    except Exception:  # another Python or pytest: the log counts
        return {}
    finally:
        forget(here)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    plugins = getattr(config.option, "plugins", None)
    while plugins and NAME in plugins:  # pytest-xdist would have its workers load it
        plugins.remove(NAME)
    args = getattr(getattr(config, "invocation_params", None), "args", None)
    if isinstance(args, list) and NAME in args:  # pytest 4.6 has those of the environment in it
        place = args.index(NAME)
        del args[place - 1 : place + 1]


globals().update(begin())
