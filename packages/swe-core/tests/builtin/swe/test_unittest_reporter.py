# ruff: noqa: E501 (programs in strings)
"""The reporter of unittest: its report of honest runs, its transparency, and the attacks it stops."""

from __future__ import annotations

import builtins
import shlex
import symtable
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from swe_core.api.grader import Grade
from swe_core.api.sandbox import Sandbox, SandboxProvider
from swe_core.builtin.swe.parsers import log_reader
from swe_core.builtin.swe.test_runners import Runner, source
from swe_testing.records import make_task

from ...repositories import Repo, slow_but, swe_grader
from . import suites
from .helpers import BUGGY, EMPTIED_CLASS, FIX, defining_add
from .suites import PYTHON, run_twice

pytestmark = pytest.mark.anyio

UNITTEST = f"{PYTHON} -m unittest -v"


def a_suite(files: dict[str, str], command: str = UNITTEST, **more: Any) -> suites.Suite:
    """A suite with a module `calc.py` beside its files."""
    return suites.Suite({"calc.py": "def add(a, b):\n    return a + b\n", **files}, command, **more)


PLAIN = """
import sys, unittest, warnings
from calc import add

class Case(unittest.TestCase):
    def test_good(self): self.assertEqual(add(1, 2), 3)
    def test_bad(self): self.assertEqual([1, 2], [1, 3], "message - with a dash")
    def test_error(self): raise ValueError("no\\nsecond line")
    def test_stop(self): raise StopIteration
    def test_printing(self):
        print("test_bad (test_plain.Case.test_bad) ... ok", file=sys.stderr)
    def test_input_with_a_line(self):
        \"\"\"The first line of it.

        And more.
        \"\"\"
    def test_bad_line(self):
        "It fails."
        self.fail()
    @unittest.skip("not now")
    def test_skip(self): pass
    def test_skip_inside(self): self.skipTest("later")
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    @unittest.expectedFailure
    def test_unexpected(self): pass
    def test_warning(self): warnings.warn("careful", DeprecationWarning, stacklevel=2)
    def test_returning(self): return 1
    def test_cleanup(self): self.addCleanup(lambda: 1 / 0)
    def test_case(self): pass

class Setup(unittest.TestCase):
    def setUp(self): raise RuntimeError("set-up")
    def test_never(self): pass

class TearDown(unittest.TestCase):
    def tearDown(self): raise RuntimeError("tear-down")
    def test_done(self): pass

@unittest.skip("whole class")
class Skipped(unittest.TestCase):
    def test_one(self): pass

class SkippedInSetUp(unittest.TestCase):
    def setUp(self): raise unittest.SkipTest("here")
    def test_one(self): pass

if __name__ == "__main__":
    unittest.main(verbosity=2)
"""
GREEN = """
import unittest
from calc import add

class Case(unittest.TestCase):
    def test_good(self): self.assertEqual(add(1, 2), 3)
    @unittest.skip("not now")
    def test_skip(self): pass

if __name__ == "__main__":
    unittest.main(verbosity=2)
"""
PARTS = """
import unittest
import calc

class Case(unittest.TestCase):
    def test_parts(self):
        for i in range(4):
            with self.subTest(i=i):
                if i == 3:
                    self.skipTest("three")
                self.assertNotEqual(i, 1)
    def test_error_parts(self):
        with self.subTest("a"): raise ValueError
    def test_good_parts(self):
        with self.subTest("all good"): pass
    def test_next(self): pass
"""
CLASSES = """
import unittest
import calc

class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("class")
    def test_never(self): pass

class BrokenAfter(unittest.TestCase):
    @classmethod
    def tearDownClass(cls): raise RuntimeError("class")
    def test_one(self): pass

class Skips(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("none of them")
    def test_never(self): pass
"""
MODULE = "import calc\ndef setUpModule(): raise RuntimeError('module')\n" + GREEN
TRACES = """
import os, subprocess, sys, unittest
import calc

class Case(unittest.TestCase):
    def test_environment(self): self.assertNotIn("PYTHONPATH", os.environ)
    def test_path(self):
        self.assertEqual([path for path in sys.path if path.startswith("/tmp/swe")], [])
        self.assertEqual([finder for finder in sys.meta_path if type(finder).__name__ == "Sleeper"], [])
        self.assertNotIn("sitecustomize", sys.modules)
    def test_descriptors(self):
        with self.assertRaises(OSError): os.fstat(9)
    def test_children(self):
        code = "import os, calc; print(sorted(os.listdir('/proc/self/fd')), os.environ.get('PYTHONPATH'))"
        text = subprocess.check_output([sys.executable, "-c", code], close_fds=False).decode()
        self.assertNotIn("'500'", text)
        self.assertIn("None", text)
    def test_fork(self):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
"""
NESTED = """
import io, unittest
import calc

class Case(unittest.TestCase):
    def test_inside(self):
        class Inner(unittest.TestCase):
            def test_a(self): self.fail()
            def test_b(self): pass
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(Inner)
        done = unittest.TextTestRunner(io.StringIO()).run(suite)
        self.assertEqual((len(done.failures), done.testsRun), (1, 2))
"""
DJANGO = """
import sys, unittest
from unittest import TestSuite
import calc

class Runner:
    suite, kind = TestSuite, unittest.TextTestRunner
    def run(self, names):
        loader = unittest.defaultTestLoader
        suite = self.suite(loader.loadTestsFromName(name) for name in names)
        return len(self.kind(verbosity=2).run(suite).failures)

sys.exit(bool(Runner().run(sys.argv[1:])))
"""
WRAPPER = "import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n"

