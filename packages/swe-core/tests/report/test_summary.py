"""`swe-core report`: results of many attempts, as text, as JSON and as a table; bounded for a long run."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swe_core.api.engine import Usage
from swe_core.api.grader import Grade, Suspicion, Tampering
from swe_core.api.records import Failure, Phases, Retried, Rollout, SandboxTime
from swe_core.cli.report import report, show
from swe_core.report.summary import COLUMNS
from swe_core.report.text import MAX_ROWS
from swe_core.rollout.run_directory import RunDirectory
from swe_testing.records import make_rollout, make_run

from .helpers import lines_of, reported

DIED = Failure(boundary="sandbox", type="SandboxDied", message="it is gone,\n \x1b[2Jfor good")


def rollout(
    task: int,
    attempt: int,
    outcome: Any,
    tampering: tuple[Any, ...] = (),
    suspicious: tuple[str, ...] = (),
    **fields: Any,
) -> Rollout:
    scored = outcome in ("resolved", "unresolved")
    done = tuple(Tampering(kind=kind, path="x", done="put back") for kind in tampering)
    marked = tuple(Suspicion(kind=kind, name="f_back", path="x.py", line=3) for kind in suspicious)
    return make_rollout(
        f"task-{task:04}",
        attempt,
        outcome,
        **{
            "seconds": 2.0,
            "started_at": datetime(2026, 1, 1, tzinfo=UTC),
            "failure": DIED if outcome == "error" else None,
            "grade": Grade(
                resolved=outcome == "resolved", tampering=done, suspicious=marked,
                fail_to_pass={"t": "PASSED"}, test_exit_code=0, channel="reporter",
                unchecked="the repository has no history",
            ) if scored else None,
            **fields,
        }
    )  # fmt: skip


def filled(path: Path, *rollouts: Rollout) -> RunDirectory:
    run = make_run(path)
    (path / "rollouts.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in rollouts))
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Three tasks with four attempts each."""
    return filled(
        tmp_path / "run",
        rollout(0, 0, "resolved", ("tests", "tests", "shadow"), phases=Phases(open=1.0, agent=10.0)),
        rollout(0, 1, "unresolved", ("tests",), phases=Phases(open=3.0)),
        rollout(0, 2, "resolved", (), ("frame access", "memory"), phases=Phases(open=8.0)),
        rollout(0, 3, "unresolved"),
        rollout(1, 0, "unresolved", (), ("memory", "memory")),
        *(rollout(1, attempt, "unresolved") for attempt in (1, 2)),
        rollout(1, 3, "error"),
        *(rollout(2, attempt, "cancelled", cancelled_as="stale") for attempt in range(4)),
    )


def test_text_report_has_every_section(run: RunDirectory) -> None:
    lines = lines_of(run)
    for line in (
        "task attempts resolved errors cancelled mean seconds",
        "task-0000 4 2 0 0 2.0",
        "task-0001 4 0 1 0 2.0",
        "task-0002 4 0 0 4 2.0",
        "resolved 2 of 12, errors 1 (sandbox 1), cancelled 4",
        "pass@k estimate 95 % interval tasks verdicts",
        "pass@1 25.0% 6.0% to 63.5% 2 7",
        "pass@2 41.7% 8.7% to 84.3% 2 7",
        "pass@4 100.0% 20.7% to 100.0% 1 4",
        "pass@k excludes errors and cancelled rollouts (5).",
        "1 task has no verdict.",
        "Tampering in 2 rollouts: tests 2, shadow 1",
        "Suspicious code in 2 patches, 1 of them resolved: memory 2, frame access 1",
        "phase rollouts median s p90 s total s",
        "open 3 3.0 8.0 12.0",
        "agent 1 10.0 10.0 10.0",
        "task-0001-3: sandbox: it is gone, for good",
    ):
        assert line in lines


