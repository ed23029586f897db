# Whether functions and constants are those that a file defines. This part follows `sources.py` in both
# programs and works with Python 3.6.
#
# mypy: ignore-errors
# ruff: noqa: B905, F821, SIM105, UP031 (names of the other parts; Python 3.6)
import sys
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType

BINDING = (MethodType, staticmethod, classmethod)
PARTS_OF_CODE = tuple(  # those that this Python has
    "co_" + name
    for name in (
        *("name", "code", "names", "varnames", "freevars", "cellvars", "flags", "argcount"),
        *("posonlyargcount", "kwonlyargcount", "exceptiontable"),
    )
    if hasattr(CodeType, "co_" + name)
)


def same_code(one, other):
    """Whether two code objects do the same, wherever they stand."""
    if type(one) is not CodeType or type(other) is not CodeType:
        alike = type(one) is frozenset and one == other  # of which the order may differ
        return type(one) is type(other) and (alike or repr(one) == repr(other))
    return all(getattr(one, name) == getattr(other, name) for name in PARTS_OF_CODE) and (
        len(one.co_consts) == len(other.co_consts) and all(map(same_code, one.co_consts, other.co_consts))
    )


def layers(function, inside=lambda value: True):
    """A function, and those and other callables that it wraps, as far as they show.

    Args:
        inside: Whether to go on to what one of them wraps.
    """
    found, seen = [], set()
    todo = [function]
    for value in todo:
        if type(value) in BINDING:  # of others, an attribute of this name means nothing
            value = value.__func__
        found.append(value)
        if not inside(value):
            continue
        inner = [getattr(value, "__wrapped__", None)]
        for cell in (getattr(value, "__closure__", None) or ()) if type(value) is FunctionType else ():
            try:
                inner.append(cell.cell_contents)
            except ValueError:  # an empty one
                pass
        for one in inner:
            if callable(one) and id(one) not in seen and len(todo) < 50:
                seen.add(id(one))
                todo.append(one)
    return found


def codes_within(function):
    """The code objects of a function and of what it wraps, as far as that shows; None for what is no
    function."""
    return [one.__code__ if type(one) is FunctionType else None for one in layers(function)]


def make_defined(root, known, odd, *makes):
    """Functions: what a file of `known` has to define; whether a function is the one of this name in it, None
    where it has no such one; and which names of a module of this file are another thing than the part of a
    test runner that it imports, or than the constant.

    Args:
        makes: The ways in which a module's code object may be made of its source.
    """
    expected, honest = make_expected(known), {}
    skips = sys.modules["unittest.case"].__file__  # `unittest.skip` stands around tests and runs none

    def defined_in(path):
        return expected(path, plain)

    def is_defined(path, name, function, space=None, is_test=False):
        if type(function) in BINDING:
            function = function.__func__
        code = function.__code__ if type(function) is FunctionType else None
        own = code is not None and (space is None or function.__globals__ is space)
        if own and honest.get((path, name, id(code))) is code:
            return True
        for make in makes:
            functions, replaced = expected(path, make).functions, expected(path, make).replaced
            if name not in functions:
                return None
            parts = name.split(".")
            may_differ = any(".".join(parts[:end]) in replaced for end in range(1, len(parts) + 1))
            right = [
                one
                for one in (layers(function) if may_differ else [function])
                if type(one) is FunctionType
                and any(same_code(one.__code__, code) for code in functions[name])
            ]
            if not right:
                continue
            if may_differ:
                tell_wrappers(path, name, function, right, is_test)
            elif own:
                honest[path, name, id(code)] = code
            return space is None or all(one.__globals__ is space for one in right)
        return False

    def tell_wrappers(path, name, function, right, is_test):
        """Say what stands around a decorated test, and of other functions whether code under test does.
        Where that is the project's own way, the reference has the same. What code under test wraps in turn is
        its own matter."""

        def is_outside(value):
            return not any(value is one for one in right) and not is_product(value)

        for one in layers(function, is_outside):
            place = one.__code__.co_filename if type(one) is FunctionType else ""
            if is_product(one):
                what = "code under test"
            elif not is_test or any(one is other for other in right) or place == skips:
                continue
            elif place:
                what = "%s of %s" % (one.__code__.co_name, "".join(c for c in place if not c.isdigit()))
            else:
                what = "%s.%s" % (type(one).__module__, type(one).__qualname__)
            odd("%s around %s in %s" % (what, name, path))

    def is_product(value):
        """Whether it is a function of the code under test, or of a kind that has such."""
        if type(value) is FunctionType:
            return is_ours(value)
        kinds = (value if issubclass(type(value), type) else type(value)).__mro__
        return any(is_ours(raw_function(entry)) for kind in kinds for entry in vars(kind).values())

    def wraps_product(function):
        return any(type(one) is FunctionType and is_ours(one) for one in layers(function))

    def is_ours(function):
        place = "" if function is None else function.__code__.co_filename
        return below(root, place) and place not in known

    def others_in(path, space):
        for name, value in defined_in(path).constants.items():
            if not all(same_constant(now, value) for now in entries_of(space, name)):
                yield name
        for name, module, part in defined_in(path).parts:
            right = (
                sys.modules.get(module) if part is None else getattr(sys.modules.get(module), part, MISSING)
            )
            if space.get(name, right) is not right:
                yield name
        for name, module, part in defined_in(path).taken:
            source = sys.modules.get(module)
            right = vars(source).get(part) if type(source) is ModuleType else None
            theirs = callable(right) and module not in REPLACED_BY_ALL
            theirs = theirs and not below(root, getattr(source, "__file__", None) or "")
            if theirs and space.get(name, right) is not right:
                yield name
        if "*" not in defined_in(path).words:
            for name in BUILTINS.intersection(space) - defined_in(path).words:
                yield name

    return defined_in, is_defined, others_in, wraps_product


