# What the task's own files have to define, and whether a function is the one that they define. It goes on
# from `common.py`, and both programs have it. Nothing newer than Python 3.6.
#
# mypy: ignore-errors
# ruff: noqa: B905, F821, SIM105, UP031
import ast
import hashlib
import sys
from itertools import chain
from types import CodeType, FunctionType, MethodType, SimpleNamespace

OPTIMIZED, ONLY_TREE = 1, 1024  # CO_OPTIMIZED, PyCF_ONLY_AST
RUNNERS = ("pytest", "unittest", "unittest.case", "unittest.mock")
BINDING = (MethodType, staticmethod, classmethod)
PARTS_OF_CODE = tuple(  # those that this Python has
    "co_" + name
    for name in (
        *("name", "code", "names", "varnames", "freevars", "cellvars", "flags", "argcount"),
        *("posonlyargcount", "kwonlyargcount", "exceptiontable"),
    )
    if hasattr(CodeType, "co_" + name)
)


class Changed(Exception):
    """A file is not what it has to be."""


def code_of(function):
    """The code objects of a function, through its decorators and the object that it is bound to."""
    codes = []
    for _ in range(10):
        if type(function) in BINDING:  # of others, attributes of these names mean nothing
            function = function.__func__
        codes.append(function.__code__ if type(function) is FunctionType else None)
        function = getattr(function, "__wrapped__", None)
        if function is None:
            break
    return codes


def same_code(one, other):
    """Whether two code objects do the same, wherever they stand."""
    if type(one) is not CodeType or type(other) is not CodeType:
        alike = type(one) is frozenset and one == other  # of which the order may differ
        return type(one) is type(other) and (alike or repr(one) == repr(other))
    return all(getattr(one, name) == getattr(other, name) for name in PARTS_OF_CODE) and (
        len(one.co_consts) == len(other.co_consts) and all(map(same_code, one.co_consts, other.co_consts))
    )


def decorated(body, pytests, where=""):
    """The qualified names of the functions in a list of statements that a decorator may have replaced. Those
    of pytest give the function itself.

    Args:
        pytests: What pytest and parts of it are called there.
    """
    for node in body:
        kind = type(node).__name__
        if kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            name = where + node.name
            for decorator in node.decorator_list:
                while type(decorator).__name__ in ("Call", "Attribute"):
                    decorator = decorator.func if type(decorator).__name__ == "Call" else decorator.value
                if getattr(decorator, "id", "") not in pytests:
                    yield name
        inner = node.name + "." if kind == "ClassDef" else ""
        if kind not in ("FunctionDef", "AsyncFunctionDef"):
            for part in ("body", "orelse", "finalbody"):
                for found in decorated(getattr(node, part, ()), pytests, where + inner):
                    yield found
            for handler in getattr(node, "handlers", ()):
                for found in decorated(handler.body, pytests, where):
                    yield found


def imported(body):
    """What statements import of test runners: the name that is bound, the module, the name in it or None."""
    for node in body:
        kind = type(node).__name__
        if kind == "Import":
            for alias in node.names:
                if alias.name in RUNNERS and "." not in (alias.asname or alias.name):
                    yield alias.asname or alias.name, alias.name, None
        elif kind == "ImportFrom" and node.level == 0 and node.module in RUNNERS:
            for alias in node.names:
                yield alias.asname or alias.name, node.module, alias.name


