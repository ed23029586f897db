"""The test runner's sections of a shared file are put back, the rest of it is the patch's."""

from __future__ import annotations

import time
import tomllib

import pytest

from swe_core.builtin.swe.config_sections import MAX_BYTES, with_sections_of

TOML = (
    b'[build-system]\nrequires = ["x"]\n\n[tool.pytest.ini_options]\naddopts = "-ra"\n\n'
    b"[tool.ruff]\nx = 1  # why\n"
)
INI = b"[metadata]\nname = x\n\n[tool:pytest] # ours\naddopts = -ra\n  --strict\n\n[flake8]\nmax = 1 ; why\n"


def edit(
    reference: bytes, model: bytes, base: bytes = b"", name: str = "setup.cfg", runs: str = ""
) -> bytes | None:
    return with_sections_of(reference, model, base, name=name, programs=frozenset(runs.split()))


FILES = (("pyproject.toml", TOML), ("setup.cfg", INI), ("tox.ini", INI))


def test_config_with_expected_sections_is_unchanged() -> None:
    """One that changes no more than the protected ones becomes the base."""
    for name, content in FILES:
        for model in (content, content.replace(b"why", b"because"), content.replace(b"\n", b"\r\n")):
            assert edit(content, model, content, name) == model
        assert edit(content, content.replace(b"-ra", b"-k x"), content, name) == content


def test_ini_file_keeps_its_other_sections() -> None:
    model = b"[metadata]\r\nname = y\r\n[tool:pytest]\r\naddopts = -k x\r\n\r\n[flake8]\r\nmax = 2 ; c\r\n"
    assert edit(INI, model, INI) == (
        b"[metadata]\r\nname = y\r\n[flake8]\r\nmax = 2 ; c\n\n"
        b"[tool:pytest] # ours\naddopts = -ra\n  --strict\n\n"
    )


def test_toml_file_keeps_its_other_sections() -> None:
    model = TOML.replace(b"-ra", b"-k x").replace(b"x = 1  # why", b"x = 2  # so")
    assert edit(TOML, model, TOML, "pyproject.toml") == (
        b'[build-system]\nrequires = ["x"]\n\n[tool.ruff]\nx = 2  # so\n\n'
        b'[tool.pytest.ini_options]\naddopts = "-ra"\n'
    )


def test_deleted_or_new_config_has_the_protected_sections() -> None:
    assert edit(INI, b"", INI) == b"[tool:pytest] # ours\naddopts = -ra\n  --strict\n\n"
    assert edit(b"", INI) == b"[metadata]\nname = x\n\n[flake8]\nmax = 1 ; why\n"
    assert edit(b"", b"[pytest]\na = 1\n") == b""
    assert edit(b"", b"") == b""


SPELLINGS = (
    b"[[tool.pytest]]\nx = 1\n",
    b'tool.pytest.ini_options.addopts = "-k x"\n',
    b'[tool]\npytest = {ini_options = {addopts = "x"}}\n',
    b'[tool."pytest"]\nx = 1\n',
    b"[ tool . pytest ]\nx = 1\n",
    b'["tool"."\\u0070ytest"]\nx = 1\n',
    b"[tool.a]\nb = 1\n[x]\ny = 1\n[tool.pytest.ini_options]\nz = 1\n[tool.b]\nc = 1\n",
    b"[tool.pytest-extra]\nx = 1\n",
)


def test_toml_table_is_removed_in_every_spelling() -> None:
    for spelling in SPELLINGS:
        edited = edit(b"", spelling, name="pyproject.toml")
        assert edited is not None, spelling
        assert not any(name.startswith("pytest") for name in tomllib.loads(edited.decode()).get("tool", {}))
        put_back = edit(TOML, spelling, TOML, name="pyproject.toml")
        assert put_back is not None, spelling
        assert tomllib.loads(put_back.decode())["tool"]["pytest"] == {"ini_options": {"addopts": "-ra"}}


NOT_PLAIN = {
    "an indented head": ("setup.cfg", b"[a]\nx = 1\n [tool:pytest]\n addopts = 1\n"),
    "a head after a form feed": ("setup.cfg", b"[a]\nx = 1\x0c[tool:pytest]\naddopts = 1\n"),
    "a head after a lone CR": ("setup.cfg", b"[a]\nx = 1\r[tool:pytest]\raddopts = 1\n"),
    "a head after U+2028": ("setup.cfg", "[a]\nx = 1\u2028[tool:pytest]\n".encode()),
    "a byte order mark": ("setup.cfg", b"\xef\xbb\xbf[tool:pytest]\nx = 1\n"),
    "a section twice": ("setup.cfg", b"[tool:pytest]\nx = 1\n[tool:pytest]\ny = 1\n"),
    "not UTF-8": ("setup.cfg", b"[a]\nx = \xff\n"),
    "no INI": ("setup.cfg", b"what is this\n"),
    "no TOML": ("pyproject.toml", b"tool = ][\n"),
    "a head in a text": ("pyproject.toml", b'x = """\n[tool.pytest.ini_options]\n"""\n'),
    "tool is no table": ("pyproject.toml", b"tool = 1\n"),
    "too large": ("setup.cfg", b"[a]\nx = " + b"1" * MAX_BYTES + b"\n"),
    "too deep": ("pyproject.toml", b"x = " + b"[" * 30_000),
}


def test_ambiguous_config_is_not_edited() -> None:
    for what, (name, model) in NOT_PLAIN.items():
        assert edit(TOML if name.endswith("toml") else INI, model, name=name) is None, what


def test_sections_of_the_program_that_runs_the_tests_are_protected() -> None:
    ours, theirs = b"[testenv]\ncommands = true\n", b"[testenv]\ncommands = pytest\n"
    assert edit(theirs, ours, name="tox.ini") == ours
    assert edit(theirs, ours, name="tox.ini", runs="tox") == theirs
    assert edit(b"", b"[tool.tox]\nx = 1\n", name="pyproject.toml", runs="tox") == b""
    for program in ("hatch", "pdm", "poe", "pixi"):
        ours = f"[tool.{program}.scripts]\ntest = 'true'\n".encode()
        assert edit(b"", ours, name="pyproject.toml") == ours
        assert edit(b"", ours, name="pyproject.toml", runs=program) == b""


SLOW = {
    "a large number": "[a]\nbig = " + "1" * 5000,
    "dotted keys": "[a]\n" + "".join(f"a.k{number} = 1\n" for number in range(3000)),
    "a quoted sign": '[a]\n"=".' + "a." * 20_000 + "a = 1",
    "tables": "".join(f"[tool.a.x{i}]\n[tool.pytest.x{i}]\n" for i in range(1500)),
    "a key of thousands of parts": "a" + ".a" * 30_000 + " = 1",
}


@pytest.mark.parametrize("what", SLOW)
def test_config_that_parses_slowly_is_not_edited(what: str) -> None:
    started = time.process_time()
    model = f"[tool.pytest.ini_options]\naddopts = '-z'\n{SLOW[what]}\n"
    assert edit(b"", model.encode(), name="pyproject.toml") is None
    assert time.process_time() - started < 5, "the parser would take minutes"