def entries_of(space, name):
    """What a module has by a qualified name: nothing where something on the way is another thing; defaults of
    each function of that name, below decorators too."""
    *above, last = name.split(".")
    for part in above:
        found = space.get(part)
        if last in ("__defaults__", "__kwdefaults__") and part is above[-1]:
            return [
                getattr(one, last)
                for one in layers(found)
                if type(one) is FunctionType and one.__code__.co_name in (part, "<lambda>")
            ]
        if not isinstance(found, type):
            return []
        space = vars(found)
    return [space[last]] if last in space else []


def same_constant(one, other):
    """Whether two values of builtin types are the same, also where code under test made one of them; MISSING
    stands for any."""
    if other is MISSING:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        pairs = zip(chain(one, one.values()), chain(other, other.values()))
    elif type(one) in (list, tuple):
        pairs = zip(one, other)
    else:
        return bool(one == other or one != one)
    return len(one) == len(other) and all(same_constant(*pair) for pair in pairs)


def make_cases(odd):
    """Functions that look after a class of unittest.TestCase, and an object of it: what has the name of a
    method of TestCase stands before that. `first` notes a class, `again` compares it, `instance` looks at an
    object, `undefined` names what of a class its file, which has these words, does not define."""
    from unittest import TestCase

    methods = frozenset(name for kind in TestCase.__mro__[:-1] for name in vars(kind)) - {"__doc__"}
    methods |= {"__getattribute__", "__getattr__"}
    typed = frozenset(TestCase("run")._type_equality_funcs)
    seen = {}

    def own_of(kind):
        own = []
        for one in kind.__mro__:
            if one is TestCase:
                break
            space = vars(one)
            own += [(one, name, space[name]) for name in methods.intersection(space)]
        return own

    def first(kind):
        if id(kind) not in seen:
            seen[id(kind)] = kind, own_of(kind), [len(vars(one)) for one in kind.__mro__]

    def again(kind):
        found = seen.get(id(kind))
        if found is None or found[0] is not kind:
            return
        lengths = [len(vars(one)) for one in kind.__mro__]
        if lengths != found[2] or not all(vars(one).get(name) is value for one, name, value in found[1]):
            now = own_of(kind)
            before = {(id(one), name): value for one, name, value in found[1]}
            for one, name, value in now:
                if before.get((id(one), name), MISSING) is not value and not name.startswith("_classSetup"):
                    odd("%s.%s is another one" % (one.__name__, name))
            seen[id(kind)] = kind, now, lengths

    def instance(test, name):
        own = vars(test)
        for other in methods.intersection(own):
            if callable(own[other]) or other == "failureException":
                odd("%s of a test is another one" % other)
        if name in own and getattr(own[name], "__func__", None) is not getattr(type(test), name, None):
            odd("%s of a test is another one" % name)
        if not typed.issuperset(own.get("_type_equality_funcs", ())):
            odd("a test compares values in its own way")

    def undefined(kind, words):
        for name, value in list(vars(kind).items()):
            code = callable(value) or type(value) in (property, staticmethod, classmethod)
            if code and name in methods and name not in words:
                yield name

    return first, again, instance, undefined
