# How the tests of the task's own run, as their own code says. This part follows `modules.py` in both programs
# and works with Python 3.6.
#
# The files of the tests are compiled here. The code of each test, fixture and set-up gets *marks*: constants
# that note where it begins, ends and returns, and what leaves it. A mark is a constant of that code, and
# nothing else has it: what does not run a test to its end cannot say that it did.
#
# mypy: ignore-errors
# ruff: noqa: F821, SIM905, UP031 (names of the other parts; Python 3.6)
import ast
import hashlib
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType

ONLY_TREE = 1024  # PyCF_ONLY_AST
FUNCTIONS = ("FunctionDef", "AsyncFunctionDef")
SCOPES = (*FUNCTIONS, "ClassDef", "Lambda")
SET_UPS = ("setUp", "tearDown", "asyncSetUp", "asyncTearDown")
XUNIT = ("module", "class", "method", "function", "Class", "Module")
LATER = ("addCleanup", "addAsyncCleanup", "addClassCleanup", "addModuleCleanup", "addfinalizer")
MUST_RAISE = ("raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp", "assertRaisesMessage")
BY_CHANCE = ("StopTest", "UnsatisfiedAssumption")  # of what hypothesis thinks up
NODES = dict(vars(ast))  # so that nobody can replace them
NODE = ast.AST
ARGUMENTS_OF_CODE = (  # before Python 3.8
    *("argcount", "kwonlyargcount", "nlocals", "stacksize", "flags", "code", "consts", "names", "varnames"),
    *("filename", "name", "firstlineno", "lnotab", "freevars", "cellvars"),
)
# Functions of Python that the tests get as they are now. Others, such as `open`, they may replace themselves.
PURE = frozenset(
    "abs all any ascii bin callable chr delattr dir divmod format getattr hasattr hash hex id isinstance "
    "issubclass iter len max min next oct ord pow repr round setattr sorted sum vars __build_class__ "
    "__import__".split()
)
UNMARKED = eval, ("type('Mark', (), {'__matmul__': lambda self, value: value})()",)


class Builtins(dict):
    """The builtins of a test module: code under test cannot replace what compares and converts."""

    def __missing__(self, name):
        return LIVE[name]


PRIVATE = Builtins((name, value) for name, value in LIVE.items() if name in PURE or type(value) is type)


class Changed(Exception):
    """A file is not what it has to be."""


class Mark:
    """`MARK @ value` in a test's code notes that it came there, and gives the value.

    `kind` is "b" at the begin of a function, where the value has its arguments; "e" at its end; "r" where it
    returns and "y" where it yields the value; "x" where an exception leaves it; "o" and "c" where a `with`
    block begins and ends; "w" at the end of one that has to raise; "d" where the value is a function that has
    to run later.
    """

    __slots__ = ("kind", "label", "line", "names", "note")

    def __init__(self, note, label, kind, line, names):
        self.note, self.label, self.kind, self.line, self.names = note, label, kind, line, names

    def __matmul__(self, value):
        self.note(self, value)
        return value

    def __reduce__(self):  # of a function that is sent to another process with its code
        return UNMARKED


def filled(code, marks):
    """Code with marks in the place of the texts that stand for them."""
    parts = tuple(
        filled(one, marks) if type(one) is CodeType else marks.get(one, one) if type(one) is str else one
        for one in code.co_consts
    )
    if hasattr(code, "replace"):
        return code.replace(co_consts=parts)
    return CodeType(*(parts if of == "consts" else getattr(code, "co_" + of) for of in ARGUMENTS_OF_CODE))


