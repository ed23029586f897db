"""The Python of a bundle and its packages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_core.bundles import Python, Recipe, Wheels, ensure_bundle, find_bundle, python, wheels
from swe_core.bundles.build import check_host
from swe_core.bundles.python import add_libraries
from swe_core.bundles.wheels import target_options
from swe_core.errors import AgentError, ConfigError

from .wheels import FILES, make_wheel, pip_knows

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
OWN = Python((VERSION,))
HOOK = "import pathlib; pathlib.Path({!r}).touch()\n"
ASK = """
import ctypes, json, os, sqlite3, ssl, subprocess, sys, tiny, tiny_more, zlib
child = subprocess.run([sys.executable, "-I", "-c", "import tiny; print(tiny.ANSWER)"], capture_output=True)
maps = open("/proc/self/maps").read().split()
print(json.dumps({
    "executable": sys.executable, "prefix": sys.prefix, "path": sys.path, "child": child.stdout.decode(),
    "env": dict(os.environ), "maps": sorted({part for part in maps if ".so" in part}),
    "cached": tiny.__cached__, "filename": sys._getframe().f_code.co_filename,
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


def use_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Iterator[Recipe]:
    """The interpreter of the tests with a tiny package, whose .pth file must not run on the host."""
    files = {**FILES, "hook.pth": HOOK.format(str(folder / "ran"))}
    with pytest.MonkeyPatch.context() as monkeypatch:
        pip_knows(folder, monkeypatch)
        use_folder(folder, monkeypatch)
        recipe = Recipe("some", (OWN, Wheels(make_wheel(folder, files), OWN, drop=("*/tests/*",))))
        bundle = ensure_bundle(recipe)
        assert not (folder / "ran").exists(), "code of a package ran on the host"
        assert find_bundle(recipe) == ensure_bundle(recipe) == bundle
        yield recipe


@pytest.fixture(scope="module")
def bundle(recipe: Recipe) -> Path:
    found = find_bundle(recipe)
    assert found is not None
    return found.path


def ask(program: str | Path, script: str, cwd: Path, **env: str) -> dict[str, Any]:
    command = [program, "-I", "-c", script]
    said: dict[str, Any] = json.loads(subprocess.check_output(command, env=env, cwd=cwd))
    return said


def test_python_runs_with_the_files_of_the_bundle_alone(bundle: Path, tmp_path: Path) -> None:
    program = bundle / "bin/python3"
    said = ask(program, ASK, tmp_path, A="1", PYTHONPATH="/elsewhere")
    assert (said["executable"], said["prefix"]) == (str(program), str(bundle))
    assert {Path(path).is_relative_to(bundle) for path in (*said["path"], *said["maps"])} == {True}
    assert said["child"] == "42\n"
    assert {*said["env"]} - {"A", "LC_CTYPE", "PWD", "SHLVL", "_"} == {"PYTHONPATH"}
    assert Path(said["cached"]).is_file()
    (tmp_path / "assets").symlink_to(bundle)
    assert ask("./assets/bin/../bin/python3", ASK, tmp_path)["child"] == "42\n", "by a link"


def test_packages_are_compiled_and_need_no_comparison(bundle: Path) -> None:
    """A sandbox cannot write to its assets, so nothing would be kept of what Python compiles there."""
    sources = [path for path in bundle.rglob("*.py") if path.name != "template.py"]
    assert len(sources) > 300
    tag = f"cpython-{VERSION.replace('.', '')}"
    compiled = [path.parent / f"__pycache__/{path.stem}.{tag}.pyc" for path in sources]
    assert [path for path in compiled if not path.is_file()] == []
    assert {path.read_bytes()[4:8] for path in compiled} == {b"\1\0\0\0"}, "hash-based, unchecked"
    inside = b"/opt/swe/some/site-packages/tiny/__init__.py"
    assert inside in (bundle / f"site-packages/tiny/__pycache__/__init__.{tag}.pyc").read_bytes()


def test_wheels_are_unpacked_without_what_is_dropped(bundle: Path) -> None:
    packages = bundle / "site-packages"
    found = {str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()}
    assert {name for name in found if "__pycache__" not in name} == {
        "hook.pth", "tiny/__init__.py", "tiny/template.py", "tiny_more.py", "tiny-1.0.dist-info/METADATA",
        "tiny-1.0.dist-info/RECORD", "tiny-1.0.dist-info/WHEEL",
    }  # fmt: skip


def test_change_noticed(folder: Path, recipe: Recipe, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_folder(folder, monkeypatch)
    path = next(bundle.rglob("tiny_more*.pyc"))
    before = path.read_bytes()
    path.write_bytes(before + b"\n")
    try:
        assert find_bundle(recipe) is None
    finally:
        path.write_bytes(before)
    assert find_bundle(recipe) is not None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Wheels alone, without a Python; pip takes them from the returned folder."""
    monkeypatch.setattr(wheels, "add_libraries", lambda *_: [])
    monkeypatch.setattr(wheels, "compile_modules", lambda *_: None)
    monkeypatch.setattr(wheels, "PROGRAM", "")
    pip_knows(tmp_path / "wheels", monkeypatch)
    return tmp_path / "wheels"


@pytest.mark.parametrize(
    ("pinned", "says"),
    [
        (f"tiny==1.0 --hash=sha256:{'0' * 64}", r"pip cannot fetch the packages of the agent 'some': .*HASH"),
        pytest.param("tiny==1.0", r"agent 'some': .*--require-hashes mode", marks=pytest.mark.slow),
        ("huge==1.0 {hash}", r"requirement huge==1\.0 .*; connect this host to the package index"),
    ],
)
def test_wheel_unlike_its_lock_is_refused(quick: Path, pinned: str, says: str) -> None:
    hashed = make_wheel(quick).partition(" ")[2]
    with pytest.raises(AgentError, match=says) as caught:
        ensure_bundle(Recipe("some", (Wheels(pinned.replace("{hash}", hashed), OWN),)))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_absent_index_is_one_sentence(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = http://127.0.0.1:1\nretries = 1\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    with pytest.raises(AgentError) as caught:
        ensure_bundle(Recipe("some", (Wheels(make_wheel(quick), OWN),)))
    said = str(caught.value)
    begins = "pip cannot fetch the packages of the agent 'some': [Errno 111] Connection refused; "
    assert said.startswith(begins)
    assert "`pip config set global.index-url URL`" in said
    assert "\n" not in said


def test_wheel_that_leads_out_of_its_folder_is_refused(quick: Path, tmp_path: Path) -> None:
    lock = make_wheel(quick, {**FILES, "tiny/../../outside.py": ""})
    with pytest.raises(AgentError, match=r"'tiny-1\.0-py3-none-any\.whl' has the path 'tiny/\.\./\.\."):
        ensure_bundle(Recipe("some", (Wheels(lock, OWN),)))
    assert not list(tmp_path.rglob("outside.py"))


def test_host_without_pip_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(AgentError, match="'some' is fetched with pip, but there is none: install"):
        check_host(Recipe("some", (Wheels("", OWN),)))
    with pytest.raises(AgentError, match="the recipe of the agent 'some' has wheels before its Python"):
        ensure_bundle(Recipe("some", (Wheels("", OWN), OWN)))


def test_wheels_are_chosen_for_the_python_and_the_c_library() -> None:
    options = target_options("3.12", "aarch64", (2, 17))
    values = [option for option in options if not option.startswith("--")]
    assert values[:6] == [":all:", "3.12", "cp", "cp312", "abi3", "none"]
    assert values[6] == "manylinux_2_17_aarch64"
    assert "manylinux2014_aarch64" in values
    assert "manylinux_2_18_aarch64" not in values


def test_python_of_another_version_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(
        AgentError, match=r"'some' needs a CPython 3\.1 or 3\.2 to bundle.*agent\.some\.python"
    ):
        Python(("3.1", "3.2")).resolve("some")
    assert Python(("3.1", VERSION)).find("some").version == VERSION
    found = replace(OWN, configured=Path(sys.executable)).find("some")
    assert found.program.is_relative_to(Path(sys.base_prefix).resolve()), "of a virtual environment"


def test_python_is_sought_where_installers_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (("PATH", "path"), ("PYENV_ROOT", "pyenv"), ("XDG_DATA_HOME", "data")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.delenv("UV_PYTHON_INSTALL_DIR", raising=False)
    for place in ("path", "pyenv/versions/9.9.1/bin", "data/uv/python/cpython-9.9.1-x/bin"):
        found = tmp_path / place / "python9.9"
        found.parent.mkdir(parents=True)
        found.write_text("#!/bin/sh\n")
        found.chmod(0o755)
        assert found in list(python._candidates("9.9"))


@pytest.mark.parametrize("name", ["absent", "pypy", "musl"])
def test_configured_python_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    facts = {
        "version": VERSION, "build": "1", "prefix": "/usr", "libraries": [],
        "name": "PyPy" if name == "pypy" else "CPython", "libc": ["" if name == "musl" else "glibc", "2.36"],
    }  # fmt: skip
    program = tmp_path / "python"
    if name != "absent":
        program.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
        program.chmod(0o755)
    with pytest.raises(
        ConfigError, match=r"^agent\.some\.python: '.*/python' is no CPython .* leave it unset"
    ):
        replace(OWN, configured=program).resolve("some")


def test_copy_that_does_not_start_quotes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old loader has no option --argv0."""
    script = b"#!/bin/sh\necho first >&2; echo '--argv0: no such file' >&2; exit 1\n"
    monkeypatch.setattr(python, "launcher", lambda *_, **__: script)
    monkeypatch.setattr(python, "add_libraries", lambda *_: [])
    with pytest.raises(AgentError, match=r"cannot bundle the Python '.*': its copy .* \(--argv0: no such"):
        ensure_bundle(Recipe("some", (OWN,)))


def test_module_whose_library_is_missing_is_reported(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime/python"
    runtime.mkdir(parents=True)
    loader = runtime / "ld-linux.so.2"
    loader.write_text(
        '#!/bin/sh\ncase $4 in *gone.so) echo "libgone.so.1 => not found";; *other.so) exit 1;;\n'
        f'*) echo "libhost.so.1 => {tmp_path}.host (0x1)"; echo "lib.so.1 => {runtime}/lib.so (0x1)";; esac\n'
    )
    loader.chmod(0o755)
    Path(f"{tmp_path}.host").write_bytes(b"library")
    for name in ("fine.so", "gone.so", "other.so", "text.so"):
        (tmp_path / name).write_bytes(b"text" if name == "text.so" else b"\x7fELF")
    assert add_libraries(tmp_path, tmp_path) == [tmp_path / "gone.so"]
    assert sorted(path.name for path in runtime.iterdir()) == ["ld-linux.so.2", "libhost.so.1"]
