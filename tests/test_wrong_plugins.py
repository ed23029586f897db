"""Plugins with the mistakes of beginners: one sentence that names the mistake and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Command, SweCore

HEAD = "from swe_core import *\n"
AGENT = (
    HEAD
    + """
class Mine(AgentSpec):
    name = "mine"
    dialect = None
    def command(self, ctx): return {command}

@hookimpl
def swe_agents(): return [Component("mine", {create})]
"""
)
SANDBOX = (
    HEAD
    + """
class Mine:
    async def open(self, spec): yield "a sandbox"
    def notes(self): return []
    async def list(self): return []
    async def reap(self): return 0

@hookimpl
def swe_sandboxes(): return [Component("mine", lambda config: Mine())]
"""
)
UNISOLATED = ("--set", "sandbox.local.unisolated=true", "--task", "demo__memofn-1")


@pytest.mark.parametrize(
    ("code", "boundary", "says"),
    [
        (AGENT.format(command="'pi --help'", create="lambda config: Mine()"), "agent",
         "the agent 'mine' (mine.Mine) returned 'pi --help' from command(), expected a list of texts such as "
         "['my-agent', '--print']"),
        (SANDBOX, "sandbox",
         "the sandbox provider mine.Mine returned an async generator from open(), expected an async context "
         "manager: write @asynccontextmanager above 'async def open'"),
    ],
    ids=["command", "sandbox"],
)  # fmt: skip
def test_wrong_value_is_told(swe_core: SweCore, tmp_path: Path, code: str, boundary: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    agent = () if "class Mine(AgentSpec)" in code else ("--agent", "oracle")
    done = swe_core("-p", str(tmp_path / "mine.py"), *UNISOLATED, *agent)
    assert done.code == 1, done.stderr
    assert done.only["failure"]["boundary"] == boundary
    assert says in done.only["failure"]["message"]
    assert says in " ".join(done.stdout.split())  # pytest-xdist sets COLUMNS, so the table may be wrapped


FAILING = AGENT.format(command=["false"], create="lambda config: Mine()")


def test_hopeless_run_is_stopped_and_resumes(swe_core: SweCore, command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAILING)
    options = ("-p", str(tmp_path / "mine.py"), "--set", "sandbox.local.unisolated=true", "--max-errors", "3")
    done = swe_core(*options, "--concurrency", "2")
    assert done.code == 1, done.stderr
    outcomes = [rollout["outcome"] for rollout in done.rollouts]
    assert 3 <= outcomes.count("error") <= 4
    assert len(outcomes) < 6
    last = done.stderr.splitlines()[-1]
    assert last.startswith("swe-core: error: the run was stopped, because ")
    assert "tasks ended in the same error" in last
    assert "(agent: the agent 'mine' exited with code 1); correct the cause and continue with " in last
    assert f"`swe-core run --resume {done.out} --retry-errors`" in last
    assert done.stderr.count("the agent 'mine' exited with code 1") == 2, "first, and at the end"
    (tmp_path / "mine.py").write_text(FAILING.replace("false", "true"))
    again = command("run", "--resume", str(done.out), "--retry-errors", "--max-errors", "0")
    assert again.code == 0, again.stderr
    assert "resolved 0 of 6" in again.stdout
