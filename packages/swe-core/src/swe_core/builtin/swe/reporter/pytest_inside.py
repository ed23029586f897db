# Reports the end of each test to the host. This part follows `pytest_items.py` and works with Python 3.6 and
# pytest 3.10.
#
# mypy: ignore-errors
# ruff: noqa: F821, RUF005, UP031 (names of the other parts; Python 3.6)
import builtins
import os
import sys
import time
import types
import unittest

import pytest
from _pytest import python, runner
from _pytest.assertion import rewrite

NAME = __name__

UNTESTED = frozenset(("-V", "--version", "-h", "--help", "--markers"))  # with which no session begins
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


def make_hooks(send, hold, flush, root, known):
    """The plugin's hooks."""
    executions = always_rewrite(known)
    watch, forgive, configured, follow, watch_core = make_watch()
    sessions = []
    ended = {}
    passed = []  # the id of a test, once for each of its phases that passed
    odd, look = make_look(send, watch)
    executed, inspect, inspect_rest, is_of_tests, wraps_product, again_case, instance = make_files(
        root, known, odd, follow
    )
    guard = make_guard(root, known, odd, is_of_tests, wraps_product, again_case)
    executions.append(guarded(odd, executed))
    trust, remember, compare, judge_all, before_setup, before_call = (guarded(odd, one) for one in guard)
    inspect, inspect_rest, instance = (guarded(odd, one) for one in (inspect, inspect_rest, instance))
    forgive, configured, watch_core = (guarded(odd, one) for one in (forgive, configured, watch_core))
    made = {}
    on_canary = [False]
    collected = [None]  # whose tests are collected
    begun = [0]  # a look takes a fifth of a millisecond
    clock, written = time.monotonic, [0.0]  # a write wakes up the host
    ran = []
    reports = [0]
    runtestprotocol = runner.runtestprotocol

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(early_config):
        sys.modules.pop(NAME, None)
        forgive(root, early_config.pluginmanager.get_plugins())
        trust(early_config.pluginmanager)
        yield

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(session):
        sessions.append(session)
        configured()
        where = "remote" if is_remote(root, session.config) else "local"
        send("s", pytest.__version__, "%d.%d" % sys.version_info[:2], where)
        look(whole=True)

    def watch_comparing():
        """Watch modules for comparing values that were loaded since."""
        for name in COMPARING:
            module = sys.modules.get(name)
            for where, space in spaces_of(name, module) if type(module) is types.ModuleType else ():
                for key, value in list(space.items()):
                    code = raw_code(value)
                    ours = code is not None and below(root, code.co_filename)
                    if ours or (code is None and key.startswith("assert") and callable(value)):
                        odd("replaced %s.%s" % (where, key))
                follow(where, space, [key for key, value in space.items() if raw_code(value) is not None])

    def glance(item):
        changed = watch_core(CORE) or []
        if getattr(item, "cls", None) is not None:
            changed += watch_core(CORE_OF_CASES) or []
        for name in changed:
            odd("replaced " + name)

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

    @pytest.hookimpl(tryfirst=True)
    def pytest_itemcollected(item):
        if item.parent is not collected[0]:
            collected[0] = item.parent
            judge_all(item.config, COLLECTING)
        remember(item)
        inspect(item)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(session):
        judge_all(session.config, COLLECTING)
        watch_comparing()
        inspect_rest()
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
            if phase != "teardown" and not on_canary[0]:
                if phase == "setup":
                    before_setup(item)
                    if begun[0] % 64 == 0:  # not by the clock: what is seen must not hang on how fast code is
                        look()
                        judge_all(item.config, tuple(vars(item.config.pluginmanager.hook)))
                    begun[0] += 1
                if phase == "call":
                    compare(item)
                    before_call(item, made)
                    glance(item)
                    if isinstance(item, python.Function):
                        ran[:] = [item]
            outcome = yield
            if phase == "call" and not on_canary[0]:
                test = getattr(getattr(item, "obj", None), "__self__", None)
                if isinstance(test, unittest.TestCase):
                    instance(test, item.name)
            error = outcome.excinfo
            raised = kind_of(error[1] if error else None)
            ended[item.nodeid, phase] = [raised, "?"]
            if raised == "f" and not on_canary[0]:
                send("r", item.nodeid, phase)

        return hook

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_fixture_setup(fixturedef):
        outcome = yield
        if outcome.excinfo is None:
            made[id(fixturedef)] = fixturedef, outcome.get_result()

    @pytest.hookimpl(trylast=True)
    def pytest_fixture_post_finalizer(fixturedef):
        made.pop(id(fixturedef), None)  # what a fixture gave must not live longer than without us

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
        # A test whose phases all passed is one event, and many are one write; a failure is reported at once.
        plain = outcome == "passed" and raised == made == "-" and not expected and not part
        if passed and not (plain and test is passed[0] and when == PHASES[len(passed)]):
            tell_passed()
        if plain and when == PHASES[len(passed)]:
            passed.append(test)
            if len(passed) == len(PHASES):
                del passed[:]
                hold("p", test)
                if clock() - written[0] > 0.05:
                    flush()
                    written[0] = clock()
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
        look(whole=True)
        inspect_rest()
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
        "pytest_fixture_setup": pytest_fixture_setup,
        "pytest_fixture_post_finalizer": pytest_fixture_post_finalizer,
        "pytest_runtest_setup": watched("setup"),
        "pytest_runtest_call": watched("call"),
        "pytest_runtest_teardown": watched("teardown"),
        "pytest_runtest_makereport": pytest_runtest_makereport,
        "pytest_runtest_logreport": pytest_runtest_logreport,
        "pytest_sessionfinish": pytest_sessionfinish,
        "pytest_unconfigure": pytest_unconfigure,
    }


