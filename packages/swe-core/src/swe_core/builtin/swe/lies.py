"""Comparisons and operators that ignore the other value, such as an `__eq__` that is always true."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_SAME = frozenset(("__eq__", "__ne__"))
_OTHERS = frozenset(
    ("__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__instancecheck__", "__subclasscheck__")
)
_OPERATORS = frozenset(
    f"__{side}{name}__" for side in ("", "r") for name in ("add", "sub", "mul", "truediv", "mod", "pow")
) | {"__array_ufunc__", "__array_function__"}
COMPARISONS = _SAME | _OTHERS
METHODS = COMPARISONS | _OPERATORS
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_WRAPPERS = frozenset(("bool", "truth", "any", "all", "cast"))
_MAX_NODES = 2000


def lies(name: str, function: ast.FunctionDef | ast.Lambda, own: str = "") -> bool:
    """Return whether a method of this name ignores the value that it gets.

    Args:
        own: Name of the class.
    """
    try:
        return name in METHODS and _lies(name, function, own)
    except RecursionError:  # no honest comparison is that deep
        return True


def _lies(name: str, function: ast.FunctionDef | ast.Lambda, own: str) -> bool:
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    others = {*names[1:], *(one.arg for one in (given.vararg, given.kwarg) if one)}
    selves = {*names[:1], own, "super", "__class__"}
    if isinstance(function, ast.Lambda):
        body: list[ast.AST] = [ast.Return(value=function.body)]
    else:
        body = list(function.body)
    nodes = list(_inside(body))
    if len(nodes) > _MAX_NODES:
        return False
    constants: dict[str, ast.expr] = {}
    for _ in range(2):
        for node in nodes:
            _follow(node, others, selves, constants)
    if name in _SAME and any(
        isinstance(one, ast.Yield | ast.YieldFrom)
        or (isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
        for one in nodes
    ):
        return True  # it makes itself equal, or returns a generator
    results = [node.value or ast.Constant(None) for node in nodes if isinstance(node, ast.Return)]
    if not results:
        return name == "__ne__" and not any(isinstance(one, ast.Raise | ast.Yield) for one in nodes)
    shown = [one for one in results if not (isinstance(one, ast.Name) and one.id == "NotImplemented")]
    if name in _OPERATORS:
        used = any(_names(one) & others for one in nodes)
        return bool(shown) and not used and not all(_is(one, None) for one in shown)
    lie = name != "__ne__"
    truths = [_truth(one, constants) if one in shown else None for one in results]
    caught = [one for node in nodes for one in _caught(node)]
    flat = [
        truth is lie and not isinstance(one, ast.Constant) for one, truth in zip(results, truths, strict=True)
    ]
    flat += [_truth(one.value, constants) is lie for one in caught if one.value]
    if any(flat) or all(truth is lie for truth in truths):
        return True
    tests = [*results, *_tests(nodes)]
    related = any(
        found & others and (name in _OTHERS or found & selves or _compares(test, others))
        for test in tests
        if (found := _names(test))
    )
    return not related and any(
        truth is lie or (truth is None and one in shown) for one, truth in zip(results, truths, strict=True)
    )


def _follow(node: ast.AST, others: set[str], selves: set[str], constants: dict[str, ast.expr]) -> None:
    """Say of the names that a statement sets what their values come from."""
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case (
            ast.NamedExpr(target=target, value=value)
            | ast.AnnAssign(target=target, value=ast.expr() as value)
        ):
            targets = [target]
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            targets = [target]
        case _:
            return
    names = _names(value)
    for target in targets:
        set_here = _names(target)
        if names & others:
            others |= set_here
        if names & selves:
            selves |= set_here
        if isinstance(target, ast.Name) and not names:
            constants[target.id] = value


def _inside(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions in it."""
    left = list(body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, _FUNCTION):
            left += ast.iter_child_nodes(node)


def _tests(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    for node in nodes:
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                yield test
            case ast.For(iter=test) | ast.comprehension(iter=test) | ast.Match(subject=test):
                yield test


def _caught(node: ast.AST) -> Iterator[ast.Return]:
    """Yield what is returned whether or not the comparison raised."""
    match node:
        case ast.ExceptHandler(body=body) | ast.Try(finalbody=body):
            yield from (one for one in body if isinstance(one, ast.Return))


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _compares(node: ast.expr, others: set[str]) -> bool:
    """Return whether the other value is compared with something: `other == 1`, `other in (1, 2)`."""
    for one in ast.walk(node):
        match one:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.In() | ast.Is()], comparators=[right]):
                if ast.dump(left) != ast.dump(right) and _names(one) & others:
                    return True
    return False


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _truth(node: ast.expr, constants: dict[str, ast.expr], depth: int = 0) -> bool | None:
    """Return whether an expression is true whatever its names are; None where it depends on them."""
    if depth > 20:
        return None

    def of(inner: ast.expr) -> bool | None:
        return _truth(inner, constants, depth + 1)

    match node:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id="NotImplemented"):
            return True
        case ast.Name(id=name) if name in constants:
            return of(constants[name])
        case ast.NamedExpr(value=value):
            return of(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return None if (truth := of(operand)) is None else not truth
        case ast.UnaryOp(operand=operand):
            return of(operand) if not isinstance(node.op, ast.Invert) else None
        case ast.BoolOp(op=how, values=values):
            decides = isinstance(how, ast.Or)
            truths = [of(value) for value in values]
            return decides if decides in truths else None if None in truths else not decides
        case ast.BinOp(op=ast.BitOr() | ast.Add(), left=left, right=right):
            return True if True in (of(left), of(right)) else None
        case ast.IfExp(body=body, orelse=orelse):
            return truth if (truth := of(body)) == of(orelse) else None
        case ast.Tuple(elts=values) | ast.List(elts=values) | ast.Set(elts=values):
            return None if any(isinstance(value, ast.Starred) for value in values) else bool(values)
        case ast.Dict(keys=keys):
            return bool(keys) if None not in keys else None
        case ast.JoinedStr(values=values):
            return True if any(isinstance(value, ast.Constant) and value.value for value in values) else None
        case ast.Lambda():
            return True
        case ast.Subscript(
            value=ast.Tuple(elts=values) | ast.List(elts=values), slice=ast.Constant(value=int(at))
        ):
            return of(values[at]) if at < len(values) else None
        case ast.Compare(left=left, ops=[how], comparators=[right]) if ast.dump(left) == ast.dump(right):
            return isinstance(how, ast.Eq | ast.Is | ast.LtE | ast.GtE)
        case ast.Compare(
            left=left, ops=[ast.In()], comparators=[ast.Tuple(elts=values) | ast.List(elts=values)]
        ):
            return True if ast.dump(left) in map(ast.dump, values) else None
        case ast.Compare(ops=[ast.LtE() | ast.GtE()], comparators=[ast.Constant(value=bool())]):
            return True
        case ast.Call(func=ast.Name(id="any"), args=[ast.Tuple(elts=values) | ast.List(elts=values)]):
            return True if True in map(of, values) else None
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[*_, value]) if (
            name in _WRAPPERS - {"any", "all"}
        ):
            return of(value)
    return None