@pytest.mark.parametrize("attempts", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_long_report_is_cut_and_names_the_options(tmp_path: Path, attempts: int) -> None:
    tasks = MAX_ROWS + 50
    run = filled(
        tmp_path / "run",
        *(rollout(task, attempt, "error") for task in range(tasks) for attempt in range(attempts)),
    )
    lines = lines_of(run)
    assert len(lines) < MAX_ROWS + 20
    assert f"task-{MAX_ROWS - 1:04} {attempts} 0 {attempts} 0 2.0" in lines
    assert f"… and {tasks - MAX_ROWS:,} more tasks: --all, or --csv FILE" in lines
    assert f"{tasks * attempts:,} x sandbox, SandboxDied: it is gone, for good" in lines
    every = lines_of(run, "--all")
    assert sum(line.startswith("task-") for line in every) >= tasks * attempts
    assert not any("--all" in line for line in every)


def test_closing_summary_of_a_long_run_is_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it
    run = filled(tmp_path / "run", *(rollout(task, 0, "resolved") for task in range(2438)))
    assert show(run, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 10
    assert lines[0] == "resolved 2438 of 2438"
    assert lines[1].startswith("Nobody checked the base_commit of task-0000, task-0001, task-0002 and 2,435 ")
    assert "pass@1 100.0% (99.8% to 100.0%; n = 2,438 verdicts on 2,438 tasks)" in "".join(lines)


def test_json_report_has_every_section(run: RunDirectory) -> None:
    done = reported(run, "--json")
    assert done.exit_code == 0
    found = json.loads(done.output)
    assert (found["pass_at_k"][0]["low"], found["pass_at_k"][0]["high"]) == (0.06, 0.6352)
    assert found["tampering"] == {"rollouts": 2, "kinds": {"tests": 2, "shadow": 1}}
    assert found["suspicious"]["kinds"] == {"memory": 2, "frame access": 1}
    assert (len(found["unchecked"]), found["phases"]["open"]["p90"]) == (1, 8.0)
    assert (found["tasks"][1]["verdicts"], found["tasks"][1]["errors"]) == (3, 1)
    assert found["errors"][0]["example"] == DIED.message
    assert found["cancelled_as"] == {"stale": 4}
    (first, *_) = found["rollouts"]
    assert "fail_to_pass" not in first["grade"]
    assert first.keys() == Rollout.model_fields.keys()


def test_csv_has_a_row_per_rollout(run: RunDirectory, tmp_path: Path) -> None:
    sheet = tmp_path / "runs.csv"
    done = reported(run, "--csv", str(sheet))
    assert (done.exit_code, done.output) == (0, f"Table: {sheet}\n")
    rows = list(csv.DictReader(io.StringIO(sheet.read_bytes().decode(), newline="")))
    assert len(rows) == 12
    assert list(rows[0]) == list(COLUMNS)
    for number, known in (
        (0, {"id": "task-0000-0", "reward": "1.0", "tampering": "tests shadow", "open_seconds": "1.0"}),
        (0, {"channel": "reporter", "prepare_seconds": "", "sampled": "", "boundary": ""}),
        (2, {"suspicious": "frame access, memory"}),
        (7, {"error_type": "SandboxDied", "reward": "", "why": "sandbox: it is gone, for good"}),
        (8, {"cancelled_as": "stale"}),
    ):
        assert known.items() <= rows[number].items()


def test_unwritable_csv_is_an_error(run: RunDirectory, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "run.csv"):
        done = reported(run, "--csv", str(path))
        assert type(done.exception).__name__ == "UsageError"
        assert f"the table cannot be written to {str(path)!r}" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


USED = (
    SandboxTime(purpose="agent", flavor="cpu-basic", sandboxes=2, seconds=3600.0),
    SandboxTime(purpose="grade", flavor="cpu-upgrade", sandboxes=1, seconds=90.0),
)
LOST = (
    Retried(
        failure=DIED, folder="retried-1", turns=3, usage=Usage(prompt_tokens=2000, completion_tokens=40),
        seconds=1800.0,
    ),
    Retried(failure=DIED, folder=None, seconds=5.0),
)  # fmt: skip


def test_report_sums_sandboxes_and_retries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rollouts on billed sandboxes, one of them run again; one on another provider; one on none."""
    billed = filled(
        tmp_path / "run",
        rollout(0, 0, "resolved", sandboxes=USED, retried=LOST),
        rollout(1, 0, "unresolved", sandboxes=USED[:1]),
        rollout(2, 0, "error", sandboxes=(USED[0].model_copy(update={"flavor": None}),), sandbox="own"),
        rollout(3, 0, "cancelled"),
    )
    lines = lines_of(billed)
    for line in (
        "sandbox flavor opened total s hours",
        "own - 2 3,600.0 1.00",
        "s cpu-basic 4 7,200.0 2.00",
        "s cpu-upgrade 1 90.0 0.03",
        "Run again after the sandbox failed: 1 rollout; the 2 lost tries took 1,805.0 s and 2,000 tokens in, "
        "40 out",
        "task-0000-0: run again 2 times after the sandbox failed (it is gone, for good)",
    ):
        assert line in lines
    show(billed, as_json=False)
    assert "Run again after the sandbox failed: 1 rollout;" in " ".join(capsys.readouterr().out.split())
    found = json.loads(reported(billed, "--json").output)
    assert [tuple(one.values()) for one in found["sandboxes"]] == [
        ("own", None, 2, 3600.0), ("s", "cpu-basic", 4, 7200.0), ("s", "cpu-upgrade", 1, 90.0),
    ]  # fmt: skip
    assert tuple(found["retried"].values()) == (1, 2, 1805.0, 2000, 40)
    sheet = tmp_path / "run.csv"
    assert reported(billed, "--csv", str(sheet)).exit_code == 0
    parts = ("agent_sandbox_flavor", "agent_sandbox_seconds", "grade_sandbox_seconds")
    rows = csv.DictReader(io.StringIO(sheet.read_text()))
    assert [tuple(row[name] for name in ("retries", *parts)) for row in rows] == [
        ("2", "cpu-basic", "3600.0", "90.0"), ("0", "cpu-basic", "3600.0", ""), ("0", "", "3600.0", ""),
        ("0", "", "", ""),
    ]  # fmt: skip


def test_equal_errors_have_one_sentence_with_their_number(tmp_path: Path) -> None:
    def failed(task: int, message: str) -> Rollout:
        failure = Failure(boundary="engine", type="EngineRefused", message=message)
        return rollout(task, 0, "error", failure=failure)

    many = [failed(n, f"HTTP 401 for task-{n:04}-0 (request req-{n}a7f3e)") for n in range(12)]
    few = [failed(n, "the key is wrong") for n in range(20, 22)]
    run = filled(tmp_path / "run", *many, failed(30, "it is down"), *few, rollout(31, 0, "resolved"))
    shown = CliRunner().invoke(report, [str(run.path)], env={"COLUMNS": "200"}).output
    said = [line for line in shown.splitlines() if "engine: " in line]
    assert said == [
        "12 rollouts, such as task-0000-0: engine: HTTP 401 for task-0000-0 (request req-0a7f3e)",
        "task-0020-0, task-0021-0: engine: the key is wrong",
        "task-0030-0: engine: it is down",
    ]


def test_reward_that_is_no_verdict_is_shown_and_counted_as_none(tmp_path: Path) -> None:
    run = filled(
        tmp_path / "run",
        rollout(1, 0, "resolved", reward=0.72, unshaped_reward=1.0),
        rollout(1, 1, "unresolved", reward=1 / 3),
    )
    text = reported(run).output
    rewards = [line.split()[2] for line in text.splitlines() if line.startswith("task-0001-")]
    assert rewards == ["0.72", "0.3333"]
    assert "resolved 1 of 2" in text
    said = json.loads(reported(run, "--json").output)
    assert (said["resolved_rate"], said["pass_at_k"][0]["value"]) == (0.5, 0.5)
    assert [one["unshaped_reward"] for one in said["rollouts"]] == [1.0, 1 / 3]
