"""Protection: the paths of a repository that a patch cannot change.

Everything here is a pure function of path lists. Protected paths are the reference's, whatever the patch
did to them; all else is the agent's. "What a patch cannot change" in docs/internals/grading.md lists them.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator, Mapping

from swe_core.api.grader import TamperKind
from swe_core.api.task import Task
from swe_core.builtin.swe.config_sections import WITH_SECTIONS
from swe_core.builtin.swe.git_trees import LINK, Trees, ancestors
from swe_core.builtin.swe.test_files import (
    command_files,
    command_words,
    hidden_directories,
    is_test_directory,
    named_directories,
    named_files,
)

SHARED_CONFIG = frozenset(("setup.cfg", "tox.ini", "pyproject.toml"))
"""Files that the test runner reads some sections of."""

_RUNNER_CONFIG = frozenset(("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", ".coveragerc"))
_OF_PROGRAM: Mapping[str, tuple[str, ...]] = {
    "tox": ("tox.toml",),
    "nox": ("noxfile.py",),
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "hatch": ("hatch.toml",),
    "pixi": ("pixi.toml",),
    "poe": ("poe_tasks.toml", "poe_tasks.json", "poe_tasks.yaml"),
    "invoke": ("tasks.py", "invoke.yaml"),
    "inv": ("tasks.py", "invoke.yaml"),
    "doit": ("dodo.py",),
    "just": ("justfile", "Justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml", "taskfile.yml", "taskfile.yaml"),
    "nose2": ("unittest.cfg", "nose2.cfg"),
}
_SETUP_TEST = re.compile(r"\bsetup\.py\s+(?:test|pytest|nosetests)\b")
_START_UP = frozenset(("sitecustomize", "usercustomize"))
_RUNNERS = frozenset((
    "_distutils_hack", "_pytest", "apipkg", "atomicwrites", "attr", "attrs", "colorama", "coverage",
    "exceptiongroup", "execnet",
    "importlib_metadata", "iniconfig", "more_itertools", "nose", "nose2", "nox", "packaging", "pathlib2",
    "pluggy", "py", "pygments", "pytest", "pytest_asyncio", "pytest_cov", "pytest_mock", "pytest_timeout",
    "pytest_xdist", "six", "toml", "tomli", "tox", "typing_extensions", "wcwidth", "xdist", "zipp",
))  # fmt: skip
_SHADOWING = _RUNNERS | sys.stdlib_module_names
_INSTALLED = re.compile(
    r".*\.(?:egg-info|dist-info|egg-link|egg)|site-packages|dist-packages|\.eggs|__pycache__",
    re.IGNORECASE,
)
_COMPILED = (".pyc", ".pyo")  # Python may prefer them to their source


class Protection:
    """The rules of one task.

    Args:
        trees: The base, and the trees derived from it.
    """

    def __init__(self, trees: Trees, task: Task) -> None:
        self._trees = trees
        named = named_files(task, trees)
        self._named = named
        self._test_dirs = named_directories(task, trees) | hidden_directories(task)
        for path in named:
            nearest = next(filter(is_test_directory, ancestors(path)), None)
            if nearest is not None:
                self._test_dirs.add(nearest)
        words = command_words(task)
        self.programs = words & WITH_SECTIONS
        self._scripts = command_files(task, trees.base.keys())
        self._scripts.update(
            file for program, files in _OF_PROGRAM.items() if program in words for file in files
        )
        if _SETUP_TEST.search(f"{task.setup}\n{task.test_command}"):
            self._scripts.add("setup.py")
        self._below_tests = tuple(f"{directory}/" for directory in self._test_dirs)
        known = named | self._test_dirs | self._scripts
        self._config_dirs = {above for path in known for above in (path, *ancestors(path))} | {""}
        self._everywhere = not (named or self._test_dirs)
        packages = {posixpath.dirname(path) for path in trees.base if path.endswith("/__init__.py")}
        holding_tests = {posixpath.dirname(path) for path in (*named, *self._scripts)} - packages
        self._search_dirs = {"", "src", "lib"} | holding_tests | words
        self._ignored_dirs = {path[:-1] for path in trees.ignored if path.endswith("/")}
        self._ignored = set(trees.ignored)
        self._new_packages = frozenset(_packages(trees))

    def kind(self, path: str) -> TamperKind | None:
        """Return why `path` comes from the reference; None if it comes from the patch."""
        name = posixpath.basename(path)
        if self.is_test(path):
            return "tests"
        if name == "conftest.py" or path in self._scripts:
            return "runner-config"
        if name in _RUNNER_CONFIG and self._reads_config(path):
            return "runner-config"
        if self._is_shadow(path):
            return "shadow"
        return "attributes" if name == ".gitattributes" else None

    def is_test(self, path: str) -> bool:
        """Return whether `path` is one of the tests or of what they are built on."""
        return path in self._named or path in self._test_dirs or path.startswith(self._below_tests)

    def decides(self, path: str) -> bool:
        """Return whether this file decides the verdict: it is code of the tests, or configures their run."""
        return path in self._named or not self.is_test(path) or path.endswith(".py")

    def shares_config(self, path: str) -> bool:
        """Return whether the test runner reads some sections of `path`."""
        return posixpath.basename(path) in SHARED_CONFIG and self._reads_config(path)

    def _reads_config(self, path: str) -> bool:
        return self._everywhere or posixpath.dirname(path) in self._config_dirs

    def _is_shadow(self, path: str) -> bool:
        if path.endswith(_COMPILED) or any(map(_INSTALLED.fullmatch, path.split("/"))):
            return True
        if path in self._trees.base:
            return False
        if path in self._ignored or any(p in self._ignored_dirs for p in (path, *ancestors(path))):
            return True
        if path.endswith(".pth") and posixpath.dirname(path) in self._search_dirs:
            return True
        return any(
            module in _START_UP
            or (module in _SHADOWING and where in self._search_dirs)
            or (where, module) == ("", "__init__")  # pytest would import it, and name the tests after it
            for where, module in self._modules(path)
        )

    def _modules(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the modules that a new path makes importable: the directory to search, the name."""
        where, name = posixpath.split(path)
        module, dot, _ = name.partition(".")
        is_link = (entry := self._trees.in_model(path)) is not None and entry.mode == LINK
        if is_link or (dot and name.endswith((".py", ".so", ".pyd"))):
            yield where, module
        for above in ancestors(path):
            if above in self._new_packages:
                yield posixpath.split(above)


def _packages(trees: Trees) -> Iterator[str]:
    """Yield the directories that a patch turns into packages, which then precede installed ones."""
    for changes in (trees.model, trees.reference):
        for path, entry in changes.items():
            where, name = posixpath.split(path)
            if entry is not None and path not in trees.base and name.partition(".")[0] == "__init__":
                yield where
