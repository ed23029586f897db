# Reports the end of each test to the host, as `pytest_inside.py` does for pytest. The sandbox has it as
# `sitecustomize`, so that it runs first in each Python of the test command. It claims a session in a process
# right before this process imports something of the repository, and does nothing in other processes.
#
# This part follows `common.py`, sends the events of `pytest_inside.py`, and works with Python 3.6.
#
# mypy: ignore-errors
# ruff: noqa: F821, N802, RUF005, UP031 (names of the other parts; Python 3.6)
import atexit
import os
import sys

__unittest = True  # unittest leaves frames of such modules out of the tracebacks that it prints

NAME = "sitecustomize"


def report(send, announce, root, known, first):
    """Wrap unittest, and tell what happens in it."""
    import unittest.case
    import unittest.result
    import unittest.suite

    part_kind, suite = unittest.case._SubTest, unittest.suite.BaseTestSuite
    case, outcomes = unittest.case.TestCase, unittest.result.TestResult
    successful, describe = outcomes.wasSuccessful, case.shortDescription
    running, ran = [], set()  # tests under way; ids
    counts = {"t": 0, "failed": 0, "status": 0}
    depth = [0]

    def name_of(test):
        try:
            name = str(test.id())
        except Exception as error:  # `id` may be the code under test's
            return "%s without an id: %s" % (type(test).__name__, type(error).__name__)
        if name.endswith(")") and " (" in name and not isinstance(test, case):  # "setUpClass (module.Class)"
            what, _, where = name[:-1].partition(" (")
            return where + "." + what
        return name

    def title_of(test):
        """The first line of its docstring, which is how Django's tests are named; None without one."""
        try:
            return describe(test) if isinstance(test, case) else None
        except Exception:  # so may what it describes itself with
            return None

    def evidence_of(test, name):
        """What a test's own code says but that it came to its end."""
        kind, last = type(test), getattr(test, "_testMethodName", "")
        inherited = method_of(kind, last) if name.endswith("%s.%s" % (kind.__qualname__, last)) else None

        def is_own(label):
            dotted = label.replace(".py::", ".").replace("::", ".").replace("/", ".")
            return label in (name, inherited) or dotted == name or dotted.endswith("." + name)

        texts, began = tell(is_own, kind, hasattr(getattr(kind, last, None), "hypothesis"))
        if name in ran:
            texts.append("it ran again")
        ran.add(name)
        path = getattr(sys.modules.get(kind.__module__), "__file__", None)
        return joined(texts + around(last, began, path, True))

    def tell_end(test, ending):
        """Say how a test ended: "ok", "fail", "error", "skip" or "expected"."""
        test = test.test_case if isinstance(test, part_kind) else test
        if running and (len(running) > 1 or test is not running[0]):
            return  # of a test inside a test
        name, evidence = name_of(test), ""
        if ending == "ok":
            evidence = evidence_of(test, name)
        else:
            tell(None, failed=True)
        when, bad = "error" if ending == "error" else "call", ending in ("fail", "error")
        said = "failed" if bad else "passed" if ending == "ok" else "skipped"
        for known in (name, title_of(test)):
            if known:
                send("t", known, when, said, "1" if ending == "expected" else "0", "0", evidence)
        counts["t"] += 1
        counts["failed"] += bad

    def replace(kind, name, make):
        setattr(kind, name, make(vars(kind)[name]))

    def started(honest):
        def startTest(self, test):
            running.append(test)
            if len(running) == 1:
                begin()
                tell(None)
                if len(ran) % 256 == 0:  # not by the clock: what is seen must not hang on how fast code is
                    for what in watch(True):
                        odd("replaced " + what)
            return honest(self, test)

        return startTest

    def stopped(honest):
        def stopTest(self, test):
            if running and running[-1] is test:
                running.pop()
                if not running:
                    done()
            return honest(self, test)

        return stopTest

    def ended(ending):
        def make(honest):
            def method(self, test, *rest, **more):
                tell_end(test, ending)
                return honest(self, test, *rest, **more)

            return method

        return make

    def sub_test(honest):
        def addSubTest(self, test, subtest, err):
            if err is not None:
                tell_end(test, "fail" if issubclass(err[0], test.failureException) else "error")
            return honest(self, test, subtest, err)

        return addSubTest

    def plan(tests):
        for test in tests:
            if isinstance(test, suite):
                if type(test).__iter__ is suite.__iter__:  # another one may make its tests in passing
                    plan(test._tests)
            elif test is not None:
                examples = getattr(getattr(test, "_dt_test", None), "examples", None)
                if examples:
                    end_of(test._dt_test, name_of(test))
                send("c", name_of(test))

    def look_at_everything():
        look_at_tracers()
        look_at_places()
        look_at_all()
        inspect_imports(modules())

    def finish():
        """After the last test."""
        tell(None)
        unfinished()
        for what in watch(True):
            odd("replaced " + what)
        look_at_everything()

    def run_suite(honest):
        def run(self, result, *rest, **more):
            if depth[0] or running:
                return honest(self, result, *rest, **more)
            plan([self])
            look_at_everything()
            depth[0] = 1
            try:
                return honest(self, result, *rest, **more)
            finally:
                depth[0] = 0
                if isinstance(result, outcomes) and not successful(result):
                    counts["status"] = 1
                finish()

        return run

    def end():
        send("z", "%d" % counts["status"], "%d" % counts["failed"], "%d" % counts["t"])

    with_own_builtins(unittest.case)
    replace(outcomes, "startTest", started)
    replace(outcomes, "stopTest", stopped)
    for name, ending in (
        ("addSuccess", "ok"),
        ("addError", "error"),
        ("addFailure", "fail"),
        ("addSkip", "skip"),
        ("addExpectedFailure", "expected"),
        ("addUnexpectedSuccess", "fail"),
    ):
        replace(outcomes, name, ended(ending))
    replace(outcomes, "addSubTest", sub_test)
    replace(unittest.suite.TestSuite, "run", run_suite)
    on_fork = tell_forks()  # before the parts look at what there is
    odd, look_at_tracers = make_odd(send)
    executed, look, look_at_all, modules, instance, is_space = make_own_files(root, known, odd)
    compiled, _, method_of, _, tell, unfinished, _, _, end_of = make_evidence(
        root, known, odd, guarded(odd, executed)
    )
    inspect_imports, look_at_places = make_imports(root, known, odd), make_places(root, known, odd)
    watch, _ = make_watch(root)
    begin, around, done = make_around(root, odd, on_fork, watch, look, look_at_tracers, instance, is_space)
    atexit.register(end)
    announce()
    send("s", "unittest", "%d.%d" % sys.version_info[:2], "local")
    for path in first:  # before code under test is loaded
        compiled(path)


