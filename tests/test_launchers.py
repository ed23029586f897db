"""Workers with a process of their own beside the rollouts', and resumed runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.run.settings import Settings
from swe_core.system.redaction import Redactor

from .conftest import Done
from .warm import Warm

PLUGIN = Path(__file__).with_name("launching_worker.py")
OUT = "run"
Launched = Callable[..., Done]
OPTION = """
from swe_core import hookimpl
from swe_core.api.component import RunOption

@hookimpl
def swe_options():
    return [RunOption("--acme-sync", "worker.launching.weight_sync", "How weights are sent.", "HOW")]
"""


@pytest.fixture
def launched(tmp_path: Path, warm: Warm) -> Launched:
    """Run `swe-core run ARGS` with the run directory `OUT`, in a process and a directory of its own."""

    def run(*args: str, out: bool = True, **env: str) -> Done:
        command = ["run", *args, *(("--out", OUT) if out else ())]
        with Warm((), env) if "PYTHONPATH" in env else nullcontext(warm) as starts:
            with starts.start(command, env, cwd=tmp_path) as program:
                stdout, stderr = program.communicate(timeout=500)
        assert "Traceback" not in stderr, stderr
        return Done(program.wait(), stdout, stderr, tmp_path / OUT)

    return run


def training(end: str = "well", **settings: object) -> list[str]:
    """Arguments of a run of the plugin on two demo tasks."""
    sets = {"worker.launching.note": "note.json", "worker.launching.end": end, **settings}
    words = ["-p", str(PLUGIN), "--task", "demo__memofn-1", "--task", "demo__csvtidy-1"]
    return [*words, *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]


def noted(done: Done) -> dict[str, Any]:
    note: dict[str, Any] = json.loads((done.out.parent / "note.json").read_text())
    return note


def one_sentence(done: Done, *parts: str) -> None:
    """The error of `done`, after what it said before."""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("swe-core: error: "), done.stderr
    for part in parts:
        assert part in last


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
def test_launcher_is_asked_outside_any_loop_with_settings_of_the_same_plan(launched: Any) -> None:
    done = launched(*training(), "--attempts", "2")
    assert done.code == 0, done.stderr
    note = noted(done)
    assert (note["in_loop"], note["main_thread"]) == (False, True)
    assert (note["directory"], note["exists"], note["resume"]) == (OUT, False, False)
    assert note["same_settings"]
    assert note["settings"]["run"]["extra_plugins"] == [str(PLUGIN)]
    assert note["agent"] == "nop"  # whom the worker prefers
    assert len(done.rollouts) == 4
    assert {rollout["agent"] for rollout in done.rollouts} == {"nop"}
    assert "resolved 0 of 4" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("local_sandbox")
def test_errors_of_rollouts_are_no_error_of_training(launched: Launched) -> None:
    done = launched(*training(), "--set", "limits.open=0.001")
    assert {rollout["outcome"] for rollout in done.rollouts} == {"error"}
    assert done.code == 0, done.stderr


def test_launcher_exception_is_one_sentence(launched: Launched) -> None:
    done = launched(*training("fails"))
    one_sentence(done, "lost its device: look at its log")
    assert done.code == 1
    assert not done.out.exists()


def test_interruption_before_the_run_directory_exists(launched: Launched) -> None:
    done = launched(*training("interrupted-early"))
    assert (done.code, done.stdout) == (130, "")
    assert done.stderr == "swe-core: interrupted before a rollout started\n"


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
def test_interrupted_run_resumes(launched: Launched) -> None:
    """`--resume` alone: recorded settings, with those of the command line and the environment above them."""
    first = launched(*training("interrupted", **{"run.concurrency": 2, "limits.grade": 77}))
    assert first.code == 130, first.stderr
    assert "resolved 0 of 1" in first.stdout
    before, recorded = first.rollouts, json.loads((first.out / "run.json").read_text())
    (first.out / "rollouts" / "torn-0").mkdir()
    again = launched(
        "--resume", OUT, "--concurrency", "3", "--set", "worker.launching.end=well",
        out=False, SWE_LIMITS__AGENT="78",
    )  # fmt: skip
    assert again.code == 0, again.stderr
    note = noted(again)
    settings = note["settings"]
    assert (note["resume"], note["exists"], note["directory"]) == (True, True, OUT)
    assert settings["run"]["extra_plugins"] == [str(PLUGIN)]
    assert settings["run"]["only"] == ["demo__memofn-1", "demo__csvtidy-1"]
    assert settings["run"]["concurrency"] == 3
    assert (settings["limits"]["grade"], settings["limits"]["agent"]) == (77, 78)
    assert again.rollouts[:1] == before
    assert [rollout["task_id"] for rollout in again.rollouts] == ["demo__memofn-1", "demo__csvtidy-1"]
    assert recorded["changes"] == []
    changes = {
        change["setting"]: (change["before"], change["after"])
        for change in json.loads((again.out / "run.json").read_text())["changes"]
    }
    assert changes == {
        "run.concurrency": (2, 3),
        "worker.launching.end": ("interrupted", "well"),
        "limits.agent": (recorded["settings"]["limits"]["agent"], 78),
    }
    assert not (again.out / "rollouts" / "torn-0").exists()


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run of the worker `collect` that did nothing yet."""
    monkeypatch.chdir(tmp_path)  # where the run starts and resumes
    settings = Settings().model_dump(mode="json")
    return RunDirectory.create(tmp_path / OUT, new_run_info({}, settings, 1, []), Redactor()).path


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ([], ["the run 'run' cannot be resumed", "its tasks have changed: 'demo__", "' is new"]),
        (["--agent", "nop"], ["the setting 'run.agent' was None when it was started and is 'nop' now"]),
    ],
)
def test_no_resumption(launched: Launched, recorded: Path, args: list[str], parts: list[str]) -> None:
    (recorded / "rollouts" / "torn-0").mkdir()
    done = launched("--resume", OUT, *args, out=False)
    one_sentence(done, *parts)
    assert done.code == 2
    assert (recorded / "rollouts" / "torn-0").exists()  # nothing was touched


@pytest.mark.slow
def test_option_of_an_installed_plugin(launched: Launched, tmp_path: Path) -> None:
    """It is short for a setting, and in the help only where its plugin is allowed."""
    info = tmp_path / "site" / "acme_syncing-1.2.3.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "acme_syncing.py").write_text(OPTION)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-syncing\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text("[swe_core]\nsyncing = acme_syncing\n")
    site = os.pathsep.join([str(info.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = launched(*training("interrupted-early"), "--acme-sync", "by=disk", PYTHONPATH=site)
    assert done.code == 130, done.stderr
    assert noted(done)["weight_sync"] == "by=disk"
    shown = launched("--help", out=False, PYTHONPATH=site).stdout
    assert "--acme-sync HOW" in shown
    assert "How weights are sent." in shown
    refused = launched("--acme-sync", "x", out=False, PYTHONPATH=site, SWE_PLUGINS="")
    assert refused.code == 2
    assert "--acme-sync" in refused.stderr
