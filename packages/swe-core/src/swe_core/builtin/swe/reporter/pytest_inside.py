# Reports the end of each test to the host. This part follows `watch.py` and works with Python 3.6 and
# pytest 3.10.
#
# mypy: ignore-errors
# ruff: noqa: B905, F821, UP031 (names of the other parts; Python 3.6)
import os
import sys
import time
import types
import unittest

import pytest
from _pytest.assertion import rewrite

NAME = __name__

UNTESTED = frozenset(("-V", "--version", "-h", "--help", "--markers"))  # with which no session begins
PHASES = ("setup", "call", "teardown")
ROOM = 4000  # so many characters of ids are one event; the host takes no line above 64 KiB
DIRECT = "get_direct_param_fixture_func"  # of what is no fixture, but a parameter


class Path(str):
    """For pytest 4, which wants one of py.path."""

    strpath = property(str)


def function_of(fixture):
    """The function that `@pytest.fixture` stands before, of what a definition of a fixture has."""
    function = getattr(fixture, "func", None)
    function = getattr(getattr(function, "__pytest_wrapped__", None), "obj", function)
    return getattr(function, "__func__", function)


def given_to(item):
    """The parameters of a test."""
    spec = vars(item).get("callspec")
    return {
        **(getattr(spec, "funcargs", None) or {}),
        **(getattr(spec, "params", None) or {}),
    }  # before pytest 8


def fixtures_of(item):
    return getattr(vars(item).get("_fixtureinfo"), "name2fixturedefs", None) or {}


def make_items(root, odd, label_of, is_product, end_of):
    """Functions: `remember` what a test is given when it is collected, `arguments` compares what its code was
    given. `judge` looks at a fixture, `made` takes what one gave, `gone` forgets it, `gives` takes what the
    code of fixtures says that it gave."""
    items, values, gave, judged, places = {}, {}, {}, {}, set()

    def trust(manager):
        """Take the files of pytest and of its plugins' packages."""
        packages = {"_pytest", "pluggy"}
        for plugin in manager.get_plugins():
            name = plugin.__name__ if type(plugin) is types.ModuleType else type(plugin).__module__
            packages.add(name.partition(".")[0])
        for name, module in list(sys.modules.items()):
            place = getattr(module, "__file__", None) or ""
            if name.partition(".")[0] in packages and not below(root, place):
                places.add(place)

    def remember(item):
        given = given_to(item)
        items[id(item)] = item, given, {name: content(value) for name, value in given.items()}
        if getattr(getattr(item, "dtest", None), "examples", None):
            end_of(item.dtest, item.nodeid)

    def judge(fixture):
        """Say where the code under test defines a fixture."""
        function = getattr(fixture, "func", None)
        if judged.get(id(function)) is function:
            return
        judged[id(function)] = function
        code = raw_code(function_of(fixture))
        if code is None:
            odd("the fixture %s is no function" % fixture.argname)
        elif label_of(code) is None and code.co_filename not in places:
            place = "the code under test" if is_product(code.co_filename) else code.co_filename
            odd("the fixture %s of %s" % (fixture.argname, place))

    def made(fixture, value):
        values[id(fixture)] = fixture, value

    def gone(fixture):  # what a fixture gave must not live longer than without us
        values.pop(id(fixture), None)
        code = raw_code(function_of(fixture))
        gave.pop(code and label_of(code), None)

    def gives(events):
        for mark, value in events:
            if mark.kind in "ry":
                gave.setdefault(mark.label, set()).add(value)

    def right(name, value, given, fixtures):
        of = fixtures.get(name)
        if name in given and (not of or getattr(function_of(of[-1]), "__name__", "") == DIRECT):
            return value is given[name]
        if not of:  # `request`, or what has a default
            return True
        code = raw_code(function_of(of[-1]))
        label = code and label_of(code)
        if label is not None:
            return value is None or id(value) in gave.get(label, ())
        return value is values.get(id(of[-1]), (None, MISSING))[1]

    def arguments(item, began):
        """What of a test's arguments neither its parameters nor its fixtures gave: sentences."""
        found = items.get(id(item))
        if found is None or found[0] is not item:
            return ["nobody saw that it was collected"]
        _, given, contents = found
        texts = [
            "its parameter %s is another one" % one for one in given if content(given[one]) != contents[one]
        ]
        for name, value in zip(began[0].names, began[1][0]) if began else ():
            if not right(name, value, given, fixtures_of(item)):
                texts.append("its argument %s is another one" % name)
        for name in getattr(item, "fixturenames", ()):
            of = fixtures_of(item).get(name)
            if of and name not in given and id(of[-1]) not in values:
                texts.append("its fixture %s did not run" % name)
        return texts

    return trust, remember, judge, made, gone, gives, arguments