ZOO = {
    "plain": a_suite({"test_plain.py": PLAIN}),
    "named": a_suite({"test_plain.py": PLAIN}, f"{UNITTEST} test_plain test_plain.Setup"),
    "no such module": a_suite({"test_plain.py": GREEN}, f"{UNITTEST} test_plain nosuch"),
    "buffered, locals, fail fast": a_suite({"test_plain.py": PLAIN}, f"{UNITTEST} -b --locals -f"),
    "buffered": a_suite({"test_plain.py": PLAIN}, f"{UNITTEST} -b"),
    "discover": a_suite({"tests/__init__.py": "", "tests/test_plain.py": PLAIN, "tests/test_b.py": GREEN},
                      f"{PYTHON} -m unittest discover -v -s tests -t ."),
    "green": a_suite({"test_plain.py": GREEN}),
    "parts": a_suite({"test_parts.py": PARTS}),
    "classes": a_suite({"test_classes.py": CLASSES}),
    "module": a_suite({"test_module.py": MODULE}),
    "broken module": a_suite({"test_a.py": "import no_such_module\n", "test_b.py": GREEN}),
    "a script": a_suite({"test_plain.py": PLAIN}, f"{PYTHON} test_plain.py -v"),
    "warnings are errors": a_suite({"test_plain.py": PLAIN}, f"{PYTHON} -W error -m unittest -v"),
    "warnings are shown": a_suite({"test_plain.py": PLAIN}, f"{PYTHON} -W always -m unittest -v"),
    "isolated": a_suite({"run.py": "import sys; sys.path.insert(0, '.')\nimport test_a, unittest\nunittest.main(test_a)\n",
                       "test_a.py": GREEN}, f"{PYTHON} -I run.py -v", silent=True),
    "no environment": a_suite({"test_plain.py": PLAIN}, f"{PYTHON} -E -m unittest -v", silent=True),
    "traces": a_suite({"test_traces.py": TRACES}),
    "nested": a_suite({"test_nested.py": NESTED}),
    "a runner": a_suite({"run.py": DJANGO, "test_plain.py": PLAIN}, f"{PYTHON} run.py test_plain"),
    "by python": a_suite({"run.py": WRAPPER, "test_plain.py": PLAIN}, f"{PYTHON} run.py {UNITTEST}"),
    "make": a_suite({"Makefile": f"test:\n\t{UNITTEST}\n", "test_plain.py": GREEN}, "make -s test"),
    "piped": a_suite({"test_plain.py": PLAIN}, f"set +x -o pipefail; {UNITTEST} 2>&1 | cat"),
    "two runs": a_suite({"test_a.py": GREEN, "test_b.py": GREEN}, f"{UNITTEST} test_a; {UNITTEST} test_b"),
    "the image's own start": a_suite(
        {"site/sitecustomize.py": "import sys\nprint('started', __name__, 'unittest' in sys.modules)\n", "test_a.py": GREEN},
        env="mkdir -p /tmp/own; cp site/* /tmp/own; export PYTHONPATH=/tmp/own"),
    "the image's own start is broken": a_suite(
        {"site/sitecustomize.py": "raise RuntimeError('at start')\n", "test_a.py": GREEN},
        env="mkdir -p /tmp/own; cp site/* /tmp/own; export PYTHONPATH=/tmp/own"),
    "a unittest that is not known": a_suite(
        {"site/sitecustomize.py": "import unittest.case\ndel unittest.case._Outcome.testPartExecutor\n"
                                  "unittest.case.TestCase.run = lambda self, result: result.addSuccess(self)\n",
         "test_a.py": GREEN},
        env="mkdir -p /tmp/odd; cp site/* /tmp/odd; export PYTHONPATH=/tmp/odd", silent=True),
    "coverage": a_suite({"test_plain.py": GREEN}, f"{PYTHON} -m coverage run -m unittest -v", needs="coverage"),
}  # fmt: skip


