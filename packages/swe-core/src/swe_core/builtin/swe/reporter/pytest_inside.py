# What tells the host how each test ended; it goes on from `pytest_watch.py`. Nothing newer than Python 3.6
# and pytest 3.10.
#
# mypy: ignore-errors
# ruff: noqa: F821, RUF005, UP031
import builtins
import os
import sys
import time

import pytest
from _pytest import python, runner

NAME = __name__

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


def make_hooks(send, hold, flush, known):
    """The plugin's hooks."""
    watch, forgive, configured, follow, watch_core = make_watch()
    sessions = []
    ended = {}
    passed = []  # the id of a test, once for each of its phases that passed
    odd, look = make_look(send, watch)
    inspect = make_files(known, odd, follow)
    remember, compare = make_guard(known, odd)
    on_canary = [False]
    clock, looked = time.monotonic, [0.0]  # a look takes half a millisecond; the last is after all tests
    written = [0.0]  # a write wakes up the host
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
        configured()
        where = "remote" if is_remote(session.config) else "local"
        send("s", pytest.__version__, "%d.%d" % sys.version_info[:2], where)
        look()

    def glance():
        for name in watch_core():
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
        remember(item)
        inspect(item)

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
            if phase != "teardown" and not on_canary[0]:
                compare(item)
                if phase == "setup" and clock() - looked[0] > 0.02:
                    look()
                    looked[0] = clock()
                if phase == "call":
                    glance()
                    if isinstance(item, python.Function):
                        ran[:] = [item]
            outcome = yield
            if phase == "call" and not on_canary[0]:
                glance()
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
        # A test of which each phase passed is one event, and many are one write; what failed is told at once.
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


def is_remote(config):
    """Whether pytest-xdist runs the tests in other processes: it, and not whoever takes its name."""
    plugin = config.pluginmanager.getplugin("dsession")
    code = raw_code(getattr(type(plugin), "pytest_runtestloop", None))
    root = os.path.join(os.getcwd(), "")
    return code is not None and not code.co_filename.startswith(root)


def shadowed():
    """Modules of plugins that pytest is about to load by itself and that are found in the working directory
    before where they are installed."""
    root = os.path.join(os.getcwd(), "")
    inside = []
    for place in map(os.path.abspath, sys.path):
        if os.path.join(place, "").startswith(root) and "site-packages" not in place:
            inside.append(place)
            continue
        for name in plugins_in(place):
            for ours in inside:
                if is_module(ours, name) and is_module(place, name):
                    yield name


def is_module(place, name):
    return os.path.isdir(os.path.join(place, name)) or os.path.isfile(os.path.join(place, name + ".py"))


def plugins_in(place):
    """The top modules that distributions installed in a directory name as plugins of pytest."""
    try:
        entries = os.listdir(place)
    except OSError:
        return
    for entry in entries:
        if entry.endswith((".dist-info", ".egg-info")):
            try:
                with open(os.path.join(place, entry, "entry_points.txt"), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, ValueError):
                continue
            section = text.partition("[pytest11]")[2].partition("\n[")[0]
            for line in section.split("\n"):
                module = line.partition("=")[2].strip()
                if module:
                    yield module.partition(":")[0].partition(".")[0]


def begin():
    """The hooks; none where this session has no stream, or is of a kind that is not known here."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        stream = take_stream(here)
        if stream is None:
            return {}
        name, half, key = agree(here)
        say = make_send(name, key, stream)
        hooks = make_hooks(*say, read_known(here))
        announce(stream, half)
        for module in shadowed():
            say[0]("x", "the repository has a module %s in the place of an installed plugin" % module)
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
