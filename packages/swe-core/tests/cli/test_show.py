"""`swe-core show`: one rollout in the terminal, whatever came out of its sandbox."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swe_core.api.agent import AgentEvent
from swe_core.api.engine import Usage
from swe_core.api.grader import Grade, Suspicion, Tampering
from swe_core.api.records import Failure, Phases, Retried, SandboxTime
from swe_core.cli.show import show
from swe_core.errors import UsageError
from swe_testing.records import make_rollout, make_run, make_turn
from swe_testing.terminal import pseudo_terminal

ATTACK = "\x1b]52;c;c3RvbGVu\x07\x1b[2J\x9b1;1H\x1b]0;owned\x07"
"""Sets the clipboard, clears the screen, moves the cursor, sets the title."""
PATCH = f"""diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1 +1 @@
-old
+new{ATTACK}
""".encode()
ID = "task-1-0"
DIED = Failure(boundary="sandbox", type="SandboxDied", message="it is gone")


class Run:
    def __init__(self, path: Path) -> None:
        self.directory = make_run(path)

    def rollout(self, name: str = ID, finished: bool = True, **fields: Any) -> None:
        folder = self.directory.folder(name)
        for event in fields.pop("events", ()):
            folder.add_event(event)
        for turn in fields.pop("turns_on_disk", ()):
            folder.add_turn(turn)
        if patch := fields.pop("patch", b""):
            folder.put_patch(patch)
        folder.close()
        if finished:
            self.directory.append(make_rollout(name[:-2], **{"id": name, "seconds": 3.0, **fields}))

    def show(self, name: str | None = ID, *options: str) -> str:
        named = [] if name is None else [name]
        done = CliRunner().invoke(show, [str(self.directory.path), *named, *options])
        if done.exception is not None:
            raise done.exception
        assert done.exit_code == 0
        return done.output


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "run")
    run.rollout(
        events=[
            AgentEvent(kind="reasoning", text="I wonder."),
            AgentEvent(kind="text", text=f"I look.{ATTACK}"),
            AgentEvent(kind="tool_call", text="ls", tool=f"bash{ATTACK}"),
            AgentEvent(kind="tool_result", text="\n".join(f"line {n}" for n in range(100)), tool="bash"),
            AgentEvent(kind="error", text="it broke", fatal=True),
        ],
        turns_on_disk=[
            make_turn(
                0, seconds=1.5, messages=[{}, {}], reply={}, finish_reason="stop",
                usage=Usage(prompt_tokens=1234, completion_tokens=56),
            ),
            make_turn(1, seconds=0.5, kept=2, messages=[{}], error=f"the provider{ATTACK} says no"),
        ],
        patch=PATCH,
        outcome="unresolved",
        reward=0.0,
        phases=Phases(open=1.0, agent=2.0),
        sandboxes=[SandboxTime(purpose="agent", flavor="small", sandboxes=2, seconds=2.0)],
        retried=[Retried(failure=DIED, folder="retried-1", seconds=1.0)],
        grade=Grade(
            resolved=False, reason=f"1 test fails{ATTACK}", fail_to_pass={f"t.py::a[{ATTACK}]": "FAILED"},
            pass_to_pass={"t.py::b": "PASSED", "t.py::c": "PASSED", "t.py::d": "SKIPPED"},
            test_exit_code=1, test_seconds=4.0, channel="reporter",
            tampering=(Tampering(kind="runner-config", path=f"conf{ATTACK}test.py", done="put back"),),
            suspicious=(Suspicion(kind="memory", name="ctypes", path=f"a{ATTACK}.py", line=7),),
        ),
    )  # fmt: skip
    return run


def test_show_prints_every_part_without_terminal_controls(run: Run) -> None:
    text = run.show()
    for said in (
        "task-1-0: unresolved, reward 0\n",
        "1 test fails\n",
        "Sandboxes open: 2.0 s agent on small\n",
        "its files are in retried-1: it is gone\n",
        "3.0 s: open 1.0 s, agent 2.0 s\n",
        "Tampering, runner-config conftest.py: put back\n",
        "Suspicious, memory: ctypes at a.py:7\n",
        "thinks:\n  I wonder.\n",
        "says:\n  I look.\n",
        "calls bash:\n  ls\n",
        "gets bash:\n  line 0\n",
        "  line 29\n  … 70 more lines: --full\n",
        "error (fatal):\n  it broke\n",
        "-old\n+new\n",
        "fail to pass: 1 FAILED\n  FAILED  t.py::a[]\n",
        "pass to pass: 2 PASSED, 1 SKIPPED\n  SKIPPED t.py::d\n",
        "From the reporter, exit code 1, 4.0 s\n",
    ):
        assert said in text
    assert "turn  seconds" not in text
    assert "t.py::b" not in text
    for options in ((), ("--turns",), ("--full",)):
        text = run.show(ID, *options)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
        assert "c3RvbGVu" not in text


def test_show_without_a_rollout_lists_them_in_natural_order(run: Run) -> None:
    run.rollout("task-10-0", outcome="error", reward=None, failure=DIED)
    run.rollout("task-2-0", turns=1, patch_bytes=7)
    run.rollout("task-3-0", finished=False)
    head, *rows, last, command = run.show(None).splitlines()
    assert head.split() == ["rollout", "outcome", "turns", "patch", "seconds", "why"]
    assert [row.split()[:2] for row in rows] == [
        ["task-1-0", "unresolved"],
        ["task-2-0", "resolved"],
        ["task-10-0", "error"],
        ["task-3-0", "not"],
    ]
    assert rows[0].endswith("1 test fails")
    assert rows[2].rstrip().endswith("sandbox: it is gone")
    assert last == "Next:"
    assert command == f"  one of them:  swe-core show {run.directory.path} task-1-0"


def test_show_of_an_empty_run_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    assert run.show(None) == f"The run {str(run.directory.path)!r} has no rollout: none has started.\n"
    with pytest.raises(UsageError, match="has no rollout 'a'; none has started"):
        run.show("a")


LOG = b"""====== FAILURES ======
___ test_a[x] ___