FAST = (
    "plain", "parts", "classes", "broken module", "no environment", "traces", "a runner", "two runs",
    "the image's own start", "a unittest that is not known",
)  # fmt: skip


@pytest.mark.parametrize("name", slow_but(FAST, ZOO))
async def test_reporter_does_not_change_an_honest_run(sandbox: Sandbox, name: str) -> None:
    suite = ZOO[name]
    watched = await run_twice(sandbox, suite, "django")
    told = watched.report
    if suite.silent:
        return
    assert told.sessions == (2 if name == "two runs" else 1)
    assert bool(told.exit_status) is bool(watched.exit_code)
    found = log_reader("django").parse(watched.log)
    assert found
    # one test prints the line of another, which misleads the log parser
    statuses, found = (
        {test: status for test, status in known.items() if not test.endswith("printing")}
        for known in (told.statuses, found)
    )
    found = {
        test: status
        for test, status in found.items()
        if test in statuses or test != "test_plain.Case.test_bad"
    }
    for test in {"test_parts.Case.test_parts", "test_parts.Case.test_error_parts"} & set(statuses):
        assert statuses.pop(test) in ("FAILED", "ERROR")  # the log may tell of parts alone
        found = {known: status for known, status in found.items() if known != test}
    assert statuses == found
    assert set(found) - {name for name in found if " " in name} <= {*told.collected, *statuses}


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_reporter_program_is_self_contained(runner: Runner) -> None:
    """It contains all that it uses of the part that both programs share."""
    table = symtable.symtable(source(runner), "inside.py", "exec")
    known = {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }
    used, tables = set[str](), [table]
    while tables:
        one = tables.pop()
        used |= {symbol.get_name() for symbol in one.get_symbols() if symbol.is_global()}
        tables += one.get_children()
    assert used - known - set(dir(builtins)) == {"__file__", "__name__"} - set(dir(builtins))


# Cheats, through the whole grader

TESTS = """import unittest
from calc import add

class AddTest(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(add(0, 0), 0)
"""
HIDDEN = """
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""
WANTED = ("tests.test_calc.AddTest.test_add", "tests.test_calc.AddTest.test_zero")
LINES = "".join(f"{test.rpartition('.')[2]} ({test}) ... ok\\n" for test in WANTED)
FORGED = f"{LINES}\\n{'-' * 70}\\nRan 2 tests in 0.001s\\n\\nOK\\n"

ATTACKS = {
    "forged log, exit": f"import os\nos.write(1, b'''{FORGED}''')\nos._exit(0)",
    "forged log at exit": f"import atexit, os\natexit.register(lambda: (os.write(1, b'''{FORGED}'''), os._exit(0)))",
    "forged log, everywhere": f"""
import os
for descriptor in range(1, 1024):
    try: os.write(descriptor, b'''{FORGED}''')
    except OSError: pass
os._exit(0)
""",
    "exit in a test": f"import os\ndef add(a, b):\n    os.write(1, b'''{FORGED}'''); os._exit(0)\n",
    "run": """
import unittest
def run(self, result=None):
    result.startTest(self); result.addSuccess(self); result.stopTest(self)
    return result
unittest.TestCase.run = run
""",
    "call": "import unittest\nunittest.TestCase._callTestMethod = lambda self, method: None\nunittest.TestCase.__call__ = lambda self, result: (result.startTest(self), result.addSuccess(self), result.stopTest(self))\n",
    "run, by code": """
import unittest
def run(self, result=None):
    result.startTest(self); result.addSuccess(self); result.stopTest(self)
    return result
unittest.TestCase.run.__code__ = run.__code__
""",
    "the call, by code, and what it was as an attribute": """
import types, unittest
def call(self, method):
    if method.__name__ != "test_add": method()
known = unittest.TestCase._callTestMethod
known.__func__ = types.FunctionType(known.__code__, {})
known.__code__ = call.__code__
""",
    "the test's code, and what it was as an attribute": """
