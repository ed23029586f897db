# Reports the end of each test to the host, as `pytest_inside.py` does for pytest. The sandbox has it as
# `sitecustomize`, so that it runs first in each Python of the test command. It claims a session in a process
# right before this process imports something of the repository, and does nothing in other processes.
#
# This part follows `common.py`, sends the events of `pytest_inside.py`, and works with Python 3.6.
#
# mypy: ignore-errors
# ruff: noqa: F821, N802, RUF005, UP031 (names of the other parts; Python 3.6)
import atexit
import builtins
import os
import sys
import types

__unittest = True  # unittest leaves frames of such modules out of the tracebacks that it prints

NAME = "sitecustomize"
GROWING = ("TestCase", "TestResult", "TextTestResult", "TestSuite", "TextTestRunner", "_Outcome")
FEW = 100  # number of unseen tests to name
# What must fail, and at the end what must pass: failures, errors, what was raised.
CANARIES = (
    ("assert", "assert [1] == [2]" if __debug__ else "self.fail()", "1 0 f"),
    ("raise", "raise ValueError('no')", "0 1 f"),
    ("raises", "with self.assertRaises(ValueError): pass", "1 0 f"),
    ("equal", "self.assertEqual(1, 2)", "1 0 f"),
    ("true", "self.assertTrue(0)", "1 0 f"),
    ("part", "with self.subTest(): self.fail()", "1 0 f"),
    ("pass", "pass", "0 0 -"),
)


def watcher():
    """A function that names what was replaced in unittest and the builtins since now."""
    entries, grown, spaces = [], [], []
    kinds = (types.FunctionType, type, property, staticmethod, classmethod)

    def add(where, space, always=False):
        for name, value in list(space.items()):
            if (always and name != "_") or isinstance(value, kinds):
                entries.append((where + "." + name, space, name, value, makings(value)))

    for module_name, module in list(sys.modules.items()):
        if module is None or module_name.partition(".")[0] != "unittest":
            continue
        add(module_name, vars(module))
        spaces.append((module_name, vars(module), BUILTINS.intersection(vars(module))))
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module_name:
                add(module_name + "." + name, vars(value))
                if name in GROWING:
                    grown.append((module_name + "." + name, vars(value), frozenset(vars(value))))
    add("builtins", vars(builtins), always=True)
    for name in ("write", "_exit", "fork", "getpid"):
        entries.append(("os." + name, vars(os), name, getattr(os, name), ()))

    def follow(where, space):
        """Watch the constants of a class or module, and that no name of it stands before a builtin's."""
        for name, value in space.items():
            if isinstance(value, (bool, int, float, str, bytes, tuple)) and name[:1] != "_":
                entries.append((where + "." + name, space, name, value, ()))
        spaces.append((where, space, BUILTINS.intersection(space)))

    def watch(whole):
        changed = replaced(entries)
        for where, space, names in spaces:
            changed += [where + "." + name for name in BUILTINS.intersection(space) - names]
        for where, space, names in grown:
            if len(space) != len(names):
                changed += [where + "." + name for name in space if name not in names]
        return changed

    return watch, follow