def make_hooks(send, hold, flush, root, known, first):
    """The plugin's hooks."""
    sessions, ran, whole = [], {}, []  # `whole`: tests whose phases all passed
    passed = []  # the id of a test, once for each of its phases that passed
    evidence = {}  # what there is to say of a test whose call has ended, by id
    on_fork = tell_forks()  # before the parts look at what there is
    odd, look_at_tracers = make_odd(send)
    executed, look, look_at_all, modules, instance, is_space = make_own_files(root, known, odd)
    compiled, label_of, method_of, set_ups_of, tell, unfinished, is_product, events, end_of = make_evidence(
        root, known, odd, executed
    )
    inspect_imports, look_at_places = make_imports(root, known, odd), make_places(root, known, odd)
    own = make_items(root, odd, label_of, is_product, end_of)
    *own, arguments = own
    trust, remember, judge, made, gone, gives = (guarded(odd, one) for one in own)
    reports = [0]
    clock, written = time.monotonic, [0.0]  # a write wakes up the host
    compile_own = rewriting(compiled, known)
    watch, renew = make_watch(root)
    begin, around, done = make_around(root, odd, on_fork, watch, look, look_at_tracers, instance, is_space)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(early_config):
        sys.modules.pop(NAME, None)
        trust(early_config.pluginmanager)
        if getattr(early_config.known_args_namespace, "assertmode", "rewrite") == "rewrite":
            for path in first:  # before code under test is loaded
                compile_own(path, early_config)
        yield

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(session):
        sessions.append(session)
        where = "remote" if is_remote(root, session.config) else "local"
        send("s", pytest.__version__, "%d.%d" % sys.version_info[:2], where)
        tell_replaced(renew())

    def tell_replaced(names):
        for name in names:
            odd("replaced " + name)

    def hold_names(kind, names):
        event, room = [], ROOM
        for name in names:
            if event and len(name) >= room:
                hold(kind, *event)
                event, room = [], ROOM
            event.append(name)
            room -= len(name) + 1
        if event:
            hold(kind, *event)

    def tell_collected(names):
        hold_names("c", names)
        flush()

    def tell_passed():
        hold_names("p", whole)
        for place, test in enumerate(passed):
            hold("t", test, PHASES[place], "passed", "0", "0", "")
        del whole[:], passed[:]

    @pytest.hookimpl(tryfirst=True)
    def pytest_itemcollected(item):
        remember(item)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(session):
        tell_replaced(renew())
        look_at_everything()
        tell_collected([item.nodeid for item in session.items])

    def look_at_everything():
        look_at_tracers()
        look_at_places()
        look_at_all()
        inspect_imports(modules())

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(node, ids):
        if "collected" not in ran:
            ran["collected"] = True
            tell_collected(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(report):
        if report.outcome == "failed":
            send("e", report.nodeid)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(item):
        if len(ran) % 256 == 0:  # not by the clock: what is seen must not hang on how fast code is
            tell_replaced(watch(True))
        begin()
        outcome = yield
        evidence[item.nodeid, "setup"] = "its set-up failed" if outcome.excinfo else ""
        if outcome.excinfo:
            tell(None, failed=True)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(item):
        ran[item.nodeid] = ran.get(item.nodeid, 0) + 1
        outcome = yield
        failed = outcome.excinfo is not None
        if failed:
            tell(None, failed=True)
        evidence[item.nodeid, "call"] = "it failed" if failed else evidence_of(item)

    @guarded_by(odd)
    def evidence_of(item):
        # Before pytest 4 an id has the brackets of classes.
        name = item.nodeid.replace("::()", "").partition("[")[0]
        case, inherited = getattr(item, "cls", None), None
        if case is not None and name.split("::")[-2:-1] == [case.__name__]:
            inherited = method_of(case, name.rpartition("::")[2])

        def is_own(label):
            return label in (name, item.nodeid, inherited) or label.endswith("/" + name)

        test = getattr(getattr(item, "obj", None), "__self__", None)
        kind = type(test) if isinstance(test, unittest.TestCase) else None
        texts, began = tell(is_own, kind, hasattr(getattr(item, "obj", None), "hypothesis"))
        texts += arguments(item, began)
        if ran[item.nodeid] > 1:
            texts.append("it ran again")
        path = str(getattr(item, "path", None) or item.fspath)
        return joined(texts + around(item.name.partition("[")[0], began, path, kind is not None))

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(item):
        outcome = yield
        texts = ["its tear-down failed"] if outcome.excinfo else []
        seen = {mark.label for mark, _ in events}
        kind = getattr(item, "cls", None)
        if kind is not None and item.nodeid in ran and not hasattr(kind, "tearDown"):
            due = set_ups_of(kind, ("teardown_method", "teardown"))
            texts += ["%s did not run" % label for label in due if label not in seen]
        evidence[item.nodeid, "teardown"] = joined(texts)
        tell(None, failed=outcome.excinfo is not None)
        done()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_fixture_setup(fixturedef):
        judge(fixturedef)
        outcome = yield
        gives(events)
        if outcome.excinfo is None:
            made(fixturedef, outcome.get_result())

    @pytest.hookimpl(trylast=True)
    def pytest_fixture_post_finalizer(fixturedef):
        gone(fixturedef)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(report):
        reports[0] += 1
        test, when, outcome = report.nodeid, report.when or "", report.outcome
        part = "sub" in type(report).__name__.lower()  # of a test, by pytest-subtests or pytest 9
        said = "" if part else evidence.pop((test, when), None)
        said = "nobody saw its %s" % when if said is None else said
        expected = hasattr(report, "wasxfail")
        # Many tests whose phases all passed are one event; a failure is reported at once.
        plain = outcome == "passed" and not said and not expected and not part
        if passed and not (plain and test is passed[0] and when == PHASES[len(passed)]):
            tell_passed()
        if plain and when == PHASES[len(passed)]:
            passed.append(test)
            if len(passed) == len(PHASES):
                whole.append(test)
                del passed[:]
                if clock() - written[0] > 0.05:
                    tell_passed()
                    flush()
                    written[0] = clock()
            return
        tell_passed()
        tell_it = hold if outcome == "passed" and when in ("setup", "call") else send
        tell_it("t", test, when, outcome, "1" if expected else "0", "1" if part else "0", said)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(session):
        yield
        tell(None)
        unfinished()
        tell_replaced(watch(True))
        look_at_everything()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure():
        tell_passed()
        for session in sessions:
            send("z", "%d" % session.exitstatus, "%d" % session.testsfailed, "%d" % reports[0])
        del sessions[:]

    return {name: hook for name, hook in locals().items() if name.startswith("pytest_")}


def guarded_by(odd):
    return lambda function: guarded(odd, function)


def rewriting(compiled, known):
    """Have pytest compile the task's own files with marks, whatever lies in `__pycache__`, where anybody can
    write. Returns a function that does so with a file."""
    with_source = "source" in rewrite.rewrite_asserts.__code__.co_varnames[:2]
    honest, read, write = rewrite._rewrite_test, rewrite._read_pyc, rewrite._write_pyc
    ours = []

    def compile_own(path, config):
        def rewritten(tree, source):
            if with_source:
                rewrite.rewrite_asserts(tree, source, path, config)
            else:
                rewrite.rewrite_asserts(tree, Path(path), config)

        prefixes = tuple(one.rstrip("*") for one in config.getini("python_functions")) or ("test",)
        try:
            code = compiled(path, rewritten, lambda *function: is_wanted(*function, prefixes=prefixes))
        except Exception:  # a file that Python cannot read, as pytest will say
            return None
        ours.append(code)
        return code

    def rewrite_test(*args):
        config = next((one for one in args if hasattr(one, "getini")), None)
        path = next((str(one) for one in args if one is not config), "")
        code = compile_own(path, config) if path in known and config is not None else None
        return honest(*args) if code is None else (os.stat(path), code)

    def read_pyc(source, *rest, **more):
        return None if str(source) in known else read(source, *rest, **more)

    def write_pyc(state, code, *rest):
        return True if any(code is one for one in ours) else write(state, code, *rest)

    rewrite._rewrite_test, rewrite._read_pyc, rewrite._write_pyc = rewrite_test, read_pyc, write_pyc
    return compile_own


def is_remote(root, config):
    """Return whether pytest-xdist, and not a plugin of that name, runs the tests in other processes."""
    plugin = config.pluginmanager.getplugin("dsession")
    code = raw_code(getattr(type(plugin), "pytest_runtestloop", None))
    return code is not None and not below(root, code.co_filename)


def begin():
    """The hooks; none where this session has no stream, or is of a kind that is not known here."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        stream = take_stream(here)
        if stream is None or not UNTESTED.isdisjoint(sys.argv[1:]):
            return {}
        name, half, key = agree(here)
        send, hold, flush = make_send(name, key, stream)
        with_own_builtins(unittest.case)
        hooks = make_hooks(send, hold, flush, *read_known(here))
        announce(stream, half)
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
