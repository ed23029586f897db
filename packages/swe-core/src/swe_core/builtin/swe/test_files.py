"""Which files of a repository a task's tests are: those that its test patch, its ids or its command name."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Set

from swe_core.api.task import Task
from swe_core.builtin.swe.git_trees import Trees, ancestors

_NOT_TESTS = frozenset((
    ".cfg", ".csv", ".ini", ".jpeg", ".jpg", ".json", ".lock", ".md", ".pkl", ".png", ".rst", ".toml",
    ".txt", ".yaml", ".yml",
))  # fmt: skip
_TEST_NAME = re.compile(r"tests?[_.-].*|.*[_.-]tests?\.[^.]+|tests?\.[^.]+")
_UNITTEST = re.compile(r"\w+ \(([\w.]+)\).*", re.DOTALL)
_DOTTED = re.compile(r"\w+(?:\.\w+)+")
_WORD = re.compile(r"[^\s'\"=:;|&<>()$`\\,]+")
_RUNS_A_FILE = re.compile(r"(?:.*/)?(?:(?:ba|da|z)?sh|source|\.|exec|command|python[\d.]*)")
_NO_SCRIPTS = frozenset(("setup.py", "setup.cfg", "pyproject.toml", "tox.ini"))


def files_to_run(task: Task, trees: Trees) -> tuple[str, ...]:
    """Return what is appended to the test command, relative to the repository.

    `Task.test_files` where given; else the files that the test patch adds or changes, without data and
    support files; where it has none, those that the ids of the tests name.
    """
    if task.test_files is not None:
        return task.test_files
    touched = [path for path, entry in trees.tests.items() if entry is not None and _is_run(path)]
    if touched or task.log_parser != "pytest":
        return tuple(touched)
    return tuple(dict.fromkeys(test.split("::", 1)[0] for test in _ids(task) if "::" in test))


def _is_run(path: str) -> bool:
    name = posixpath.basename(path)
    return name not in ("__init__.py", "conftest.py") and posixpath.splitext(name)[1] not in _NOT_TESTS


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
        elif (dotted := _UNITTEST.fullmatch(test.strip()) or _DOTTED.fullmatch(test.strip())) is not None:
            modules = _Modules(paths) if modules is None else modules
            named.update(modules.of(dotted[dotted.re.groups]))
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
        parts = dotted.split(".")
        for end in range(len(parts), 0, -1):
            path = f"{'/'.join(parts[:end])}.py"
            if path in self._paths:
                return [path]
            if found := [p for p in self._tests.get(f"{parts[end - 1]}.py", ()) if p.endswith(f"/{path}")]:
                return found
        return []
