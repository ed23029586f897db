# What the modules of the task's own hold once their bodies have run: code under test must not change it. This
# part follows `evidence.py` in both programs and works with Python 3.6.
#
# mypy: ignore-errors
# ruff: noqa: B905, F821, SIM105, SIM905, UP028, UP031 (names of the other parts; Python 3.6)
import ast
import sys
from itertools import chain
from marshal import dumps
from operator import attrgetter, is_, itemgetter
from types import FunctionType, ModuleType, SimpleNamespace

CODE_OF = attrgetter("__code__")
PLAIN = (list, dict, set, tuple)
NOT_LOOKED_AT = frozenset(
    "__dict__ __weakref__ __doc__ __module__ _abc_impl __abstractmethods__ _classSetupFailed "
    "_class_cleanups __firstlineno__ __static_attributes__".split()
)


def facts_of(tree):
    """What a file says: the `names` that its module binds once and for all, all `words` that it binds, the
    `modules` that it imports, what it has `taken` of them (the name, the module, the part or None), the
    attributes that it has `stored`, and the `bases` of its classes."""
    names, again, words, modules, stored, taken, bases = set(), set(), set(), set(), set(), [], []
    for node in ast.walk(tree):
        kind = type(node).__name__
        for word in (getattr(node, "name", None), getattr(node, "asname", None)):
            if type(word) is str:
                words.add(word)
        if kind == "Name" and type(node.ctx).__name__ == "Store":
            words.add(node.id)
        elif kind == "Attribute" and type(node.ctx).__name__ == "Store":
            stored.add(node.attr)
        elif kind == "Global":
            again.update(node.names)
        elif kind == "Import":
            modules.update(alias.name for alias in node.names)
        elif kind == "ImportFrom" and node.level == 0:
            modules.add(node.module)
            modules.update(node.module + "." + alias.name for alias in node.names)
        if kind == "alias" and not node.asname:
            words.add(node.name.partition(".")[0])
    times = {}
    for node in tree.body:
        kind, found = type(node).__name__, []
        if kind in ("Import", "ImportFrom"):
            found = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
            if kind == "ImportFrom" and node.level == 0:
                taken += [(alias.asname or alias.name, node.module, alias.name) for alias in node.names]
            elif kind == "Import":
                taken += [
                    (a.asname or a.name, a.name, None) for a in node.names if a.asname or "." not in a.name
                ]
        elif kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            found = [node.name]
            if kind == "ClassDef" and not node.decorator_list:
                bases += [(node.name, dotted) for dotted in map(dotted_name, node.bases) if dotted]
        elif kind in ("Assign", "AnnAssign"):
            targets = node.targets if kind == "Assign" else [node.target]
            found = [one.id for target in targets for one in ast.walk(target) if type(one).__name__ == "Name"]
        names.update(found)
        for name in found:
            times[name] = times.get(name, 0) + 1
    return SimpleNamespace(
        names=names - again,
        functions=[one for one in plain_functions(tree.body) if one[0] not in again and times[one[0]] == 1],
        words=words,
        modules=modules,
        stored=stored,
        taken=[one for one in taken if times.get(one[0]) == 1 and one[0] not in again],
        bases=[one for one in bases if times[one[0]] == times.get(one[1][0]) == 1 and one[0] not in again],
    )


def plain_functions(body, *above):
    """The names of functions, and of those in classes, that nothing decorates."""
    for node in body:
        if type(node).__name__ in ("FunctionDef", "AsyncFunctionDef", "ClassDef") and not node.decorator_list:
            if type(node).__name__ != "ClassDef":
                yield (*above, node.name)
            elif not above:
                for found in plain_functions(node.body, node.name):
                    yield found


def dotted_name(node):
    """The names in an expression such as `unittest.TestCase`; None of another one."""
    names = []
    while type(node).__name__ == "Attribute":
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if type(node).__name__ == "Name" else None


def value_of(dotted, space):
    """What has this name in a module, if it can be found without a call."""
    for name in dotted:
        found = space.get(name, MISSING)
        space = vars(found) if type(found) is ModuleType or issubclass(type(found), type) else {}
    return found


