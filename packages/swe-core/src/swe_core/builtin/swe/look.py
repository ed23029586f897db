"""Look: what one syntax tree has of the meanings in `meanings.py`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set

from swe_core.builtin.swe.folded import Known, folded
from swe_core.builtin.swe.lies import COMPARISONS, METHODS, lies
from swe_core.builtin.swe.meanings import (
    ANY_SOURCE,
    BY_NAME,
    COMPUTED,
    DECODERS,
    DOTTED,
    EQUAL,
    EVALUATORS,
    FOREIGN,
    FRAMES,
    HANDED,
    HIDDEN,
    IMPORTERS,
    IMPORTS,
    KEYWORDS,
    LOOKS,
    MODULES,
    NAMES,
    OF_PYTEST,
    OF_TESTS,
    OWN,
    PARTS,
    PARTS_OF_TEXT,
    READERS,
    REPLACED,
    ROOTS,
    RUNNER,
    TESTS,
    TEXT,
    WALKERS,
    WHOLE,
)

_MAX_SEARCHED, _MAX_NAME, _MAX_MEANINGS, _MAX_DEPTH = 20, 100, 8, 20
_WORD = re.compile(r"\w+")


class Look:
    """A look at one file."""

    def __init__(self, tree: ast.Module, tests: Set[str]) -> None:
        self._tree = tree
        self._tests = tests
        self._means: dict[str, set[str]] = {}  # what a name stands for in this file, such as "os.path"
        self._bound: Counter[str] = Counter()
        self._functions: dict[str, ast.FunctionDef] = {}
        self._known: dict[str, Known] = {}
        self._rooted: set[str] = set()  # names of directories around the source
        self._spoken_for: set[int] = set()  # the ids of nodes that are documentation, or parts of a string
        assigned: list[tuple[ast.expr, ast.expr]] = []
        for node in ast.walk(tree):
            match node:
                case ast.Expr(value=ast.Constant() as text):
                    self._spoken_for.add(id(text))
                case ast.Import(names=names):
                    for alias in names:
                        top = alias.name.partition(".")[0]
                        self._mean(alias.asname or top, alias.name if alias.asname else top)
                case ast.ImportFrom(module=str(module), level=0, names=names):
                    for alias in names:
                        self._mean(alias.asname or alias.name, f"{module}.{alias.name}")
                case ast.FunctionDef(name=name):
                    self._functions[name] = node
                    self._bound[name] += 1
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    self._bound[name] += 1
                case ast.Assign(targets=[*targets], value=value):
                    assigned += [pair for target in targets for pair in _pairs(target, value)]
                case (
                    ast.AnnAssign(target=target, value=ast.expr() as value)
                    | ast.NamedExpr(target=target, value=value)
                ):
                    assigned.append((target, value))
                case ast.For(target=target, iter=ast.Tuple(elts=values) | ast.List(elts=values)):
                    assigned += [(target, value) for value in values]
        for target, value in assigned:
            if isinstance(target, ast.Name):
                for path in self._paths(value):
                    self._mean(target.id, path)
                if any(_name(one) in ROOTS | self._rooted for one in ast.walk(value)):
                    self._rooted.add(target.id)
                if self._bound[target.id] == 1:
                    self._know(target.id, value)

    def _mean(self, name: str, path: str) -> None:
        if len(means := self._means.setdefault(name, set())) < _MAX_MEANINGS and len(path) < _MAX_NAME:
            means.add(path)

    def _know(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.List | ast.Tuple) and len(value.elts) < _MAX_NAME:
            self._known[name] = value.elts
        elif (text := self._text(value)) is not None:
            self._known[name] = text

    def _text(self, node: ast.expr) -> str | None:
        return folded(node, self._known)[0]

    def _paths(self, node: ast.expr, depth: int = 0) -> Set[str]:
        """Return what an expression may stand for: `getattr(os, "path")` is "os.path"."""
        if depth > _MAX_DEPTH:
            return set()
        key: str | None = None
        match node:
            case ast.Name(id=name):
                return self._means.get(name, set()) or ({f"builtins.{name}"} if name in OWN else set())
            case ast.Attribute(value=of, attr=key):
                pass
            case ast.NamedExpr(value=value):
                return self._paths(value, depth + 1)
            case ast.Call(func=ast.Name(id="vars"), args=[of]):
                key = "__dict__"
            case ast.Call(func=ast.Name(id="getattr"), args=[of, name, *_]):
                key = self._text(name)
            case ast.Call(func=ast.Attribute(value=of, attr="get" | "pop" | "__getitem__"), args=[name, *_]):
                key = self._text(name)
            case ast.Call(func=function, args=[name, *_]) if _called(function) in IMPORTERS:
                text = self._text(name)
                return {text.replace(":", ".")} if text else set()
            case ast.Subscript(value=of, slice=name):
                key = self._text(name)
            case _:
                return set()
        if key is None:
            return set()
        found = {f"{path}.{key}" for path in self._paths(of, depth + 1)}
        return {path.replace(".__dict__.", ".").removeprefix("sys.modules.") for path in found}

    def found(self) -> Iterator[tuple[str, str, int]]:
        """Yield the kind of each construct, its name, its line."""
        for node in ast.walk(self._tree):  # from the outside in
            for kind, name in self._of(node):
                yield (
                    kind,
                    name,
                    getattr(node.iter if isinstance(node, ast.comprehension) else node, "lineno", 0),
                )

    def _of(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        if not isinstance(node, ast.Constant):
            yield from self._identifiers(node)
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from self._module(alias.name)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from self._module(module)
                for alias in names:
                    yield from self._test(f"{module}.{alias.name}")
                    yield from self._part(f"{module}.{alias.name}")
            case ast.FunctionDef(name=name) if self._lies(name, node):
                yield EQUAL, name
            case ast.AsyncFunctionDef(name=name) if name in COMPARISONS:
                yield EQUAL, name
            case ast.FunctionDef(name="__class__") | ast.Assign(targets=[ast.Name(id="__class__")]):
                yield EQUAL, "__class__"
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    key = target.slice if isinstance(target, ast.Subscript) else None
                    yield from self._method(_name(target) or (self._text(key) or "" if key else ""), value)
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield from self._stored(node)
            case ast.Compare(comparators=[value]):
                self._spoken_for.add(id(value))  # `"numpy" in sys.modules`
            case ast.Call():
                yield from self._call(node)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if key is not None:
                        yield from self._method(self._text(key) or _any_operator(key), value)
            case ast.DictComp(key=key, value=value):
                yield from self._method(_any_operator(key), value)
            case ast.BinOp(op=ast.Div(), right=right) if _is_of_tests(self._text(right)):
                yield TESTS, "a path of tests"
            case ast.For(iter=where) | ast.comprehension(iter=where):
                inside = node.ifs if isinstance(node, ast.comprehension) else [*_tests_in(node)]
                if "os.environ" in self._paths(where):
                    yield RUNNER, "the whole of os.environ"
                if _lists_names(where) and any(_called(one) in COMPUTED for one in _calls(inside)):
                    yield HIDDEN, "a name by its length or hash"
            case _:
                pass
        if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            yield from self._used(node)
        if isinstance(node, ast.Constant | ast.BinOp | ast.JoinedStr | ast.Call | ast.Subscript):
            yield from self._string(node)

    @staticmethod
    def _identifiers(node: ast.AST) -> Iterator[tuple[str, str]]:
        for field in node._fields:
            value = getattr(node, field, None)
            for name in value if isinstance(value, list) else (value,):
                if isinstance(name, str) and not (name == "__subclasses__" and _is_own(node)):
                    yield from ((NAMES[word], word) for word in name.split(".") if word in NAMES)

    def _used(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in EVALUATORS and not (
                self._bound[name] or (name == "compile" and name in self._means)
            ):
                yield TEXT, name
            case (
                ast.Subscript(value=of, slice=key)
                | ast.Call(func=ast.Attribute(value=of, attr="get"), args=[key, *_])
            ) if "sys.modules" in self._paths(of):
                if _name(key) in ("__name__", "__module__") or self._text(key) is not None:
                    self._spoken_for.add(id(of))
        if isinstance(node, ast.Attribute):
            self._spoken_for.add(-id(node.value))  # a part of it is meant, and not the whole
        elif isinstance(node, ast.Call) and _called(node) in LOOKS:
            self._spoken_for.update(-id(one) for one in node.args)
        for path in self._paths(node) if id(node) not in self._spoken_for else ():
            if path == "sys.path":
                continue
            if isinstance(node, ast.Subscript | ast.Call):
                yield from self._module(path)
            if not isinstance(node, ast.Name) or path == "sys.modules":
                yield from self._part(path)
            module = path.removesuffix(".__dict__")
            bare = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not self._bound[node.id]
            bare = bare and path in HANDED and -id(node) not in self._spoken_for
            if module in FOREIGN or module == "sys" if module != path else bare:
                yield (HIDDEN if module in WHOLE else REPLACED), f"the whole of {module}"

    def _string(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        if id(node) in self._spoken_for:
            return
        text, parts = folded(node, self._known)
        self._spoken_for.update(parts)
        if not text:
            return
        words = _WORD.findall(text)
        plain = DOTTED.fullmatch(text) is not None
        for word in words:
            if word in NAMES and (
                plain or (word.startswith(("_", "f_", "tb_", "gi_", "cr_", "get_")) and "_" in word)
            ):
                yield NAMES[word], word
        if (
            plain
            and text in COMPARISONS | {"__class__"}
            and isinstance(node, ast.Subscript | ast.Call | ast.BinOp)
        ):
            yield EQUAL, text  # a name that is composed
        kinds = [kind for part, kind in PARTS_OF_TEXT.items() if part in text]
        kinds += [RUNNER] if OF_PYTEST.search(text) and text not in NAMES else []
        kinds += [TESTS] if self._tests and not self._tests.isdisjoint(words) else []
        kinds += [TESTS] if text.endswith(".py") and _is_of_tests(text) else []
        for kind in kinds:
            yield kind, repr(text[:60])

    def _call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        function, arguments = node.func, node.args
        name = _called(node)
        texts = [self._text(one) for one in arguments[:_MAX_SEARCHED]]
        owner = function.value if isinstance(function, ast.Attribute) else None
        if isinstance(function, ast.Name) and name in EVALUATORS and self._bound[name]:
            yield TEXT, f"{name}()"
        if name in BY_NAME and texts:
            said = texts[min(1, len(texts) - 1)]
            if said in EVALUATORS:
                yield TEXT, said
            whose = next(iter(self._paths(arguments[0])), "")
            if said is None and whose in WHOLE and len(texts) > 1:
                yield HIDDEN, f"{name}({whose}, …)"
            if (
                len(texts) > 1
                and name in ("getattr", "__getattribute__")
                and any(map(_lists_names, _inner(arguments[1])))
            ):
                yield HIDDEN, f"{name}() of a listed name"
            if name in ("setattr", "delattr", "__setattr__", "__delattr__"):
                if whose := self._foreign(arguments[0]) or _of_type(arguments[0]):
                    yield REPLACED, f"{name}({whose}, …)"
                if len(arguments) > 2:
                    if said in METHODS:
                        yield EQUAL, said
                    yield from self._method(_any_operator(arguments[1]), arguments[2])
        for keyword in node.keywords:
            yield from self._method(keyword.arg or "", keyword.value)
            if (name, keyword.arg) in KEYWORDS:
                yield FRAMES, f"{name}({keyword.arg}=)"
        if owner is not None:
            if name in ("update", "__setitem__", "setdefault", "pop", "clear", "__ior__"):
                yield from self._into(owner, name)
            if name in ("__setitem__", "setdefault") and len(arguments) > 1 and texts[0]:
                yield from self._method(texts[0], arguments[1])
            if name in ("insert", "append", "extend") and "sys.path" in self._paths(owner):
                yield IMPORTS, "sys.path"
        if name in READERS and any(map(_is_of_tests, texts)):
            yield TESTS, "a path of tests"
        if name in WALKERS and self._walks_source(node, texts):
            yield TESTS, f"{name}() of the repository"
        given = [*arguments, owner] if owner is not None else arguments
        if name in DECODERS and any(_is_data(one) for one in given):
            yield HIDDEN, f"{name}()"
        if "rot13" in (folded_text.replace("_", "").replace("-", "") for folded_text in texts if folded_text):
            yield HIDDEN, "rot13"
        if name in ("bytes", "bytearray", "join") and arguments:
            match arguments[0]:
                case (
                    ast.GeneratorExp(elt=element, generators=[inner])
                    | ast.ListComp(elt=element, generators=[inner])
                ) if (
                    self._text(inner.iter) is not None
                    or _is_data(inner.iter)
                    or "chr" in map(_called, _calls([element]))
                ):
                    if name != "join" or "chr" in map(_called, _calls([element])):
                        yield HIDDEN, f"{name}() of characters"

    def _walks_source(self, node: ast.Call, texts: list[str | None]) -> bool:
        inside = list(_inner(node))
        rooted = any(
            _name(one) in ROOTS | self._rooted
            or (isinstance(one, ast.Constant) and one.value in (".", "..", "./", "../"))
            for one in inside
        )
        pattern = next((text for text in texts if text and text.strip("./")), None)
        return rooted and (pattern is None or ANY_SOURCE.fullmatch(pattern) is not None)

    def _lies(self, name: str, function: ast.FunctionDef) -> bool:
        """Return whether a method, what decorates it, or the function that it returns lies."""
        if name not in METHODS:
            return False
        decorators = [self._functions.get(_called(one)) for one in function.decorator_list]
        returned = [
            self._functions.get(_name(one.value.func))
            for one in ast.walk(function)
            if isinstance(one, ast.Return) and isinstance(one.value, ast.Call)
        ]
        return (
            lies(name, function)
            or any(isinstance(one, ast.Lambda) for one in function.decorator_list)
            or any(one is not None and _makes_lies(name, one) for one in decorators)
            or any(one is not None and name in COMPARISONS and lies(name, one) for one in returned)
        )

    def _method(self, name: str, value: ast.expr) -> Iterator[tuple[str, str]]:
        """`{"__eq__": …}`, `dict(__eq__=…)`, `__eq__ = …`: a method that tells nothing."""
        if name not in METHODS:
            return
        match value:
            case ast.Lambda():
                lie = lies(name, value)
            case ast.Name(id=given) if given in self._functions:
                lie = self._lies(name, self._functions[given])
            case ast.Name(id=given):
                lie = given not in self._bound and not any(
                    path.startswith("operator.__") for path in self._paths(value)
                )
            case ast.Attribute(attr=attribute):
                lie = (
                    attribute != name
                    and bool(self._foreign(value))
                    and "operator." not in str(self._paths(value))
                )
            case ast.Call(func=function, args=given):
                made = self._functions.get(_name(function))
                lie = any(isinstance(one, ast.Lambda) and lies(name, one) for one in given)
                lie = lie or (made is not None and _makes_lies(name, made))
            case _:
                lie = False
        if lie:
            yield EQUAL, name

    def _module(self, name: str) -> Iterator[tuple[str, str]]:
        top = name.partition(".")[0]
        if (kind := MODULES.get(top)) is not None:
            yield kind, f"import {name}"
        if top in ("tests", "conftest"):
            yield TESTS, f"import {name}"
        yield from self._test(name)

    def _test(self, name: str) -> Iterator[tuple[str, str]]:
        if not self._tests.isdisjoint(name.split(".")):
            yield TESTS, f"import {name}"

    @staticmethod
    def _part(path: str) -> Iterator[tuple[str, str]]:
        if (kind := PARTS.get(path)) is not None:
            yield kind, path
        elif path.endswith(".*") and any(part.startswith(path[:-1]) for part in PARTS):
            yield IMPORTS, path

    def _stored(self, target: ast.Attribute | ast.Subscript) -> Iterator[tuple[str, str]]:
        """`builtins.x = …`, `math.isclose = …`, `sys.modules[…] = …`, `sys.path = …`."""
        if isinstance(target, ast.Subscript):
            yield from self._into(target.value, "[…] =")
        elif "sys.path" in self._paths(target):
            yield IMPORTS, "sys.path"
        elif whose := self._foreign(target.value) or _of_type(target.value):
            yield REPLACED, f"{whose}.{target.attr} ="
        elif target.attr.startswith("assert_") or target.attr in ("call_args", "mock_calls"):
            yield RUNNER, f".{target.attr} ="  # of a mock that a test has handed over

    def _into(self, space: ast.expr, how: str) -> Iterator[tuple[str, str]]:
        paths = self._paths(space)
        if "sys.path" in paths or "sys.modules" in paths:
            yield IMPORTS, f"{next(iter(paths))} {how}"
        elif (whose := self._foreign(space)).endswith(".__dict__"):
            yield REPLACED, f"{whose} {how}"

    def _foreign(self, node: ast.expr) -> str:
        """Return what of Python's library, or of a library of assertions, an expression is."""
        if _name(node) in self._bound and isinstance(node, ast.Name) and node.id not in self._means:
            return ""
        return min((path for path in self._paths(node) if path.partition(".")[0] in FOREIGN), default="")


