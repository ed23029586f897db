# What the task's own files import from elsewhere, and whether code under test replaced it. This part follows
# `codes.py` in both programs and works with Python 3.6.
#
# mypy: ignore-errors
# ruff: noqa: F821, UP031 (names of the other parts; Python 3.6)
import os
import sys
from types import ModuleType

# Programs configure these: pytest records warnings, and many have loggers of their own.
REPLACED_BY_ALL = ("logging", "sys", "warnings")


def is_code(key, value):
    """Whether a name of Python's library is there to be called, and neither to be replaced nor private."""
    code = callable(value) or isinstance(value, (property, staticmethod, classmethod))
    return code and not key.endswith("hook") and (key[:1] != "_" or key[:2] == "__")


def below(root, place):
    """Whether a file is the repository's, and not one of an environment that lies there."""
    return place.startswith(root) and "/site-packages/" not in place


def spaces_of(name, module):
    """The namespaces of a module and of the classes that its package defines."""
    yield name, vars(module)
    package = name.partition(".")[0]
    for key, value in list(vars(module).items()):
        if isinstance(value, type) and str(value.__module__).partition(".")[0] == package:
            yield name + "." + key, vars(value)


def make_imports(root, known, odd):
    """A function that tells what was replaced in modules of these names, since now or by code under test."""
    library = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
    before = {}
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None) or library
        if type(module) is ModuleType and place.startswith(library) and "-packages/" not in place:
            before[name] = module, [(where, space, dict(space)) for where, space in spaces_of(name, module)]

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
                        if space.get(key) is not value and is_code(key, value):
                            odd("replaced %s.%s" % (where, key))
            elif type(module) is ModuleType and not below(root, getattr(module, "__file__", None) or ""):
                for where, space in spaces_of(name, module):
                    for key, value in list(space.items()):
                        if is_ours(value):
                            odd("replaced %s.%s" % (where, key))

    return inspect_imports