def layers(value):
    """The functions of an entry: its own, and those that this wraps in its closure."""
    found = []
    todo = [raw_function(value)]
    for one in todo:
        if type(one) is FunctionType and one not in found and len(found) < 20:
            found.append(one)
            for cell in one.__closure__ or ():
                try:
                    todo.append(cell.cell_contents)
                except ValueError:  # an empty one
                    pass
    return found


def made_of(function):
    """What a function is made of: its code, its defaults."""
    named = function.__kwdefaults__
    return [function.__code__, function.__defaults__, named, *chain(*(named or {}).items())]


def content(value):
    """What is in a container of plain data; None for others, and for an empty one, which is to be filled."""
    if type(value) not in PLAIN or not value:
        return None
    try:
        return dumps(value, 2)
    except ValueError:
        return None


def shadows_in(space):
    """The names of builtins in a namespace; a package has its parts by their names."""
    return {name for name in BUILTINS.intersection(space) if type(space[name]) is not ModuleType}


def module_is(module, space):
    return type(module) is ModuleType and vars(module) is space


class Snapshot:
    """The entries of some namespaces, what their functions are made of, and the contents of plain data."""

    def __init__(self):
        self.spaces, self.functions, self.contents = [], [], []

    def add(self, where, space, names):
        """Take the entries of these names."""
        names = [name for name in names if name in space]
        values = [space[name] for name in names]
        if names:
            self.spaces.append((where, space, names, values))
        for name, value in zip(names, values):
            self.functions += [(where, name, one) for one in layers(value)]
            self.keep(where, name, value)

    def keep(self, where, name, value):
        """Take the content of a value, if it is plain data."""
        found = content(value)
        if found is not None:
            self.contents.append((where, name, value, found))

    def end(self):
        """Take what the functions are made of now."""
        # A getter of one name would give no tuple.
        self.getters = [(itemgetter(names[0], *names), space) for _, space, names, _ in self.spaces]
        self.values = [one for _, _, _, values in self.spaces for one in values[:1] + values]
        self.code = [one for _, _, one in self.functions]
        self.codes = [*map(CODE_OF, self.code)]
        self.made = [made_of(one) for one in self.code]
        return self

    def is_unchanged(self):
        """Whether all entries and the code of all functions are what they were, without a line of Python for
        each."""
        try:
            now = [get(space) for get, space in self.getters]
        except KeyError:
            return False
        codes = map(is_, map(CODE_OF, self.code), self.codes)
        return all(map(is_, chain.from_iterable(now), self.values)) and all(codes)

    def changed(self, whole=True):
        """The names of what is another one.

        Args:
            whole: Whether defaults of functions and contents of data count as well.
        """
        if self.is_unchanged() and not whole:
            return
        for where, space, names, values in self.spaces:
            for name, value in zip(names, values):
                if space.get(name, MISSING) is not value:
                    yield where, name
        for (where, name, one), made in zip(self.functions, self.made):
            if not same(made_of(one), made):
                yield where, name
        for where, name, value, found in self.contents if whole else ():
            if content(value) != found:
                yield where, name


