# What the task's own files import from elsewhere, and whether code under test replaced it. This part follows
# `common.py` in both programs and works with Python 3.6.
#
# mypy: ignore-errors
# ruff: noqa: F821, UP031 (names of the other parts; Python 3.6)
import builtins
import os
import sys
from types import CodeType, ModuleType

# Programs configure these: pytest records warnings, and many have loggers of their own.
CONSTANT = (bool, int, float, str, bytes, tuple, frozenset)
LIVE = vars(builtins)
REPLACED_BY_ALL = ("logging", "sys", "warnings")
OF_THE_CLOCK = ("altzone", "daylight", "timezone", "tzname")  # `time.tzset` sets them


def is_fixed(key, value):
    """Whether a name of Python's library is a constant or there to be called, and neither to be replaced nor
    private."""
    fixed = callable(value) or is_kind(value, (property, staticmethod, classmethod, *CONSTANT))
    fixed = fixed and not key.endswith("hook") and key not in OF_THE_CLOCK
    return fixed and (key[:1] != "_" or key[:2] == "__")


def is_kind(value, kinds):
    """Whether it is an object of one of these types, whatever it says of that itself."""
    return issubclass(type(value), kinds)


def classes_of(name, space):
    """The classes that a module of this name defines."""
    found = list(space.values())
    return [one for one in found if is_kind(one, type) and vars(one).get("__module__") == name]


def below(root, place):
    """Whether a file is the repository's, and not one of an environment that lies there."""
    return place.startswith(root) and "/site-packages/" not in place


def spaces_of(name, module):
    """The namespaces of a module and of the classes that its package defines."""
    yield name, vars(module)
    package = name.partition(".")[0]
    for key, value in list(vars(module).items()):
        if is_kind(value, type) and str(value.__module__).partition(".")[0] == package:
            yield name + "." + key, vars(value)


def make_imports(root, known, odd):
    """A function that tells what was replaced in modules of these names, since now or by code under test."""
    library = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
    before = {}
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None) or library
        if type(module) is ModuleType and place.startswith(library) and "-packages/" not in place:
            before[name] = module, [(where, space, dict(space)) for where, space in spaces_of(name, module)]

    def defined_by(module):
        """The code of the functions that a module defines at its top, by name."""
        try:
            code = module.__spec__.loader.get_code(module.__name__)
            found = {}
            for one in code.co_consts:
                if type(one) is CodeType and one.co_flags & 1:  # no body of a class
                    found.setdefault(one.co_name, []).append(one)
            return found
        except Exception:  # one in C, or without a loader
            return {}

    def is_made_of(value, codes):
        """Whether a function has one of these codes, or wraps a function that has."""
        inner = layers(value) + layers(getattr(value, "__wrapped__", None))
        return any(one.__code__ in codes for one in inner)

    def is_ours(value):
        code = raw_code(value)
        return code is not None and below(root, code.co_filename) and code.co_filename not in known

    def inspect_imports(names):
        for name in names:
            module = sys.modules.get(name)
            first, spaces = before.get(name, (module, None))
            if first is not module:
                odd("replaced %s" % name)
            elif spaces is not None:
                for where, space, was in spaces if name not in REPLACED_BY_ALL else ():
                    for key, value in was.items():
                        if space.get(key) is not value and is_fixed(key, value):
                            odd("replaced %s.%s" % (where, key))
            elif type(module) is ModuleType and not below(root, getattr(module, "__file__", None) or ""):
                defined = defined_by(module)
                for where, space in spaces_of(name, module):
                    for key, value in list(space.items()):
                        foreign = where == name and key in defined and not is_made_of(value, defined[key])
                        if foreign or is_ours(value):
                            odd("replaced %s.%s" % (where, key))

    return inspect_imports


def make_places(root, known, odd):
    """Functions that tell of modules of the repository where other ones are expected: `look` names those that
    Python finds before installed ones, and those that what is not of the repository asked for by name."""
    getframe, told = sys._getframe, set()
    asked = {}  # by name of the module: who asked for it

    class Asked:
        """A finder that finds nothing."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            frame = getframe(1)
            while frame is not None and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame is not None and name not in asked:
                names = frame.f_code.co_names  # a name that was computed is in none
                if any(one == name or one.startswith(name + ".") for one in names):
                    asked[name] = frame.f_code.co_filename

    def is_product(module):
        place = getattr(module, "__file__", None) or ""
        return type(place) is str and below(root, place) and place not in known

    def look():
        for name in early:
            odd("%s of the repository was imported before the tests" % name)
        for name in sorted(set(shadowed(root)) - told):
            told.add(name)
            odd("the repository has a module %s in the place of an installed one" % name)
        for name, place in list(asked.items()):
            if not below(root, place) and is_product(sys.modules.get(name)):
                odd("%s of the repository was imported by %s" % (name, os.path.basename(place)))

    early = [name for name, module in list(sys.modules.items()) if name != "__main__" and is_product(module)]
    sys.meta_path.insert(0, Asked)
    return look


def shadowed(root):
    """Modules of the repository that Python finds before installed ones, which pytest or a plugin of it may
    be about to load."""
    ours = {}
    for place in map(os.path.abspath, sys.path):
        inside = os.path.join(place, "").startswith(root) and "site-packages" not in place
        for name in modules_in(place):
            if inside:
                ours[name] = place
            elif name in ours and is_module(ours[name], name) and is_module(place, name):
                yield name


def modules_in(place):
    """The names of what may be modules in a directory."""
    try:
        entries = os.listdir(place)
    except OSError:
        return set()
    return {
        entry.partition(".")[0] for entry in entries if "." not in entry or entry.endswith((".py", ".so"))
    }


def is_module(place, name):
    path = os.path.join(place, name)
    return os.path.isfile(path + ".py") or os.path.isfile(os.path.join(path, "__init__.py"))