>       assert f(1) == 2\x1b[2J
E       assert 1 == 2
E        +  where 1 = f(1)
E         3
E         4
E         5
E         6
E         7
E         8

tests/t.py:12: AssertionError
====== short test summary info ======
FAILED tests/t.py::test_a[x] - assert 1 == 2
"""


def test_show_tests_has_the_failing_assertion(run: Run) -> None:
    failing = {"tests/t.py::test_a[x]": "FAILED", "tests/t.py::b": "MISSING"}
    grade = Grade(resolved=False, fail_to_pass=failing)
    run.rollout("failed-0", outcome="unresolved", reward=0.0, grade=grade)
    (run.directory.path / "rollouts" / "failed-0" / "test.log").write_bytes(LOG)
    text = run.show("failed-0", "--tests")
    assert text.splitlines()[2:7] == [
        "  FAILED  tests/t.py::test_a[x]",
        "          tests/t.py:12",
        "          >       assert f(1) == 2",
        "          E       assert 1 == 2",
        "          E        +  where 1 = f(1)",
    ]
    assert "          … 1 more line: --full\n  MISSING tests/t.py::b\n" in text
    assert "E         8" in run.show("failed-0", "--tests", "--full")


def test_show_prints_the_parts_that_are_asked_for_and_cuts_none_with_full(run: Run) -> None:
    parts = ("I look.", "+new", "t.py::d", "1,234", "task-1-0: unresolved")
    for options, has in (
        (("--transcript",), ["I look."]),
        (("--diff", "--turns"), ["+new", "1,234"]),
        (("--tests",), ["t.py::d"]),
    ):
        text = run.show(ID, *options)
        assert [part for part in parts if part in text] == has
    text = run.show(ID, "--turns")
    assert re.search(r"0 +1\.5 +1,234 +56 +2 +stop", text)
    assert re.search(r"1 +0\.5 +0 +0 +1 +the provider says no", text)
    text = run.show(ID, "--full")
    assert "line 99" in text
    assert "PASSED  t.py::b" in text
    assert "more lines" not in text


def test_show_prints_an_error_without_files_and_an_unfinished_rollout(run: Run) -> None:
    run.rollout("dead-0", outcome="error", reward=None, failure=DIED)
    text = run.show("dead-0")
    for said in ("dead-0: error\n", "sandbox: it is gone", "The agent has none.", "There is no patch.",
                 "There is no grade."):  # fmt: skip
        assert said in text
    assert "The host answered no LLM call." in run.show("dead-0", "--turns")
    run.rollout("going-0", finished=False, events=[AgentEvent(kind="text", text="Hello.")])
    text = run.show("going-0")
    assert "going-0: not finished" in text
    assert "Hello." in text


def test_show_prints_a_binary_patch_and_wraps_no_long_line(run: Run) -> None:
    run.rollout("odd-0", patch=b"diff --git a/a b/a\r\n+\xff\x00\x1b[31m\r\n" + b"+x\n" * 3000)
    text = run.show("odd-0", "--diff")
    assert "+\ufffd\n" in text
    assert "… 2,002 more lines: --full" in text
    assert text.count("\n+x") == 998
    run.rollout("wide-0", patch=b"+" + b"y" * 500 + b"\n")
    assert f"\n+{'y' * 500}\n" in run.show("wide-0", "--diff")


def test_show_suggests_close_rollouts_and_names_damaged_line(run: Run) -> None:
    for number in range(6):
        run.rollout(f"other-{number}")
    for name, hint in (
        ("task-1", "did you mean 'task-1-0'?"),
        ("../..", "there are: other-0, other-1, other-2, other-3, other-4, … (7 in all)"),
    ):
        with pytest.raises(UsageError, match=re.escape(f"has no rollout {name!r}; {hint}")):
            run.show(name)
    with pytest.raises(UsageError, match=r"--tests needs a rollout: `swe-core show .*` lists them"):
        run.show(None, "--tests")
    file = run.directory.path / "rollouts" / ID / "transcript.jsonl"
    file.write_text("{}\n" + file.read_text())
    with pytest.raises(UsageError, match=r"line 1 of .*transcript.jsonl' is not an agent's event"):
        run.show()


@pytest.mark.slow
def test_show_uses_colours_and_pager_on_a_terminal_but_not_with_no_color(run: Run) -> None:
    command = [str(Path(sys.executable).parent / "swe-core"), "show", str(run.directory.path), ID]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "PAGER": "sed s/^/paged:/"}
    env.pop("NO_COLOR", None)

    def on_a_terminal(**environment: str) -> str:
        with pseudo_terminal() as (terminal, shown):
            ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
            subprocess.run(command, **ends, env={**env, **environment}, check=True, timeout=180)
        return shown.decode()

    text = on_a_terminal()
    assert "paged:" in text
    removed, added = (re.search(rf"((?:\x1b\[[0-9;]*m)+){line}", text) for line in (r"-old", r"\+new"))
    assert removed
    assert added
    assert removed[1] != added[1]
    left = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours, which are ours
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", left)
    assert "c3RvbGVu" not in left
    text = on_a_terminal(NO_COLOR="1")
    assert "+new" in text
    assert not re.search(r"\x1b\[3\d", text)