import sys, types
def add(a, b):
    f = sys.modules["tests.test_calc"].AddTest.test_zero
    f.__func__ = types.FunctionType(f.__code__, {})
    f.__code__ = (lambda self: None).__code__
    return 3
""",
    "assertions": "import unittest\nunittest.TestCase.assertEqual = lambda *rest, **more: None\n",
    "assertions, the functions for types": "import unittest\nunittest.TestCase._baseAssertEqual = lambda *rest, **more: None\n",
    "the result": """
import unittest
unittest.TextTestResult.addFailure = lambda self, test, error: self.addSuccess(test)
""",
    "the base result": """
import unittest
unittest.TestResult.addFailure = lambda self, test, error: self.addSuccess(test)
unittest.TestResult.wasSuccessful = lambda self: True
""",
    "the outcome": """
import contextlib, unittest.case
@contextlib.contextmanager
def part(self, *rest, **more):
    try: yield
    except Exception: pass
unittest.case._Outcome.testPartExecutor = part
""",
    "the suite": """
import unittest
def run(self, result, debug=False):
    for test in self:
        if isinstance(test, unittest.TestSuite): test.run(result)
        else: result.startTest(test); result.addSuccess(test); result.stopTest(test)
    return result
unittest.TestSuite.run = run
""",
    "skipped": "import unittest\ndef add(a, b): raise unittest.SkipTest('no')\n",
    "expected to fail": "import unittest\nunittest.TestCase.__unittest_expecting_failure__ = True\n",
    "AssertionError": "import builtins, unittest\nbuiltins.AssertionError = unittest.SkipTest\nunittest.TestCase.failureException = unittest.SkipTest\n",
    "deleted from the loader": """
import unittest
load = unittest.TestLoader.getTestCaseNames
unittest.TestLoader.getTestCaseNames = lambda self, kind: [name for name in load(self, kind) if name != 'test_add']
import os
os.write(1, b'test_add (tests.test_calc.AddTest.test_add) ... ok\\n')
""",
    "another test in its place": """
import sys
def add(a, b):
    kind = sys.modules['tests.test_calc'].AddTest
    kind.test_add = lambda self: None
    return a - b
import unittest
unittest.TestCase.__init_subclass__ = classmethod(lambda kind: setattr(kind, 'test_add', lambda self: None))
""",
    "a base of the test's class": """
import sys, types, unittest
frame = sys._getframe()
while frame.f_globals["__name__"] != "tests.test_calc": frame = frame.f_back
class Lenient(unittest.TestCase):
    def assertEqual(self, *rest, **more): pass
frame.f_globals["unittest"] = types.SimpleNamespace(TestCase=Lenient)
""",
    "emptied by what makes classes": EMPTIED_CLASS,
    "the reporter's end": "import atexit; atexit._clear()",
}  # fmt: skip


@pytest.fixture(scope="module")
def grade(
    provider: SandboxProvider, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str | None], Awaitable[Grade]]:
    """Grades a patch that puts `code` before the buggy function, or the fix."""
    repo = Repo(tmp_path_factory.mktemp("graded"))
    repo.commit(calc_py=BUGGY, tests__test_calc_py=TESTS)
    repo.sh("touch tests/__init__.py && git add -A && git commit -qm package")
    grader = swe_grader()
    fix = repo.diff(FIX)
    task = make_task(
        base_commit=repo.head,
        patch=fix,
        test_patch=repo.diff(f"printf %s {shlex.quote(HIDDEN)} >>tests/test_calc.py"),
        fail_to_pass=WANTED[:1],
        pass_to_pass=WANTED[1:],
        test_command=UNITTEST,
        test_files=(),
        log_parser="unittest",
    )

    async def grade(code: str | None) -> Grade:
        patch = fix
        if code is not None:
            patch = repo.diff(f"printf %s {shlex.quote(defining_add(code))} >calc.py")
        return (await grader.grade(task, patch.encode(), provider, repo.spec, 120)).grade

    return grade


async def test_fix_resolves_by_the_reporter(grade: Any) -> None:
    graded = await grade(None)
    assert graded.resolved, graded.reason
    assert graded.channel == "reporter"
    assert graded.tampering == ()


HARD = ("forged log, everywhere", "run", "the call, by code, and what it was as an attribute", "the result",
        "the outcome", "skipped", "deleted from the loader", "another test in its place")  # fmt: skip


@pytest.mark.parametrize("name", slow_but(HARD, ATTACKS))
async def test_attack_does_not_resolve(grade: Any, name: str) -> None:
    graded = await grade(ATTACKS[name])
    assert not graded.resolved
    assert graded.reason
