# What must not change while tests run: that by which they compare. This part follows `own_files.py` in both
# programs and works with Python 3.6.
#
# What runs the tests is not watched: a test that did not come to its end is no pass, for whatever reason.
#
# mypy: ignore-errors
# ruff: noqa: F821, UP031 (names of the other parts; Python 3.6)
import builtins
import os
import sys
from types import FunctionType, ModuleType

CODE = (FunctionType, type, property, staticmethod, classmethod)
# Of what is watched, that which is looked at after each test; after unittests alone.
OFTEN = ("pytest", "_pytest.outcomes", "_pytest.python_api", "_pytest.raises")
CASES = ("unittest.case",)
COMPARING = (
    *OFTEN,
    *CASES,
    *("ast", "doctest", "unittest.mock", "unittest.util", "_pytest._code.code", "_pytest.assertion.rewrite"),
    *(
        "_pytest.assertion.util",
        "_pytest.capture",
        "_pytest.fixtures",
        "_pytest.logging",
        "_pytest.monkeypatch",
    ),
    *("_pytest.pytester", "_pytest.recwarn", "_pytest.subtests", "_pytest.tmpdir", "numpy.testing"),
    *("numpy.testing._private.utils", "pandas._testing", "pandas._testing.asserters"),
    *("torch.testing._comparison", "django.test.testcases"),
)
SET_LATER = frozenset(("_config", "_current", "_reprcompare", "_assertion_pass", "fspath"))


def loaded():
    return [name for name in COMPARING if type(sys.modules.get(name)) is ModuleType]


class Watch:
    """What the modules that compare have now."""

    def __init__(self):
        self.often, self.cases, self.rest, self.grown = Snapshot(), Snapshot(), Snapshot(), []
        self.names = []
        space = vars(builtins)
        functions = [name for name, value in space.items() if not is_kind(value, type) and name != "_"]
        self.often.add("builtins", space, functions)
        self.rest.add("builtins", space, space.keys() - functions - {"_"})
        self.rest.add("os", vars(os), ["write", "_exit", "fork", "getpid"])
        self.rest.add("builtins of the tests", PRIVATE, PRIVATE.keys())
        self.rest.add("builtins of the tests", vars(Builtins), ["__missing__"])
        for space in (PRIVATE, vars(Builtins)):
            self.grown.append(("pytest builtins of the tests", space, frozenset(space), None))
        self.take()

    def take(self):
        """Take the modules that were loaded since."""
        for name in loaded():
            if name not in self.names:
                self.names.append(name)
                found = self.often if name in OFTEN else self.cases if name in CASES else self.rest
                self.add(name, sys.modules[name], found)
        self.small = [space for where, space, _, _ in self.grown if where.startswith(OFTEN + CASES)]
        self.sizes = [*map(len, self.small)]
        for found in (self.often, self.cases, self.rest):
            found.end()

    def add(self, name, module, found):
        space = vars(module)
        self.grown.append((name, space, frozenset(space), BUILTINS))
        found.add(name, space, [key for key, one in space.items() if self.is_fixed(key, one)])
        for kind in classes_of(name, space):
            if issubclass(kind, Warning):  # compares nothing
                continue
            where, own = "%s.%s" % (name, kind.__name__), vars(kind)
            found.add(where, own, [key for key, one in own.items() if self.is_fixed(key, one)])
            self.grown.append((where, own, frozenset(own), None))

    def is_fixed(self, key, value):
        return key not in SET_LATER and key not in NOT_LOOKED_AT and is_kind(value, CODE + CONSTANT)

    def is_unchanged(self, of_case):
        """Whether all is as it was that is looked at after each test."""
        if [*map(len, self.small)] != self.sizes or not self.often.is_unchanged():
            return False
        return not of_case or self.cases.is_unchanged()

    def changed(self, whole, of_case=False):
        """What was replaced or added: where, the name, what is there instead. The last is None for what was
        not replaced and has other code."""
        looked_at = (self.often, self.cases, self.rest) if whole else (self.often, self.cases)[: 1 + of_case]
        for found in looked_at:
            for where, name in found.changed(whole):
                for place, space, names, values in found.spaces:
                    if place == where and name in names:
                        now = space.get(name)
                        yield where, name, None if now is values[names.index(name)] else now
        if whole or [*map(len, self.small)] != self.sizes:
            for where, space, names, counted in self.grown:
                for name in space.keys() - names - SET_LATER:
                    if not name.startswith("_pytest") and (counted is None or name in counted):
                        yield where, name, space[name]


def make_watch(root):
    """Functions: `watch` names what was replaced or added since now; `renew` names only what is not known to
    be of an installed plugin, and takes over all."""
    watched = [Watch()]

    def watch(whole=False, of_case=False):
        if not whole and watched[0].is_unchanged(of_case):
            return []
        return ["%s.%s" % (where, name) for where, name, _ in watched[0].changed(whole, of_case)]

    def renew():
        told, changed = [], list(watched[0].changed(True))
        for where, name, value in changed:
            code = raw_code(value)
            if code is None or below(root, code.co_filename):
                told.append("%s.%s" % (where, name))
        if changed:
            watched[0] = Watch()
        elif not set(loaded()).issubset(watched[0].names):
            watched[0].take()
        return told

    return watch, renew


def with_own_builtins(module):
    """Make the functions of a module again, with builtins that code under test cannot replace."""
    space = vars(module)
    space["__builtins__"] = PRIVATE
    for owner in [module, *classes_of(module.__name__, space)]:
        for name, value in list(vars(owner).items()):
            old = raw_function(value)
            if type(value) is property or old is None or old.__globals__ is not space:
                continue
            new = FunctionType(old.__code__, space, old.__name__, old.__defaults__, old.__closure__)
            for key in ("__kwdefaults__", "__qualname__", "__annotations__", "__doc__"):
                setattr(new, key, getattr(old, key))
            vars(new).update(vars(old))
            setattr(owner, name, new if type(value) is FunctionType else type(value)(new))


def tell_forks():
    """Watch for forks of this process: the other one could try what makes a test pass. Returns a function
    that registers a callback."""
    callbacks = []

    def forked():
        for callback in callbacks:
            callback()

    def fork():
        forked()
        return honest()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=forked)
    else:  # before Python 3.7
        honest = os.fork
        os.fork = sys.modules["posix"].fork = fork
    return callbacks.append


def make_around(root, odd, on_fork, watch, look, look_at_tracers, instance, is_space):
    """Functions: `begin` a test, `around` says what happened around its own code, `done` ends it."""
    place, forks = [None], [None]  # of the test under way

    def forked():
        if forks[0] is None:
            odd("the process was forked outside of a test")
        else:
            forks[0] += 1

    def begin():
        place[0], forks[0] = directory(), 0

    def done():
        forks[0] = None

    def around(method, began, path, of_case):
        texts = []
        if began and began[0].names[:1] == ["self"]:
            texts += instance(began[1][0][0], method)
        if began and not is_space(root + began[0].label.partition("::")[0], began[1][1]):
            texts.append("it ran in another module")
        if directory() != place[0]:
            texts.append("it left its directory")
        if forks[0]:
            texts.append("it forked the process")
        texts += ["it replaced %s" % what for what in watch(False, of_case)]
        look(path)
        look_at_tracers()
        return texts

    on_fork(forked)
    return begin, around, done


def joined(texts):
    """What there is to say of a test, as one text."""
    return "; ".join(texts)[:400]