def make_own_files(root, known, odd):
    """Functions: `executed` takes a module of the tests, `look` and `look_at_all` compare it, `seen` gives
    the modules that the files import, `instance` looks at the object of a test."""
    from unittest import TestCase

    methods = frozenset(name for kind in TestCase.__mro__[:-1] for name in vars(kind)) - NOT_LOOKED_AT
    getters = frozenset(("__getattribute__", "__getattr__"))
    typed = frozenset(TestCase("run")._type_equality_funcs)
    snapshots, own_kinds, stored = {}, {}, set()  # by file; by id

    def is_product(place):
        return below(root, place) and place not in known

    def methods_of(kind):
        """Names that change how an object of a class runs as a test."""
        return methods | getters if issubclass(kind, TestCase) else getters

    def executed(path, facts, space, label_of):
        found = Snapshot()
        module = sys.modules.get(space.get("__name__"))
        if module is not None and (type(module) is not ModuleType or vars(module) is not space):
            odd("the module of %s is another one" % path)
        for name, source, part in facts.taken:
            source = sys.modules.get(source)
            right = source if part is None else vars(source).get(part) if type(source) is ModuleType else None
            place = getattr(source, "__file__", None) or ""
            foreign = type(source) is ModuleType and (place in known or not below(root, place))
            foreign = foreign and source.__name__ not in REPLACED_BY_ALL and (part is None or callable(right))
            if foreign and space.get(name, right) is not right:
                odd("%s in %s is another one" % (name, path))
        found.add(path, space, facts.names | {"__builtins__"})
        kinds = classes_of(space.get("__name__"), space)
        for kind in kinds:
            stored.update(facts.stored)
            own = [key for key, one in vars(kind).items() if key not in facts.stored or callable(one)]
            found.add("%s of %s" % (kind.__name__, path), vars(kind), set(own) - NOT_LOOKED_AT)
            for name in methods_of(kind).intersection(vars(kind)) - facts.words:
                odd("%s of %s in %s is another one" % (name, kind.__name__, path))
        for name, dotted in facts.bases:
            kind, base = space.get(name), value_of(dotted, space)
            if is_kind(kind, type) and is_kind(base, type) and not any(base is one for one in kind.__bases__):
                odd("%s in %s has another base than %s" % (name, path, ".".join(dotted)))
        for where, _, one in list(found.functions):
            for mark in vars(one).get("pytestmark", ()):
                found.keep(where, "a mark of %s" % one.__name__, getattr(mark, "args", None))
            found.add(where, vars(one), ["pytestmark"])
        for dotted in facts.functions:
            code = raw_code(value_of(dotted, space))
            if label_of(code) != "::".join((path[len(root) :], *dotted)):
                odd("%s in %s is another one" % (".".join(dotted), path))
        own_kinds.update((id(kind), kind) for kind in kinds)
        # What the product does with its own functions is its matter
        found.functions = [one for one in found.functions if not is_product(one[2].__code__.co_filename)]
        shadows = shadows_in(space)
        for name in shadows - facts.words if "*" not in facts.words else ():
            odd("%s in %s is another one" % (name, path))
        cases = [(kind, methods_of(kind).intersection(vars(kind))) for kind in kinds]
        snapshots.setdefault(path, []).append((found.end(), facts, space, cases, shadows))

    def look(path, whole=False):
        for found, _, space, cases, shadows in snapshots.get(path, ()):
            for where, name in found.changed(whole):
                odd("%s in %s is another one" % (name, where))
            for kind, names in cases:
                for name in methods_of(kind).intersection(vars(kind)) - names:
                    odd("%s of %s in %s is another one" % (name, kind.__name__, path))
            for name in shadows_in(space) - shadows:
                odd("%s in %s is another one" % (name, path))

    def look_at_all():
        for path in list(snapshots):
            look(path, True)
        names = {path[len(root) : -3].replace("/", "."): path for path in known}
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            path = path if type(path) is str and path in known else names.get(name)
            of_us = path is not None and name not in ("__main__", "__mp_main__")  # Python itself runs those
            if of_us and not any(module_is(module, one[2]) for one in snapshots.get(path, ())):
                odd("the module %s is not that of %s" % (name, path))

    def seen():
        return {name for many in snapshots.values() for _, facts, *_ in many for name in facts.modules}

    def needs(name, value):  # whether an object may not have its own one
        return name not in stored or callable(value)

    def instance(test, name):
        """What the object of a test has in the place of what its class has, as sentences."""
        texts = []
        kind, own = type(test), vars(test) if hasattr(test, "__dict__") else {}
        theirs = [vars(one) for one in kind.__mro__ if own_kinds.get(id(one)) is one]
        if own_kinds.get(id(kind)) is not kind:
            texts.append("%s.%s is no class of the tests" % (kind.__module__, kind.__qualname__))
        for other in own:
            ours = other in methods and (callable(own[other]) or other == "failureException")
            if ours or any(other in space and needs(other, space[other]) for space in theirs):
                texts.append("its %s is another one" % other)
        if name in own and getattr(own[name], "__func__", None) is not getattr(kind, name, None):
            texts.append("its %s is another one" % name)
        if not typed.issuperset(own.get("_type_equality_funcs", ())):
            texts.append("it compares values in its own way")
        return texts

    def is_space(path, space):
        """Whether a namespace is that of a module of a file."""
        return any(space is found[2] for found in snapshots.get(path, ()))

    return executed, look, look_at_all, seen, instance, is_space