def modules_of(tree):
    """The modules that a file imports from elsewhere, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        kind = type(node).__name__
        if kind == "Import":
            found.update(alias.name for alias in node.names)
        elif kind == "ImportFrom" and node.level == 0:
            found.add(node.module)
            found.update(node.module + "." + alias.name for alias in node.names)
    return frozenset(found)


def literals(body, names, where=""):
    """Constants that a module, or a class in it, binds once: what each is, by qualified name; and the
    defaults of functions, by the function's name and `.__defaults__`, MISSING for one that is no constant.

    Args:
        names: Those of the module that are bound once and for all.
    """
    found, times = {}, {}
    for node in body:
        kind = type(node).__name__
        for target in node.targets if kind == "Assign" else ():
            name = getattr(target, "id", None)
            times[name] = times.get(name, 0) + 1
            value = constant(node.value)
            if where or name in names:
                found[where + str(name)] = value
        if kind == "FunctionDef":
            found[where + node.name + ".__defaults__"] = tuple(map(constant, node.args.defaults)) or None
        elif kind == "ClassDef":
            found.update(literals(node.body, names, where + node.name + "."))
    return {
        name: value
        for name, value in found.items()
        if value is not MISSING and times.get(name[len(where) :], 1) == 1
    }


def constant(node):
    """The value of an expression that names nothing, such as `10 ** -6`; MISSING of another one, and of an
    empty list, which is there to be filled."""
    try:
        code = compile(ast.Expression(node), "", "eval", 0, True)
        if code.co_names or any(type(part) is CodeType for part in code.co_consts):
            return MISSING
        value = eval(code, {"__builtins__": {}})
        return value if value or type(value) not in (list, dict, set) else MISSING
    except (ArithmeticError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return MISSING


def bound(tree):
    """The names that a module binds once and for all: no function of it says `global` of them."""
    names, later = set(), set()
    for node in ast.walk(tree):
        if type(node).__name__ == "Global":
            later.update(node.names)
    for node in tree.body:
        kind = type(node).__name__
        if kind in ("Import", "ImportFrom"):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            names.add(node.name)
        elif kind == "Assign":
            names.update(target.id for target in node.targets if type(target).__name__ == "Name")
    return names - later


def make_expected(known):
    """A function that gives what a file of `known` has to define: `functions`, their code objects by
    qualified name; `replaced`, those that are decorated; `parts`, what it imports of test runners;
    `names` that it binds, `constants` among them; `modules` that it imports. None of a file that is not
    known. It raises Changed where the disk holds another file."""
    read, done = {}, {}
    digests = {40: hashlib.sha1, 64: hashlib.sha256}

    def source_of(path):
        if path not in read:
            with open(path, "rb") as file:
                data = file.read()
            if digests[len(known[path])](b"blob %d\0" % len(data) + data).hexdigest() != known[path]:
                raise Changed(path)
            read[path] = data
        return read[path]

    def collect(code, where, found):
        for value in code.co_consts:
            if type(value) is CodeType:
                name = where + value.co_name
                if value.co_flags & OPTIMIZED:  # a function, no body of a class
                    found.setdefault(name, []).append(value)
                collect(value, name + ".", found)

    def expected(path, make):
        if path not in known:
            return None
        if (path, make) not in done:
            source, found = source_of(path), {}
            tree = compile(source, path, "exec", ONLY_TREE, True)
            collect(make(source, path), "", found)
            parts, names = tuple(imported(tree.body)), bound(tree)
            pytests = {name for name, module, _ in parts if module == "pytest"}
            done[path, make] = SimpleNamespace(
                functions=found,
                replaced=frozenset(decorated(tree.body, pytests)),
                parts=parts,
                names=names,
                constants=literals(tree.body, names),
                modules=modules_of(tree),
            )
        return done[path, make]

    return expected


def codes_within(function):
    """The code objects of a function and of those that it wraps, as far as they show."""
    found, seen = [function], set()
    for value in found:
        if type(value) in BINDING:
            value = value.__func__
        inner = [getattr(value, "__wrapped__", None)]
        for cell in (getattr(value, "__closure__", None) or ()) if type(value) is FunctionType else ():
            try:
                inner.append(cell.cell_contents)
            except ValueError:  # an empty one
                pass
        for one in inner:
            if callable(one) and id(one) not in seen and len(found) < 50:
                seen.add(id(one))
                found.append(one)
    return [code for one in found for code in code_of(one)]


def plain(source, path):
    """The code object of a module."""
    return compile(source, path, "exec", 0, True)


def make_defined(root, known, odd, *makes):
    """Functions: what a file of `known` has to define; whether a function is the one of this name in it, None
    where it has no such one; and which names of a module of this file are another thing than the part of a
    test runner that it imports, or than the constant.

    Args:
        makes: The ways in which a module's code object may be made of its source.
    """
    expected, honest = make_expected(known), {}

    def defined_in(path):
        return expected(path, plain)

    def is_defined(path, name, function):
        codes = code_of(function)
        if codes[0] is not None and honest.get((path, name, id(codes[0]))) is codes[0]:
            return True
        for make in makes:
            functions, replaced = expected(path, make).functions, expected(path, make).replaced
            if name not in functions:
                return None
            parts = name.split(".")
            may_differ = any(".".join(parts[:end]) in replaced for end in range(1, len(parts) + 1))
            within = codes_within(function) if may_differ else codes[:1]
            right = [code for code in within if any(same_code(code, one) for one in functions[name])]
            if not right:
                continue
            if may_differ:
                tell_wrappers([code for code in within if code not in right])
            else:
                honest[path, name, id(codes[0])] = codes[0]
            return True
        return False

    def tell_wrappers(codes):
        """Say what code under test, or of no file, stands around decorated tests. Where that is the project's
        own way, the reference has the same."""
        for code in codes:
            if code is None:
                odd("tests run in an object")
            elif code.co_filename.startswith("<") or (
                below(root, code.co_filename) and code.co_filename not in known
            ):
                place = "".join(part for part in code.co_filename if not part.isdigit())  # that are counted
                odd("tests run in %s of %s" % (code.co_name, place))

    def others_in(path, space):
        for name, value in defined_in(path).constants.items():
            now = entry_of(space, name)
            if now is not MISSING and not same_constant(now, value):
                yield name
        for name, module, part in defined_in(path).parts:
            right = (
                sys.modules.get(module) if part is None else getattr(sys.modules.get(module), part, MISSING)
            )
            if space.get(name, right) is not right:
                yield name

    return defined_in, is_defined, others_in


def entry_of(space, name):
    """What a module has by a qualified name; MISSING where something on the way is another thing."""
    *above, last = name.split(".")
    for part in above:
        found = space.get(part)
        if last == "__defaults__" and part is above[-1]:
            function = raw_function(found)
            for _ in range(10):
                if function is not None and function.__code__.co_name == part:
                    return function.__defaults__
                function = raw_function(getattr(function, "__wrapped__", None))  # of a decorator's
            return MISSING
        if not isinstance(found, type):
            return MISSING
        space = vars(found)
    return space.get(last, MISSING)


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
    object."""
    from unittest import TestCase

    methods = frozenset(name for kind in TestCase.__mro__[:-1] for name in vars(kind)) - {"__doc__"}
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

    return first, again, instance
