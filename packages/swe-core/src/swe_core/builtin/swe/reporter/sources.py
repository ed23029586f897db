# What the task's own files must define, according to their sources. This part follows `common.py` in both
# programs and works with Python 3.6.
#
# mypy: ignore-errors
# ruff: noqa: B905, F821 (names of the other parts; Python 3.6)
import ast
import hashlib
from types import CodeType, MappingProxyType, SimpleNamespace

OPTIMIZED, ONLY_TREE = 1, 1024  # CO_OPTIMIZED, PyCF_ONLY_AST
RUNNERS = ("pytest", "unittest", "unittest.case", "unittest.mock")


class Changed(Exception):
    """A file is not what it has to be."""


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


def taken(body, names):
    """What `from MODULE import PART` binds once and for all at the top of a file: the name, the module, the
    part."""
    again = {one.id for node in body for to in targets_of(node) for one in ast.walk(to) if is_bound(one)}
    again.update(getattr(node, "name", None) for node in body)  # of functions and classes
    for node in body:
        if type(node).__name__ == "ImportFrom" and node.level == 0:
            for alias in node.names:
                name = alias.asname or alias.name
                if name in names and name not in again:
                    yield name, node.module, alias.name


def words_of(tree):
    """Every name that a file binds, wherever; a star for what an import may bind."""
    found = set()
    for node in ast.walk(tree):
        for field in ("name", "asname"):
            word = getattr(node, field, None)
            if type(word) is str:
                found.add(word)
        if is_bound(node):
            found.add(node.id)
    return found


def is_bound(node):
    """Whether it is a name that gets a value there."""
    return type(node).__name__ == "Name" and type(node.ctx).__name__ == "Store"


def targets_of(node):
    """What a statement gives a value to, if it is an assignment."""
    kind = type(node).__name__
    if kind == "AnnAssign" and node.value is not None:
        return [node.target]
    return node.targets if kind == "Assign" else []


def literals(body, names, where="", above=MappingProxyType({})):
    """Constants that a module, or a class in it, binds once: what each is, by qualified name; and the
    defaults of functions, by the function's name and `.__defaults__` or `.__kwdefaults__`, MISSING for one
    that is no constant.

    Args:
        names: Those of the module that are bound once and for all.
        above: What the module around a class binds.
    """
    found, times, known = {}, {}, dict(above)
    for node in body:
        kind = type(node).__name__
        for target in targets_of(node):
            name = str(getattr(target, "id", None))
            times[name] = times.get(name, 0) + 1
            known[name] = constant(node.value)
            if where or name in names:
                found[where + name] = known[name]
            if type(node.value).__name__ == "Lambda":
                found.update(defaults(where + name, node.value.args, known))
        if kind in ("FunctionDef", "AsyncFunctionDef"):
            found.update(defaults(where + node.name, node.args, known))
        elif kind == "ClassDef":
            found.update(literals(node.body, names, where + node.name + ".", known))
    return {
        name: value
        for name, value in found.items()
        if value is not MISSING and times.get(name[len(where) :], 1) == 1
    }


def defaults(name, arguments, known):
    """The defaults of the function of a name: each where it stands in the function itself."""
    named = {
        argument.arg: constant(value, known)
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults)
        if value is not None
    }
    return {
        name + ".__defaults__": tuple(constant(value, known) for value in arguments.defaults) or None,
        name + ".__kwdefaults__": named or None,
    }


def constant(node, known=MappingProxyType({})):
    """The value of an expression that names nothing, such as `10 ** -6`, or a known constant; MISSING of
    another one, and of an empty list, which is there to be filled."""
    if type(node).__name__ == "Name":
        return known.get(node.id, MISSING)
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
        for target in targets_of(node):
            names.update(one.id for one in ast.walk(target) if is_bound(one))
    return names - later


def make_expected(known):
    """A function that gives what a file of `known` has to define: `functions`, their code objects by
    qualified name; `replaced`, those that are decorated; `parts`, what it imports of test runners;
    `names` that it binds, `constants` among them; `modules` that it imports, and what is `taken` of them; all
    `words` that it binds; its `classes`. None of a file that is not known. It raises Changed where the disk
    holds another file."""
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
                words=words_of(tree),
                classes=[node.name for node in tree.body if type(node).__name__ == "ClassDef"],
                taken=tuple(taken(tree.body, names)),
            )
        return done[path, make]

    return expected


def plain(source, path):
    """The code object of a module."""
    return compile(source, path, "exec", 0, True)