def report(send, announce, root, known):
    """Wrap unittest, and tell what happens in it."""
    import unittest.case
    import unittest.result
    import unittest.suite

    outcome, part_kind = unittest.case._Outcome, unittest.case._SubTest
    suite = unittest.suite.BaseTestSuite
    case, outcomes, skipped = unittest.case.TestCase, unittest.result.TestResult, unittest.case.SkipTest
    successful, describe = outcomes.wasSuccessful, case.shortDescription
    running, parts, codes = [], {}, {}  # tests under way; by test: [phases that were seen, what was raised]
    inspected, followed = {}, set()  # modules of tests, by path; classes
    imported = set()  # modules that the tests name
    unseen, counts = set(), {"t": 0, "failed": 0, "status": 0}
    depth, on_canary, last, looked = [0], [False], [None], [0]

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

    def compare_names(path):
        for name in others_in(path, inspected[path]):
            odd("%s in %s is another one" % (name, path))

    def inspect(test):
        """Say where a test is not what its file has to define."""
        kind, name = type(test), getattr(test, "_testMethodName", "")
        path = getattr(sys.modules.get(kind.__module__), "__file__", None)
        method = getattr(kind, name, None)
        if path not in known or method is None:
            return
        try:
            space = vars(sys.modules[kind.__module__])
            if is_defined(path, "%s.%s" % (kind.__qualname__, name), method, space, True) is False:
                odd("code of %s" % name_of(test))
            if path not in inspected:
                inspected[path] = space
                follow(path, inspected[path])
            compare_names(path)
            if kind not in followed:
                followed.add(kind)
                for one in undefined(kind, defined_in(path).words):
                    odd("%s of %s in %s is another one" % (one, kind.__name__, path))
                follow("%s.%s" % (path, kind.__name__), vars(kind))
            imported.update(defined_in(path).modules)
        except Changed:
            odd("the file %s on the disk is another one" % path)

    def code(test):
        return codes_within(getattr(type(test), getattr(test, "_testMethodName", ""), None))

    def tell(test, ending):
        """Say how a test ended: "ok", "fail", "error", "skip" or "expected"."""
        test = test.test_case if isinstance(test, part_kind) else test
        if on_canary[0] or (running and (len(running) > 1 or test is not running[0])):
            return  # of a test inside a test
        seen, raised = parts.get(id(test), (0, "-"))
        name = name_of(test)
        if ending == "ok" and not seen:
            unseen.add(name)
        when, bad = "error" if ending == "error" else "call", ending in ("fail", "error")
        said = "failed" if bad else "passed" if ending == "ok" else "skipped"
        made = {"ok": "-", "skip": "s", "expected": "x"}.get(ending, "f")
        for known in (name, title_of(test)):
            if known:
                expected = "1" if ending == "expected" else "0"
                send("t", known, when, said, expected, raised, made, "0")
        counts["t"] += 1
        counts["failed"] += bad

    class Part:
        """A phase of a test, or of a part of it: what it raises."""

        def __init__(self, inner, test):
            self.inner, self.test = inner, test

        def __enter__(self):
            return self.inner.__enter__()

        def __exit__(self, kind, error, trace):
            test = self.test.test_case if isinstance(self.test, part_kind) else self.test
            seen = parts.setdefault(id(test), [0, "-"])
            seen[0] += 1
            if error is not None and seen[1] != "f":
                seen[1] = "s" if isinstance(error, skipped) else "f"
            return self.inner.__exit__(kind, error, trace)

    def replace(kind, name, make):
        setattr(kind, name, make(vars(kind)[name]))

    def part(honest):
        return lambda self, test, *rest, **more: Part(honest(self, test, *rest, **more), test)

    def started(honest):
        def startTest(self, test):
            running.append(test)
            parts[id(test)] = [0, "-"]
            if len(running) == 1 and not on_canary[0]:
                last[0] = test
                if looked[0] % 64 == 0:  # not by the clock: what is seen must not hang on how fast code is
                    look()
                looked[0] += 1
                again_case(type(test))
                if codes.get(id(test), [None]) != [test, getattr(test, "_testMethodName", ""), code(test)]:
                    odd("nobody planned %s" % name_of(test))
            return honest(self, test)

        return startTest

    def stopped(honest):
        def stopTest(self, test):
            if isinstance(test, case) and not on_canary[0]:
                instance(test, getattr(test, "_testMethodName", ""))
                again_case(type(test))
            if running and running[-1] is test:
                running.pop()
                parts.pop(id(test), None)
            return honest(self, test)

        return stopTest

    def ended(ending):
        def make(honest):
            def method(self, test, *rest, **more):
                tell(test, ending)
                return honest(self, test, *rest, **more)

            return method

        return make

    def sub_test(honest):
        def addSubTest(self, test, subtest, err):
            if err is not None:
                tell(test, "fail" if issubclass(err[0], test.failureException) else "error")
            return honest(self, test, subtest, err)

        return addSubTest

    def plan(tests):
        for test in tests:
            if isinstance(test, suite):
                if type(test).__iter__ is suite.__iter__:  # another one may make its tests in passing
                    plan(test._tests)
            elif test is not None:
                codes[id(test)] = [test, getattr(test, "_testMethodName", ""), code(test)]
                inspect(test)
                first_case(type(test))
                send("c", name_of(test))

    def run_canary(name, body, example):
        space = {"__name__": type(example).__module__, "__builtins__": vars(builtins)}
        exec("def test_%s(self):\n    %s\n" % (name, body), space)
        kind = type(type(example).__name__, (case,), {"test_" + name: space["test_" + name]})
        kind.__module__ = type(example).__module__
        test, kept, raised = kind("test_" + name), outcomes(), ["?"]

        def stop(of):
            raised[0] = parts.get(id(of), raised)[-1]
            outcomes.stopTest(kept, of)

        kept.stopTest = stop
        on_canary[0] = True
        try:
            test(kept)
        finally:
            on_canary[0] = False
        return "%d %d %s" % (len(kept.failures), len(kept.errors), raised[0])

    def finish():
        """After the last test: was the test runner what it has to be?"""
        look()
        for path in inspected:
            compare_names(path)
        inspect_imports(imported)
        if last[0] is not None:
            for name, body, wanted in CANARIES:
                try:
                    found = run_canary(name, body, last[0])
                except Exception as error:  # whatever code under test made of the runner
                    found = type(error).__name__
                if found != wanted:
                    odd("canary %s: %s" % (name, found))
        if len(unseen) > FEW:  # such as tests in processes of their own
            odd("nobody saw more than %d tests run" % FEW)
        else:
            for name in unseen:
                odd("nobody saw %s run" % name)

    def run_suite(honest):
        def run(self, result, *rest, **more):
            if depth[0] or running:
                return honest(self, result, *rest, **more)
            plan([self])
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
        send("z", "%d" % counts["status"], "%d" % counts["failed"], "%d" % counts["t"], "%d" % len(CANARIES))

    replace(outcome, "testPartExecutor", part)
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
    watch, follow = watcher()
    odd, look = make_look(send, watch)
    defined_in, is_defined, others_in, _ = make_defined(root, known, odd, plain)
    inspect_imports = make_imports(root, known, odd)
    first_case, again_case, instance, undefined = make_cases(odd)
    atexit.register(end)
    announce()
    send("s", "unittest", "%d.%d" % sys.version_info[:2], "local")


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
