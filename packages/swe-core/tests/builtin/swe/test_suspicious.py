"""What a patch adds that cheats are made of: found by its syntax tree, and only where it is new."""

from __future__ import annotations

import ast
import gc
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from swe_core.builtin.swe import suspicious
from swe_core.builtin.swe.folded import folded
from swe_core.builtin.swe.suspicious import MAX_LISTED, added, names_of_tests
from swe_testing.records import make_task

TESTS = names_of_tests(
    make_task(fail_to_pass=("tests/test_calc.py::Add::test_add[1]",), pass_to_pass=("test_x (a.test_y.B)",))
)
ODD: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("suspicious.toml").read_text())
HONEST = ODD.pop("honest")


@pytest.mark.parametrize("kind", ODD)
def test_added_suspicious_code_is_found(kind: str) -> None:
    for source in ODD[kind]:
        found = added({"a.py": b"x = 1\n"}, {"a.py": f"x = 1\n{source}\n".encode()}, TESTS)
        assert kind in {one.kind for one in found}, source
        assert all(one.path == "a.py" and one.line > 1 for one in found)
    before = f"{ODD[kind][0]}\n".encode()
    assert added({"a.py": before}, {"a.py": b"import json\n" + before}, TESTS) == (), "it was there"
    assert added({"a.py": before}, {"sub/b.py": before}, TESTS) == (), "moved"
    assert added({"a.py": before}, {}, TESTS) == ()
    twice = {one.kind for one in added({"a.py": before}, {"a.py": before + before}, TESTS)}
    assert (kind in twice) == (kind not in USUAL or kind == "code from data")


USUAL = {
    "memory": "The DLL is loaded twice by ctypes.",
    "import hook": "Modules that an import hook makes have no spec",
    "outlives the call": "Temporary files are left behind at exit",
    "code from data": "Results cannot be pickled",
}


@pytest.mark.parametrize("kind", USUAL)
def test_what_the_issue_or_the_file_is_about_is_no_mark(kind: str) -> None:
    for source in ODD[kind]:
        assert kind not in {one.kind for one in added({}, {"a.py": source.encode()}, TESTS, USUAL[kind])}
        assert kind in {one.kind for one in added({}, {"a.py": source.encode()}, TESTS, "Sums are wrong")}
    first, *_, last = (f"{source}\n".encode() for source in ODD[kind])
    more = {one.kind for one in added({"a.py": first}, {"a.py": first + last}, TESTS)}
    assert (kind in more) == (kind == "code from data")


def test_honest_code_is_not_flagged() -> None:
    assert [source for source in HONEST if added({}, {"a.py": source.encode()})] == []


UNREADABLE = [
    b"print 'Python 2'", b"import gc\n\0", b"(" * 5000, b"\xff\xfe", None, b"a;" * 200_000,
]  # fmt: skip


def test_new_unreadable_source_is_flagged() -> None:
    for source in UNREADABLE:
        assert added({"a.py": source}, {"a.py": source, "b.txt": b"import gc\n"}) == ()
        assert [one.kind for one in added({"a.py": b""}, {"a.py": source})] == ["not looked at"]
        assert source is None or added({"a.py": b""}, {"a.txt": source}) == ()


def test_scan_has_a_limit_for_all_files_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspicious, "_MAX_TOKENS", 2_500)
    monkeypatch.setattr(suspicious, "_MAX_TOKENS_OF_ALL", 10_000)
    many = {f"{number}.py": b"a;" * 1_000 for number in range(10)}
    assert {one.kind for one in added({}, many)} == {"not looked at"}
    assert 0 < len(added({}, many)) < len(many), "the first ones were looked at"


def test_undecodable_name_is_escaped() -> None:
    (found,) = added({}, {"a.py": b"import importlib\nimportlib.import_module('gc.\\ud800')\n"})
    assert found.name == "import gc.\\ud800"
    assert found.model_dump_json()


def test_new_binary_with_code_is_flagged() -> None:
    for name in ("fast.so", "impl.zip"):
        assert [one.name for one in added({}, {f"pkg/{name}": b"x"})] == [name]
        assert added({name: b"x"}, {name: b"y"}) == ()


SCRIPT = b"import sys, pytest\nsys.path.insert(0, '.')\nfrom calc import add\n"


@pytest.mark.parametrize("name", ["test_repro.py", "reproduce.py", "calc_test.py"])
def test_unreferenced_script_may_use_the_test_runner(name: str) -> None:
    assert added({}, {name: SCRIPT, "calc.py": b"def add(a, b): return a + b\n"}) == ()
    stem = name.rpartition("/")[2].removesuffix(".py").encode()
    assert len(added({}, {name: SCRIPT, "calc.py": b"import " + stem})) == 2
    assert len(added({name: b""}, {name: SCRIPT})) == 2, "it was there"
    assert [one.kind for one in added({}, {name: SCRIPT + b"import gc"})] == [
        "all objects of the interpreter"
    ]


FOLDED = {
    "'a' + 'b' + chr(99)": "abc",
    "'%s-%s' % ('a', b'b')": "a-b",
    "'{}{}'.format('a', 'b')": "ab",
    "'-'.join(('a', f\"{'b'}\"))": "a-b",
    "'cba'[::-1].upper().replace('B', 'x')": "AxC",
    "b'ab'.decode()": "ab",
    "+".join(["'ab'"] * 1500): "ab" * 1500,
    "+".join([repr("a" * 5000)] * 3): None,
    "bytes([97, 98]).decode()": "ab",
    "'A'.join(" + repr([""] * 20_000) + ")": None,
    **dict.fromkeys(("'a' + b", "'a'.replace('a')", "'a'[x:]", "f'{x}'", "'a' * 10")),
}


def test_constant_strings_are_folded() -> None:
    assert {source: folded(ast.parse(source, mode="eval").body)[0] for source in FOLDED} == FOLDED


def test_suspicious_list_is_bounded() -> None:
    assert len(added({}, {"a.py": b"import gc\n" * 1000})) == MAX_LISTED


class _Garbage:
    """Hands the interpreter to another thread at each garbage collection."""

    living = True

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        time.sleep(0.00001)
        if _Garbage.living:
            _Garbage()


@contextmanager
def switching_threads() -> Iterator[None]:
    thresholds = gc.get_threshold()
    _Garbage.living = True
    _Garbage()
    gc.set_threshold(300)
    try:
        yield
    finally:
        _Garbage.living = False
        gc.set_threshold(*thresholds)


@pytest.mark.slow
def test_graders_in_threads_do_not_disturb_each_other() -> None:
    """CPython before 3.11.8 and 3.12.2 fails where two parsers overlap."""
    lines = b"\n".join(b"def f%d(a): return [a + %d, (a, {a: 1})]" % (one, one) for one in range(300))
    with switching_threads(), ThreadPoolExecutor(2) as threads:
        looks = [threads.submit(added, {}, {"a.py": lines + b"\nimport gc\n"}) for _ in range(6)]
        assert {one.kind for look in looks for one in look.result()} == {"all objects of the interpreter"}