class Marking:
    """Puts marks into the syntax tree of a file; `marks` has them, by the texts that stand for them.

    Args:
        path: What the file is called in the labels of its functions.
        wanted: Whether a function of a name and with these decorators is marked.
    """

    def __init__(self, path, note, wanted):
        self.path, self.note, self.wanted, self.marks, self.later = path, note, wanted, {}, set()

    def located(self, like, kind, *fields):
        """A new node, where another one stands."""
        node = NODES[kind](*fields)
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(like, name):
                setattr(node, name, getattr(like, name))
        return node

    def mark(self, kind, label, like, value=None, names=()):
        """The expression `MARK @ value`."""
        text = "mark %d of %s" % (len(self.marks), self.path)
        self.marks[text] = Mark(self.note, label, kind, like.lineno, names)
        old = sys.version_info < (3, 8)
        stands = self.located(like, "Str" if old else "Constant", text)
        if value is None:
            value = self.located(like, "NameConstant" if old else "Constant", None)
        return self.located(like, "BinOp", stands, NODES["MatMult"](), value)

    def noted(self, *args):
        """The same as a statement."""
        return self.located(args[2], "Expr", self.mark(*args))

    def module(self, tree):
        """Mark the body of a module, and the functions in it."""
        self.later.update(name_of(one.args[0]) for one in NODES["walk"](tree) if is_for_later(one))
        self.statements(tree.body, self.path)
        body = tree.body or [NODES["Pass"](lineno=1, col_offset=0)]
        first = 1 if is_text(body[0]) else 0
        while first < len(body) and getattr(body[first], "module", None) == "__future__":
            first += 1
        begin, end = self.noted("first", self.path, body[0]), self.noted("last", self.path, body[-1])
        tree.body[:] = [*body[:first], begin, *body[first:], end]

    def statements(self, body, above, nested=False):
        """Mark the functions in a list of statements, and those inside of these."""
        for node in body:
            kind = type(node).__name__
            inner = "%s::%s" % (above, node.name) if kind in SCOPES else above
            wanted = kind in FUNCTIONS and (
                node.name in self.later or self.wanted(node.name, node.decorator_list)
            )
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                if type(getattr(node, field, None)) is list:
                    self.statements(getattr(node, field), inner, nested or wanted)
            if wanted:
                self.function(node, inner, nested)

    def function(self, node, label, nested):
        first, last = node.body[0], node.body[-1]
        body = [new for one in node.body for new in self.changed(one, label)]
        document = [body.pop(0)] if is_text(first) else []
        given = node.args
        names = [one.arg for one in (*getattr(given, "posonlyargs", ()), *given.args, *given.kwonlyargs)]
        names = [] if nested else names  # nobody asks for those, and they must not live longer
        values = [self.located(first, "Name", name, NODES["Load"]()) for name in names]
        begin = self.noted("b", label, first, self.located(first, "Tuple", values, NODES["Load"]()), names)
        again = self.located(last, "Raise", None, None)
        left = self.located(last, "ExceptHandler", None, None, [self.noted("x", label, last), again])
        body.append(self.noted("e", label, last))
        node.body = [*document, begin, self.located(last, "Try", body, [left], [], [])]

    def changed(self, node, label):
        """What stands in the place of a node of a function; functions in it are their own matter."""
        kind = type(node).__name__
        if kind in SCOPES:
            return [node]
        for field in node._fields:
            value = getattr(node, field, None)
            if type(value) is list:
                value[:] = [
                    new
                    for one in value
                    for new in (self.changed(one, label) if isinstance(one, NODE) else [one])
                ]
            elif isinstance(value, NODE):
                setattr(node, field, self.changed(value, label)[0])
        if is_for_later(node):
            node.args[0] = self.mark("d", label, node, node.args[0])
        if kind == "Return" and node.value is None:
            return [self.noted("r", label, node), node]
        if kind in ("Return", "Yield") and node.value is not None:
            node.value = self.mark("r" if kind == "Return" else "y", label, node, node.value)
        elif kind in ("With", "AsyncWith"):
            if any(must_raise(item.context_expr) for item in node.items):
                node.body.append(self.noted("w", label, node))
            elif not any(map(yields, node.body)):  # else it ends in another phase of the test
                node.body.insert(0, self.noted("o", label, node))
                node.body.append(self.noted("c", label, node))
        return [node]


def is_text(node):
    """Whether a statement is a text alone, such as a docstring."""
    value = getattr(node, "value", None)
    text = getattr(value, "s" if type(value).__name__ == "Str" else "value", None)
    return type(node).__name__ == "Expr" and type(text) is str