def _makes_lies(name: str, function: ast.FunctionDef) -> bool:
    inner = (one for one in ast.walk(function) if one is not function)
    return any(lies(name, one) for one in inner if isinstance(one, ast.FunctionDef | ast.Lambda))


def _any_operator(key: ast.expr) -> str:
    """Return a name that `f"__{name}__"` may be."""
    match key:
        case ast.JoinedStr(values=[ast.Constant(value="__"), _, ast.Constant(value="__")]):
            return "__eq__"
    return ""


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    match target, value:
        case (ast.Tuple(elts=targets), ast.Tuple(elts=values)) if len(targets) == len(values):
            return list(zip(targets, values, strict=True))
    return [(target, value)]


def _called(node: ast.expr) -> str:
    return _name(node.func) if isinstance(node, ast.Call) else _name(node)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _inner(node: ast.AST) -> Iterator[ast.expr]:
    return (one for one in ast.walk(node) if isinstance(one, ast.expr))


def _calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    return (one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call))


def _tests_in(loop: ast.For) -> Iterator[ast.expr]:
    return (one.test for one in loop.body if isinstance(one, ast.If))


def _lists_names(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _called(node) in ("dir", "vars", "__dir__")


def _is_of_tests(text: str | None) -> bool:
    return text is not None and OF_TESTS.fullmatch(text) is not None


def _is_data(node: ast.expr) -> bool:
    """Return whether it is a text, bytes, a large number, or a list of numbers in the source."""
    match node:
        case ast.Constant(value=str() | bytes() as text):
            return len(text) > 3
        case ast.Constant(value=int(number)):
            return number > 1 << 32
        case ast.Tuple(elts=values) | ast.List(elts=values):
            return len(values) > 3 and all(isinstance(one, ast.Constant) for one in values)
    return False


def _is_own(node: ast.AST) -> bool:
    """Return whether it is an attribute of a class that a file speaks of by `cls`, `self` or its name."""
    match getattr(node, "value", None):
        case ast.Name(id=name):
            return name == "cls" or name[:1].isupper()
        case ast.Attribute(value=ast.Name(id="self"), attr="__class__"):
            return True
        case ast.Call(func=ast.Name(id="type"), args=[ast.Name(id="self")]):
            return True
    return False


def _of_type(node: ast.expr) -> str:
    """Return what class is computed: `type(x)`, `x.__class__.__mro__[1]`; empty for that of `self`."""
    match node:
        case (
            ast.Call(func=ast.Name(id="type"), args=[ast.expr() as of])
            | ast.Attribute(value=of, attr="__class__")
        ):
            return "" if isinstance(of, ast.Name) and of.id in ("self", "cls") else "type()"
        case (
            ast.Subscript(value=ast.Attribute(attr="__mro__" | "__bases__")) | ast.Attribute(attr="__base__")
        ):
            return "__mro__"
        case ast.Call() if _called(node) in (*IMPORTERS, "mro"):
            return f"{_called(node)}()"
    return ""