def guarded(odd, function):
    """A function that tells where it fails, as it may with another pytest, and lets the run go on."""

    def call(*args):
        try:
            return function(*args)
        except Exception as error:  # another pytest than was thought of
            odd("%s in %s" % (type(error).__name__, function.__name__))

    return call


def always_rewrite(known):
    """Have pytest compile the task's own files, whatever lies in `__pycache__`, where anybody can write.
    Returns a list of what to call with each module right after pytest has executed it."""
    honest = getattr(rewrite, "_read_pyc", None)
    if honest is not None:
        rewrite._read_pyc = lambda source, *rest, **more: (
            None if str(source) in known else honest(source, *rest, **more)
        )
    executions, execute = [], getattr(rewrite.AssertionRewritingHook, "exec_module", None)

    def exec_module(self, module):
        __tracebackhide__ = True  # of an error in the module
        origin = getattr(module.__spec__, "origin", None)
        execute(self, module)
        for executed in executions:
            executed(module, origin, self.config)

    if execute is not None:  # before pytest 5 there is another one
        rewrite.AssertionRewritingHook.exec_module = exec_module
    return executions


def is_remote(root, config):
    """Return whether pytest-xdist, and not a plugin of that name, runs the tests in other processes."""
    plugin = config.pluginmanager.getplugin("dsession")
    code = raw_code(getattr(type(plugin), "pytest_runtestloop", None))
    return code is not None and not below(root, code.co_filename)


def shadowed(root):
    """Modules of the repository that Python finds before installed ones, which pytest or a plugin of it may
    be about to load."""
    ours = {}
    for place in map(os.path.abspath, sys.path):
        inside = os.path.join(place, "").startswith(root) and "site-packages" not in place
        for name in modules_in(place):
            if inside:
                ours[name] = place
            elif name in ours and is_module(ours[name], name) and is_module(place, name):
                yield name


def modules_in(place):
    """The names of what may be modules in a directory."""
    try:
        entries = os.listdir(place)
    except OSError:
        return set()
    return {
        entry.partition(".")[0] for entry in entries if "." not in entry or entry.endswith((".py", ".so"))
    }


def is_module(place, name):
    path = os.path.join(place, name)
    return os.path.isfile(path + ".py") or os.path.isfile(os.path.join(path, "__init__.py"))


def begin():
    """The hooks; none where this session has no stream, or is of a kind that is not known here."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        stream = take_stream(here)
        if stream is None or not UNTESTED.isdisjoint(sys.argv[1:]):
            return {}
        name, half, key = agree(here)
        say = make_send(name, key, stream)
        root, known = read_known(here)
        hooks = make_hooks(*say, root, known)
        announce(stream, half)
        for module in sorted(set(shadowed(root))):
            say[0]("x", "the repository has a module %s in the place of an installed one" % module)
        return hooks
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
