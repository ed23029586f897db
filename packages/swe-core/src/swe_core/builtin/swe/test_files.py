"""Which files of a repository a task's tests are: those that its test patch, its ids or its command name."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Set
from itertools import islice

from swe_core.api.task import Task
from swe_core.builtin.swe.git_trees import MAX_PATH, SUBMODULE, Trees, ancestors

NOT_TESTS = (
    ".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml"
)  # fmt: skip
"""Endings of files of a test patch that swebench, and all that is made of it, does not run."""
_LONGEST = 64 * 1024
"""Characters of all files on a command line; Linux takes 128 KiB."""
_MOST_ABSENT = 20
_TEST_NAME = re.compile(r"tests?[_.-].*|.*[_.-]tests?\.[^.]+|tests?\.[^.]+")
_UNITTEST = re.compile(r"\w+ \(([\w.]+)\).*", re.DOTALL)
_DOTTED = re.compile(r"\w+(?:\.\w+)+")
_WORD = re.compile(r"[^\s'\"=:;|&<>()$`\\,]+")
_RUNS_A_FILE = re.compile(r"(?:.*/)?(?:(?:ba|da|z)?sh|source|\.|exec|command|python[\d.]*)")
_NO_SCRIPTS = frozenset(("setup.py", "setup.cfg", "pyproject.toml", "tox.ini"))


def files_to_run(task: Task, trees: Trees) -> tuple[str, ...]:
    """Return what is appended to the test command, relative to the repository.

    `Task.test_files` where given; else the files that the test patch adds or changes, without data and
    support files, as swebench does it, then those that hold other tests that decide. pytest and unittest run
    no test where they can collect nothing of a file, so one that is no module is run only where an id names
    it. Where they are too many for a command line, their directories are run, or everything.
    """
    if task.test_files is not None:
        return task.test_files
    pytest, others = task.log_parser == "pytest", task.log_parser.startswith("swebench:")
    named = dict.fromkeys(filter(_Paths(trees).has, _files_of_ids(task, trees)))
    touched = [
        path
        for path, entry in trees.tests.items()
        if entry is not None and _is_run(path) and (others or path.endswith(".py") or path in named)
    ]
    if not touched and not pytest:
        return ()
    words = (word.strip("'\"") for word in task.test_command.split() if not word.startswith("-"))
    run = {*map(_file_of, words), *touched} - {"."}
    more = [path for path in named if run.isdisjoint((path, *ancestors(path)))]
    files = (*touched, *more)
    while sum(len(shlex.quote(path)) + 1 for path in files) > _LONGEST:
        files = tuple(dict.fromkeys(map(posixpath.dirname, files)))
        if not pytest or "" in files:
            return ()
    return files


def absent_files(task: Task, trees: Trees) -> tuple[str, ...]:
    """Return some files that ids of pytest name and that are nowhere in the reference: no run can have such
    tests."""
    if task.log_parser != "pytest":
        return ()
    there = _Paths(trees)
    named = dict.fromkeys(_file_of(test) for test in _ids(task) if "::" in test)
    absent = islice((path for path in named if not there.has(path)), _MOST_ABSENT)
    return tuple(path for path in absent if not there.has_below(path))


def _is_run(path: str) -> bool:
    return posixpath.basename(path) not in ("__init__.py", "conftest.py") and not path.endswith(NOT_TESTS)


def _files_of_ids(task: Task, trees: Trees) -> Iterator[str]:
    """Yield the file of each test that decides, where its id names one: of pytest, unittest or sympy."""
    modules = None
    for test in _ids(task):
        path, colons, _ = test.partition("::")
        if colons or task.log_parser == "pytest":
            yield _file_of(path)
        elif task.log_parser.startswith("swebench:"):
            yield _file_of(test.partition(":")[0])
        elif (dotted := _dotted(test)) is not None:
            modules = modules or _Modules(frozenset(trees.reference_paths()))
            yield from modules.of(dotted)[:1]


class _Paths:
    """What the tests of a task can be in: files of the reference, those of other repositories in it, and what
    an image has that git ignores."""

    def __init__(self, trees: Trees) -> None:
        self._files = frozenset(trees.reference_paths())
        self._opaque = {path.rstrip("/") for path in trees.ignored}
        self._opaque.update(path for path, entry in trees.base.items() if entry.mode == SUBMODULE)

    def has(self, path: str) -> bool:
        """Return whether a file may be there."""
        return path in self._files or not self._opaque.isdisjoint((path, *ancestors(path)))

    def has_below(self, path: str) -> bool:
        """Return whether a file may be there, or below any directory, as where tests are run from one."""
        return self.has(path) or any(known.endswith(f"/{path}") for known in self._files)


def named_files(task: Task, trees: Trees) -> set[str]:
    """Return the files that the test patch touches, and those of the reference that `test_files` or an id
    names.

    A doctest of a module (`pkg/mod.py::pkg.mod.f`) does not make the module a test file: it is the product.
    """
    paths = frozenset(trees.reference_paths())
    named = set(trees.tests)
    named.update(name for name in map(_file_of, task.test_files or ()) if name in paths)
    modules = None
    for test in _ids(task):
        path, colons, item = test.partition("::")
        if colons:
            path = _file_of(path)
            if path in paths and not _is_doctest(path, item):
                named.add(path)
        elif (dotted := _dotted(test)) is not None:
            modules = _Modules(paths) if modules is None else modules
            named.update(modules.of(dotted))
    return named


def named_directories(task: Task, trees: Trees) -> set[str]:
    """Directories called `test` or `tests` that the command or `test_files` names: `pytest tests/unit`."""
    given = {_file_of(name) for name in task.test_files or ()} | {word for _, word in _words(task)}
    found = set()
    for path in given:
        if path in trees.base:
            continue
        nearest = next((p for p in (path, *ancestors(path)) if is_test_directory(p)), None)
        if nearest is not None:
            found.add(nearest)
    return found


def hidden_directories(task: Task) -> set[str]:
    """Return the paths of tests that are hidden from the agent and that set-up lines put back."""
    inside = f"{task.workdir.rstrip('/')}/"
    return {
        path.removeprefix(inside) if path.startswith(inside) else posixpath.basename(path)
        for path in (hidden.rstrip("/") for hidden in task.hidden)
    }


def command_files(task: Task, base: Set[str]) -> set[str]:
    """Files of the repository that set-up and test command name as what they run or read, such as
    `./run_tests.sh` or `-c ci/pytest.cfg`; no module that they only pass on."""
    found = set()
    for before, word in _words(task):
        name = posixpath.basename(word)
        if word not in base or name in _NO_SCRIPTS:
            continue
        if not name.endswith(".py") or _TEST_NAME.fullmatch(name) or _RUNS_A_FILE.fullmatch(before):
            found.add(word)
    return found


def command_words(task: Task) -> frozenset[str]:
    """Return every word of set-up and test command that could be a path in the repository, relative to it."""
    return frozenset(word for _, word in _words(task))


def is_test_directory(path: str) -> bool:
    """Return whether a directory is called as those that hold tests are."""
    return posixpath.basename(path) in ("test", "tests")


def _words(task: Task) -> Iterator[tuple[str, str]]:
    """Yield each word with the one before it on its line."""
    for line in f"{task.setup}\n{task.test_command}".split("\n"):
        before = ""
        for word in _WORD.findall(line):
            path = _file_of(word.removeprefix(f"{task.workdir.rstrip('/')}/"))
            if not path.startswith(("/", "../")):
                yield before, path
            before = word


def _file_of(path: str) -> str:
    return posixpath.normpath(path.split("::", 1)[0])


def _ids(task: Task) -> Iterable[str]:
    return (*task.fail_to_pass, *task.pass_to_pass, *(task.expected or ()))


def _dotted(test: str) -> str | None:
    """Return what the id of a unittest says of its place, `package.module.Class.test_x`."""
    found = _UNITTEST.fullmatch(test.strip()) or _DOTTED.fullmatch(test.strip())
    return None if found is None else found[found.re.groups]


def _is_doctest(path: str, item: str) -> bool:
    stem, extension = posixpath.splitext(path)
    item = item.split("[", 1)[0]
    if extension != ".py" or "::" in item or "." not in item:
        return False
    name = posixpath.basename(stem)
    parts = item.split(".")
    return name in parts or (name == "__init__" and posixpath.basename(posixpath.dirname(path)) in parts)


class _Modules:
    """The files that dotted names of tests stand for."""

    def __init__(self, paths: Set[str]) -> None:
        self._paths = paths
        self._tests: dict[str, list[str]] = {}
        for path in paths:
            name = posixpath.basename(path)
            if path.endswith(".py") and (
                _TEST_NAME.fullmatch(name) or any(map(is_test_directory, ancestors(path)))
            ):
                self._tests.setdefault(name, []).append(path)

    def of(self, dotted: str) -> list[str]:
        """Return the file of the longest beginning of `dotted` that is a module: from the root, else (the
        tests are run from a directory of their own) below any directory, when it is a test's."""
        parts = dotted.split(".") if len(dotted) <= MAX_PATH else []
        for end in range(len(parts), 0, -1):
            path = f"{'/'.join(parts[:end])}.py"
            if path in self._paths:
                return [path]
            if found := [p for p in self._tests.get(f"{parts[end - 1]}.py", ()) if p.endswith(f"/{path}")]:
                return found
        return []