class Sleeper:
    """A finder of modules that finds nothing of its own: it waits for the first one of the repository."""

    def __init__(self, here, root):
        self.here, self.root = here, root

    def find_spec(self, name, path=None, target=None):
        """What the other finders find."""
        spec = None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec = find(name, path, target)
                if spec is not None:
                    break
        if spec is not None and self.is_ours(spec) and self in sys.meta_path:
            sys.meta_path.remove(self)
            stream = take_stream(self.here)
            forget(self.here)
            try:
                if stream is not None:
                    session, half, key = agree(self.here)
                    say = make_send(session, key, stream)[0]
                    report(say, lambda: announce(stream, half), *read_known(self.here))
            except (ImportError, AttributeError, KeyError, OSError, ValueError):
                pass  # an unknown unittest, with nothing replaced yet: the log counts
        return spec

    def is_ours(self, spec):
        """Whether it is the repository's, which is what a patch can change."""
        for place in [spec.origin or ""] + list(spec.submodule_search_locations or ()):
            place = os.path.realpath(place) if os.path.isabs(place) else ""
            if place.startswith(self.root) and "/site-packages/" not in place:
                return True
        return False


def fall_asleep():
    """Wait for the code under test, in a process that cannot see that we were here."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    sys.path_importer_cache.pop(here, None)
    try:
        with open(os.path.join(here, "root")) as file:
            root = os.path.join(os.path.realpath(file.read().strip()), "")
    except OSError:
        return
    sys.meta_path.insert(0, Sleeper(here, root))


fall_asleep()
del sys.modules[__name__]
import sitecustomize  # noqa: E402, F401 (the image's own; where there is none, this says so as Python would)