def name_of(node):
    return getattr(node, "attr", getattr(node, "id", None))


def yields(node):
    return any(type(one).__name__ in ("Yield", "YieldFrom") for one in NODES["walk"](node))


def must_raise(node):
    return name_of(getattr(node, "func", None)) in MUST_RAISE


def is_for_later(node):
    return name_of(getattr(node, "func", None)) in LATER and bool(node.args)


def is_wanted(name, decorators, prefixes=("test",)):
    """Whether a function is a test, a fixture or a set-up."""
    if name.startswith((*prefixes, "setup", "teardown", "setUp", "tearDown")) or name in (
        *SET_UPS,
        "runTest",
    ):
        return True
    for one in decorators:
        one = getattr(one, "func", one)
        if "fixture" in str(getattr(one, "attr", getattr(one, "id", None))):
            return True
    return False


def make_evidence(root, known, odd, executed):
    """Functions: `compiled` gives the code of a file of `known`, None where the disk has another one;
    `label_of` names the function that has a code object; `tell` says what the events show, `unfinished` what
    did not end; `end_of` marks a doctest.

    Args:
        executed: Called when the body of a module has run: with its path, facts and names, and `label_of`.
    """
    events, begun, running, codes, done = [], set(), {}, {}, {}
    marked, owed = set(), {}  # labels; how often a function has yet to run, also below 0, by label
    digests = {40: hashlib.sha1, 64: hashlib.sha256}
    getframe, exc_info = sys._getframe, sys.exc_info

    def source_of(path):
        with open(path, "rb") as file:
            data = file.read()
        if digests[len(known[path])](b"blob %d\0" % len(data) + data).hexdigest() != known[path]:
            raise Changed(path)
        return data

    def note(mark, value):
        kind = mark.kind
        if kind == "first":
            if b"__import__" not in done[root + mark.label][1]:  # tests that replace it themselves
                getframe(2).f_globals["__builtins__"] = PRIVATE
        elif kind == "last":
            executed(root + mark.label, done[root + mark.label][2], getframe(2).f_globals, label_of)
        else:
            if kind == "x":
                value = left_by()
            elif kind == "b":  # the arguments of the first run alone: others must not live longer
                value = (value, getframe(2).f_globals) if mark not in begun else None
                begun.add(mark)
                owed[mark.label] = owed.get(mark.label, 0) - 1
            elif kind == "d":
                label = label_of(raw_code(getattr(value, "__func__", value)))
                if label in marked:
                    owed[label] = max(0, owed.get(label, 0)) + 1
                return
            else:
                value = id(value)
            events.append((mark, value))

    def left_by():
        kind, _, trace = exc_info()
        while trace is not None:
            if is_product(trace.tb_frame.f_code.co_filename):
                return kind.__name__ + " of the code under test"
            trace = trace.tb_next
        return kind.__name__

    def is_product(place):
        return below(root, place) and place not in known

    def collect(code, label):
        for value in code.co_consts:
            if type(value) is CodeType:
                inner = "%s::%s" % (label, value.co_name)
                codes[id(value)] = value, inner
                collect(value, inner)

    def compiled(path, rewrite=None, wanted=is_wanted):
        if path in done:
            return done[path][0]
        try:
            source = source_of(path)
        except Changed:
            odd("the file %s on the disk is another one" % path)
            return None
        tree = compile(source, path, "exec", ONLY_TREE, True)
        facts = facts_of(tree)
        if rewrite is not None:
            rewrite(tree, source)
        marking = Marking(path[len(root) :], note, wanted)
        marking.module(tree)
        code = filled(compile(tree, path, "exec", 0, True), marking.marks)
        marked.update(mark.label for mark in marking.marks.values())
        collect(code, path[len(root) :])
        done[path] = code, source, facts
        return code

    def label_of(code):
        found = codes.get(id(code))
        return found[1] if found is not None and found[0] is code else None

    def method_of(kind, name):
        """The label of a method of a class; None where that is none of the tests' own."""
        value = next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), None)
        labels = [label_of(one.__code__) for one in layers(value)]  # what stands before it may wrap it
        return next((one for one in labels if one is not None and one.endswith("::" + name)), None)

    def set_ups_of(kind, names=SET_UPS):
        """The labels of what has to run around each test of a class."""
        return [label for label in (method_of(kind, name) for name in names) if label is not None]

    def tell(is_own, kind=None, counts=False, failed=False):
        """What to say of a test after the events since the last call, and the first of its own function. What
        there is to say of other functions is reported as odd.

        Args:
            is_own: Whether a label is the test's; None where none of them is.
            kind: The class of a unittest.
            counts: Whether the number of its runs says something.
            failed: Whether the status of the test says enough.
        """
        found, others, own, first = events[:], {}, [], None
        del events[:]
        begun.clear()
        for event in found:
            mark = event[0]
            running[mark.label] = running.get(mark.label, 0) + (mark.kind == "b") - (mark.kind in "erx")
            if is_own is not None and is_own(mark.label):
                own.append(event)
                first = first or (event if mark.kind == "b" else None)
            else:
                others.setdefault(mark.label, []).append(event)
        for label, seen in others.items() if not failed else ():
            for text in said_of(seen, False):
                odd("%s %s" % (label, text))
        if is_own is None:
            return [], None
        texts = said_of(own, True, counts)
        if not own:
            texts = ["no code of its own ran", *("%s ran" % label for label in others if "::test" in label)]
        if kind is not None:
            texts += ["%s did not run" % label for label in set_ups_of(kind) if label not in others]
        ends = sum(mark.kind in "er" for mark, _ in own)
        if counts and 0 < ends < 10:
            texts.append("came %d times to its end" % ends)
        return texts, first

    def said_of(seen, returns, counts=False):
        count = {"b": 0, "e": 0, "r": 0}
        texts, blocks, before = [], {}, {}
        for mark, value in seen:
            kind = mark.kind
            if kind in count:
                count[kind] += 1
            elif kind in "oc":
                blocks[mark.line] = blocks.get(mark.line, 0) + (1 if kind == "o" else -1)
            text, by_chance = None, kind == "x" and value in BY_CHANCE
            if kind == "b":
                before = dict(blocks)
            elif kind == "r" or by_chance:  # out of all blocks, as the code says
                blocks = before
            if kind == "w":
                text = "went on at line %d" % mark.line
            elif kind == "x" and not by_chance:
                text = "was left by %s" % value
            elif kind == "r" and returns and not counts:
                text = "returned at line %d" % mark.line
            if text is not None and text not in texts:
                texts.append(text)
        texts += ["left the block at line %d" % line for line in sorted(blocks) if blocks[line]]
        if returns and seen and not count["e"] + count["r"]:
            texts.append("did not come to its end")
        if returns and not counts and count["b"] > 1:
            texts.append("ran more than once")
        return texts

    def unfinished():
        """Say what began and neither ended nor was left, and what did not run although it had to."""
        used = {label.rpartition("::")[0] for label in owed}
        for label in marked:
            above, _, name = label.rpartition("::")
            around = name.lower().startswith(("setup", "teardown")) and name.endswith(XUNIT)
            if owed.get(label, 0) > 0 or (around and above in used and label not in owed):
                odd("%s did not run" % label)
        for label, number in running.items():
            if number > 0:
                odd("%s did not come to its end" % label)

    honest = SourceFileLoader.get_code

    def get_code(self, name):
        path = getattr(self, "path", None)
        found = compiled(path) if path in known else None
        return honest(self, name) if found is None else found

    SourceFileLoader.get_code = get_code

    def end_of(test, label):
        """Have a doctest say that it came to its end: it gets an example more."""
        skip = sys.modules["doctest"].SKIP
        if all(one.options.get(skip) for one in test.examples):
            return
        name = "_end_%d" % id(test)
        test.globs[name] = Mark(note, label, "e", 0, ())
        test.examples.append(
            sys.modules["doctest"].Example(name + " @ None\n", "", lineno=test.examples[-1].lineno)
        )

    return compiled, label_of, method_of, set_ups_of, tell, unfinished, is_product, events, end_of
