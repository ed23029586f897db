"""`make test`, `test-slow` and `test-long` have no test in common, and are together `make test-all`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = {"test": "not slow and not long", "test-slow": "slow and not long", "test-long": "long"}
SAMPLE = """
import pytest
from hypothesis import given, strategies

def test_unmarked():
    pass

@pytest.mark.slow
def test_marked():
    pass

@pytest.mark.parametrize("case", ["cheap", pytest.param("dear", marks=pytest.mark.slow)])
def test_cases(case):
    pass

@given(strategies.integers())
def test_property(number):
    pass

@pytest.mark.long
def test_long():
    pass

@pytest.mark.slow
@pytest.mark.long
def test_slow_and_long():
    pass
"""


def commands(*words: str, ci: bool = False, directory: Path = ROOT) -> list[str]:
    """What `make WORDS` would run, besides what it says."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "MAKEFLAGS")}
    makefile = str(ROOT / "Makefile")
    command = ["make", "-n", "-f", makefile, "-C", str(directory), "--no-print-directory", *words]
    done = subprocess.run(
        command, env=environment | ({"CI": "1"} if ci else {}), capture_output=True, text=True, check=True
    )
    return done.stdout.replace("\\\n", "").splitlines()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory in which everything is installed, as far as make can tell."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("bin/python", ".demo", ".dev", ".serving"):
        (tmp_path / ".venv" / name).touch()
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    return tmp_path


@pytest.mark.parametrize("ci", [False, True])
def test_targets_differ_in_the_tests_they_choose_and_in_nothing_else(installed: Path, ci: bool) -> None:
    (whole,) = commands("test-all", ci=ci, directory=installed)
    for name, chosen in PARTS.items():
        (part,) = commands(name, ci=ci, directory=installed)
        marks = f' -m "{chosen}"' if " " in chosen else f" -m {chosen}"
        assert part.count(marks) == 1
        assert part.replace(marks, "").split() == whole.split()
    assert " -m pytest " in whole
    assert "--reruns" in whole if ci else "--reruns" not in whole


def test_only_requested_rollouts_run(installed: Path) -> None:
    """Without an engine, and without installing anything where everything is installed."""
    asked = "tests/test_x.py::test_y -k z"
    (command,) = commands("test", f"ARGS={asked}", directory=installed)
    assert command == f".venv/bin/python -m pytest {asked}"
    (installed / ".venv" / ".serving").unlink()
    *installing, last = commands("test", f"ARGS={asked}", directory=installed)
    assert last == command
    assert any("pip" in line for line in installing)


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A project with a test of each kind, and this repository's settings and root conftest.py."""
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("packages", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "tests" / "test_sample.py").write_text(SAMPLE)
    return tmp_path


def pytest_says(project: Path, *options: str) -> str:
    """What pytest says of the project."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def collected(project: Path, *options: str) -> list[str]:
    said = pytest_says(project, "--collect-only", *options)
    return [line for line in said.splitlines() if "::" in line]


def test_selections_share_no_test_and_are_together_all(sample: Path) -> None:
    fast, slow, long = (collected(sample, "-m", marks) for marks in PARTS.values())
    file = "tests/test_sample.py::test_"
    assert fast == [f"{file}{name}" for name in ("unmarked", "cases[cheap]", "property[few]")]
    assert slow == [f"{file}{name}" for name in ("marked", "cases[dear]", "property[many]")]
    assert long == [f"{file}{name}" for name in ("long", "slow_and_long")]
    assert sorted(collected(sample)) == sorted([*fast, *slow, *long])


WORKERS = """
import os
import pytest

{mark}
@pytest.mark.parametrize("case", range(8))
def test_worker(case):
    with open("workers", "a") as file:
        print("{mark}", os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_real_models_share_a_worker_and_so_do_the_tests_of_a_file(sample: Path) -> None:
    """Two workers that change the weights of one server spoil each other's tests."""
    for name, mark in (("one", "@pytest.mark.engine"), ("two", "@pytest.mark.engine"), ("three", "")):
        (sample / "tests" / f"test_{name}.py").write_text(WORKERS.format(mark=mark))
    pytest_says(sample, "-n", "2", "--dist", "loadgroup")
    workers = (sample / "workers").read_text().splitlines()
    assert len(workers) == 24
    assert len(set(workers)) == 2  # one for the marked of both files, and one for the third file
