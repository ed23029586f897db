"""The log parsers of the package swebench.

Importing `swebench.harness` imports docker, datasets, modal and more. Reading a log needs none of them, and
this module imports none.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, get_args

from swe_core.api.task import TestStatus
from swe_core.builtin.swe.log_reader import Found, LogReader
from swe_core.errors import TaskError

_log = logging.getLogger(__name__)

START = ">>>>> Start Test Output"
"""What swebench's evaluation scripts print before the tests; only what follows it is read."""

PYTEST_PARSERS = frozenset({
    "parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2", "parse_log_seaborn",
    "parse_log_matplotlib", "parse_log_astroid", "parse_log_flask", "parse_log_marshmallow",
    "parse_log_pvlib", "parse_log_pyvista", "parse_log_sqlfluff", "parse_log_xarray", "parse_log_pydicom",
    "parse_log_requests", "parse_log_pylint", "parse_log_astropy", "parse_log_scikit", "parse_log_sphinx",
})  # fmt: skip
"""Those that read pytest's `STATUS id` lines, and so can name what a reporter of node ids found."""

_STATUSES: frozenset[str] = frozenset(get_args(TestStatus))

Parser = Callable[[str, Any], Mapping[str, str]]


@cache
def swebench_reader(name: str) -> LogReader:
    """Return the reader made of swebench's parser `name`, such as `parse_log_sympy`.

    Raises:
        TaskError: The package is not installed, is of another version, or has no such parser.
    """
    registry = _registry(name)
    if name not in registry:
        close = difflib.get_close_matches(name, list(registry), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see swebench.harness.log_parsers.PARSER_REGISTRY"
        raise TaskError(f"the package swebench has no log parser {name!r}; {hint}")
    parser = registry[name]

    def parse(log: bytes) -> Found:
        text = log.decode(errors="replace")
        if name == "parse_log_sympy":
            text = "\n".join(map(_without_end, text.split("\n")))
        return _call(name, parser, text.partition(START)[2] or text)

    def rename(found: Found) -> Found | None:
        if name not in PYTEST_PARSERS:
            return None
        return _call(name, parser, "".join(f"{status} {test}\n" for test, status in found.items()))

    return LogReader(parse, rename)


def _without_end(line: str) -> str:
    """Cut off what sympy's runner prints after the last test of a file. Some versions of the parser do not
    know it, so that the test is not in data sets that they made; in others it is."""
    bare = line.rstrip()
    return bare[: bare.rindex("[")].rstrip() if bare.endswith((" [OK]", " [FAIL]")) else line


def _call(name: str, parser: Parser, text: str) -> Found:
    try:
        found = parser(text, None)
    except Exception as error:  # foreign code on a log that anybody may have written: it has no results
        _log.warning("swebench's %s failed on a log: %s: %s", name, type(error).__name__, error)
        return {}
    return {test: status for test, status in found.items() if status in _STATUSES}  # type: ignore[misc]  # `in _STATUSES` narrows nothing


def _registry(wanted: str) -> Mapping[str, Parser]:
    spec = find_spec("swebench")
    if spec is None or not spec.submodule_search_locations:
        raise TaskError(
            f"the log parser {wanted!r} is one of the package swebench, which is not installed: "
            "pip install 'swe-core[swebench]'"
        )
    package = "swebench.harness"
    bare = ModuleType(package)
    bare.__path__ = [f"{place}/harness" for place in spec.submodule_search_locations]
    real = sys.modules.get(package)
    if real is None:  # an empty package in its place while its parsers are imported: they need nothing of it
        sys.modules[package] = bare
    try:
        registry: Mapping[str, Parser] = importlib.import_module(f"{package}.log_parsers").PARSER_REGISTRY
    except (ImportError, AttributeError) as error:
        raise TaskError(
            f"the package swebench that is installed has no parsers that can be used here ({error}): "
            "pip install 'swebench>=5,<6'"
        ) from None
    finally:
        if real is None:
            del sys.modules[package]
    return registry
