"""A run whose settings have relative paths is resumed, and graded again, from any directory."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swe_core.builtin.local import bwrap
from swe_core.cli import cli
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RunDirectory

from ..repositories import Repo

if (obstacle := bwrap.why_not(bwrap.find_bwrap())) is not None:
    pytest.skip(obstacle, allow_module_level=True)

PLUGIN = "from swe_core import hookimpl\n\n\n@hookimpl\ndef swe_rollout_finished(rollout):\n    pass\n"
TEST = "--- /dev/null\n+++ b/test_a.py\n@@ -0,0 +1,2 @@\n+def test_a():\n+    assert not __import__('a').a\n"
GOLD = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 0\n"


def swe_core(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


def said(done: Result) -> str:
    return done.output + str(done.exception or "")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The working directory of a run that was interrupted after one of two rollouts."""
    path = tmp_path_factory.mktemp("interrupted") / "path"
    here = path / "here"
    here.mkdir(parents=True)
    (path / "elsewhere").mkdir()
    repo = Repo(here / "repository")
    repo.commit(a_py="a = 1\n")
    row = {
        "instance_id": "a-1", "repo": "a/a", "base_commit": repo.head, "problem_statement": "p",
        "patch": GOLD, "test_patch": TEST, "FAIL_TO_PASS": ["test_a.py::test_a"], "PASS_TO_PASS": [],
        "repository": "repository",
        "test_command": "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -rA -p no:cacheprovider",
    }  # fmt: skip
    (here / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (here / "extra.py").write_text(PLUGIN)
    what = ["-p", "./extra.py", "--tasks", "rows.jsonl", "--agent", "oracle", "--attempts", "2"]
    with contextlib.chdir(here):
        done = swe_core("run", *what, "--out", "../run")
    assert done.exit_code == 0, said(done)
    lines = path / "run" / "rollouts.jsonl"
    lines.write_text(lines.read_text().splitlines(keepends=True)[0])
    return path, path.rename(path.with_name("kept"))


@pytest.fixture
def started(interrupted: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the directory in which the run started; this process is elsewhere."""
    path, kept = interrupted
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(kept, path, symlinks=True)
    monkeypatch.chdir(path / "elsewhere")
    return path / "here"


@pytest.mark.parametrize(
    "command", [("run", "--resume"), pytest.param(("regrade",), marks=pytest.mark.slow)], ids=" ".join
)
@pytest.mark.slow
def test_resume_and_regrade_work_from_another_directory(started: Path, command: tuple[str, ...]) -> None:
    done = swe_core(*command, "../run")
    assert done.exit_code == 0, said(done)
    assert f"Note: the run '../run' was started in {str(started)!r}: relative paths" in done.stderr
    assert Path.cwd() == started.parent / "elsewhere"
    if command[0] == "run":
        rollouts = RunDirectory.open(started.parent / "run").rollouts()
        assert [rollout.outcome for rollout in rollouts] == ["resolved"] * 2
    else:
        assert "1 of 1 graded the same" in done.output


@pytest.mark.slow
def test_missing_original_directory_is_an_error(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = started.rename(started.parent / "moved")
    for command in (("run", "--resume"), ("regrade",)):
        done = swe_core(*command, "../run")
        assert done.exit_code != 0
        assert f"was started in {str(started)!r}, which is not accessible here" in done.stderr
        assert "'./extra.py': there is no such file" in said(done)
    monkeypatch.chdir(moved)
    done = swe_core("regrade", "../run")
    assert done.exit_code == 0, said(done)
    monkeypatch.chdir(moved.rename(started))
    assert "Note" not in swe_core("regrade", "../run").stderr, "where it was started"


@pytest.mark.slow
def test_missing_current_directory_is_an_error(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def into_what_is_gone() -> None:
        gone = started.parent / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()

    into_what_is_gone()
    run = str(started.parent / "run")
    done = swe_core("regrade", run)
    assert done.exit_code == 0, said(done)
    assert "1 of 1 graded the same" in done.output
    assert Path.cwd() == started
    into_what_is_gone()
    done = swe_core("regrade", "../run")
    assert isinstance(done.exception, UsageError)
    assert "was removed: give the absolute path" in said(done)
    started.rename(started.parent / "moved")
    done = swe_core("regrade", run)
    assert isinstance(done.exception, UsageError), said(done)
    assert "which is not accessible here: relative paths in its settings are not found" in done.stderr
