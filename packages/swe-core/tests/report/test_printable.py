"""Text of tasks, agents, repositories and models is harmless on terminals, in browsers and spreadsheets."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from click import Command
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table
from rich.text import Text

from swe_core.api.agent import AgentEvent
from swe_core.api.grader import Grade, Suspicion, Tampering
from swe_core.api.records import Failure, Retried, Rollout, SandboxTime
from swe_core.cli.report import report
from swe_core.cli.show import show
from swe_core.hub.card import card
from swe_core.hub.pushed_run import PushedRun
from swe_core.report.summary import table
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor
from swe_core.system.safe_console import SafeConsole
from swe_core.view.summary_page import page
from swe_testing.records import make_rollout, make_turn

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\x07\x08\x7f\x00\r"
UNSEEN = "\u202e\u2066\u2028\u2029\u200b\u2060\ufeff\U000e0041"
NASTY = f"=1+1{ESCAPES}{UNSEEN}[red]<b>"


def rollout(attempt: int, outcome: str) -> Rollout:
    """A rollout with hostile text in every field."""
    failed = Failure(boundary="agent", type=NASTY, message=NASTY)
    grade = Grade(
        resolved=False, fail_to_pass={NASTY: "FAILED"}, test_exit_code=-9, channel="reporter", reason=NASTY,
        tampering=(Tampering(kind="symlink", path=NASTY, done=NASTY),), unchecked=NASTY,
        suspicious=(Suspicion(kind="frames", name=NASTY, path=NASTY, line=3),),
    )  # fmt: skip
    fields: dict[str, Any] = dict.fromkeys(("agent", "sandbox", "engine", "model"), NASTY)
    fields |= {"failure": failed} if outcome == "error" else {"grade": grade}
    fields["sandboxes"] = (SandboxTime(purpose="agent", flavor=NASTY, sandboxes=1, seconds=1.0),)
    fields["retried"] = (Retried(failure=failed, folder="retried-1", seconds=1.0),)
    task = NASTY.replace("\0", "")  # an id is a part of a path
    return make_rollout(task, attempt, outcome, id=f"r-{attempt}", agent_exit_code=-9, **fields)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    info = new_run_info({NASTY: NASTY}, {"a": NASTY}, 4, [NASTY], {NASTY: NASTY})
    run = RunDirectory.create(tmp_path / "run", info, Redactor())
    for attempt, outcome in enumerate(("unresolved", "error")):
        folder = run.folder(f"r-{attempt}")
        folder.add_turn(make_turn(0, error=NASTY))
        folder.add_event(AgentEvent(kind="tool_call", text=NASTY, tool=NASTY))
        folder.put_patch(NASTY.encode())
        folder.close()
        run.append(rollout(attempt, outcome))
    return run


def assert_harmless(text: str, of_the_format: str = "\n") -> None:
    controls = {char for char in text if unicodedata.category(char) == "Cc"}
    assert controls <= set(of_the_format)
    assert not set(UNSEEN) & set(text)


def test_csv_is_harmless(run: RunDirectory) -> None:
    text = table(run.rollouts())
    assert_harmless(text, "\r\n")
    for row in csv.DictReader(io.StringIO(text, newline="")):
        assert row["agent_exit_code"] == "-9"
        assert row["model"].startswith("'=1+1 <U+202E>")
        for cell in row.values():
            assert re.fullmatch(r"-?[\d.]+|(?![=+\-@\t\r]).*", cell)


def test_csv_formulas_become_text() -> None:
    signs = [f"{sign}cmd|' /C calc'!A0" for sign in "=+-@＝＋－＠"]
    cells = dict.fromkeys(("\t=1+1", "\r\n =1+1", "\x1b[1m=1+1"), "'=1+1")
    cells |= {"a=b, -1 and @me": "a=b, -1 and @me", **{one: f"'{one}" for one in signs}}
    rows = csv.DictReader(io.StringIO(table([make_rollout("t", model=one) for one in cells]), newline=""))
    assert [row["model"] for row in rows] == list(cells.values())


def test_page_is_harmless(run: RunDirectory) -> None:
    (run.path / "metrics.jsonl").write_text(
        '{"time": "2026-01-01T00:00:00Z", "step": 1, "values": {"loss/\\u001b[2J\\u0008\\u202e": 1.0}}\n'
    )
    shown = page(run, None)
    assert "=1+1\n&lt;U+202E&gt;" in shown
    assert "loss" in shown
    assert_harmless(shown)


@pytest.mark.parametrize(("command", "options"), [(report, ""), (report, "--all"), (show, "r-0 --full")])
def test_terminal_is_harmless(run: RunDirectory, command: Command, options: str) -> None:
    done = CliRunner().invoke(command, [str(run.path), *options.split()], catch_exceptions=False)
    assert "=1+1 <U+202E>" in done.stdout
    assert_harmless(done.stdout)


def test_console_keeps_its_own_colours() -> None:
    shown = Table("a", box=None)
    shown.add_row(Text(NASTY, style="red"))
    said = {}
    for kind in (Console, SafeConsole):
        file = io.StringIO()
        kind(file=file, width=80, force_terminal=True, color_system="standard").print(shown)
        said[kind] = file.getvalue()
    assert "\x1b[2J" in said[Console], "there is something to be safe from"
    assert "\x1b[31m" in said[SafeConsole]
    assert_harmless(re.sub(r"\x1b\[[\d;]*m", "", said[SafeConsole]))


def test_card_is_harmless(run: RunDirectory) -> None:
    named = dict.fromkeys(("models", "agents", "sandboxes"), (NASTY,))
    pushed = PushedRun.of(run).model_copy(update={"tasks": NASTY, **named})
    text = card("me/rows", [pushed], None)
    assert text is not None
    assert "=1+1" in text
    assert_harmless(text)
