"""The two ends of the scale: the gold patch, and nothing."""

from __future__ import annotations

import pytest

from swe_core.api.agent import AgentContext, AgentExit, AgentSpec
from swe_core.api.sandbox import ExecResult, SandboxProvider
from swe_core.builtin.agents import swe_agents
from swe_core.errors import AgentError
from swe_core.sandboxing.repository.patch import export_patch, record_base
from swe_testing.records import make_task

from ...repositories import Repo


def agent(name: str) -> AgentSpec:
    component = next(c for c in swe_agents() if c.name == name)
    return component.create(component.config())


async def run_agent(provider: SandboxProvider, repo: Repo, name: str, gold: str) -> tuple[ExecResult, bytes]:
    """What the rollout loop does: the files, the command, the patch."""
    task = make_task(base_commit=repo.head, patch=gold)
    async with provider.open(repo.spec) as sandbox:
        ctx = AgentContext(task, "p", "", "", "m", sandbox.spec.workdir)
        spec = agent(name)
        base = await record_base(sandbox)
        for path, content in spec.files(ctx).items():
            await sandbox.write(path, content, mode=0o600)
        done = await sandbox.exec(spec.command(ctx), env=spec.env(ctx), stdin=spec.stdin(ctx), timeout=60)
        return done, await export_patch(sandbox, base)


async def test_oracle_applies_the_gold_patch(provider: SandboxProvider, repo: Repo) -> None:
    """Also without its last line end."""
    repo.commit(a_py="a = 1\n", b_py="b = 1\n")
    gold = repo.diff("echo 'a = 2' >a.py; rm b.py; mkdir c; echo 'trailing space ' >c/new.py")
    done, patch = await run_agent(provider, repo, "oracle", gold.rstrip("\n"))
    assert done.exit_code == 0, done.stderr
    repo.sh("git rm -q b.py; echo 'a = 2' >a.py; mkdir c; echo 'trailing space ' >c/new.py; git add -A")
    assert patch.decode() == repo.sh("git diff --cached --full-index --binary --no-renames")


async def test_oracle_reports_gold_patch_that_does_not_apply(provider: SandboxProvider, repo: Repo) -> None:
    repo.commit(a_py="a = 1\n")
    done, patch = await run_agent(provider, repo, "oracle", "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n")
    assert patch == b""
    ended = AgentExit(done.exit_code, None, done.stderr.decode())
    assert agent("oracle").failure(ended) == (
        "the agent 'oracle' exited with code 1: error: a.py: patch does not apply"
    )


async def test_oracle_rejects_task_without_gold_patch(provider: SandboxProvider, repo: Repo) -> None:
    repo.commit(a_py="a = 1\n")
    with pytest.raises(AgentError, match="the task 't-1' has no gold patch"):
        await run_agent(provider, repo, "oracle", " \n")


async def test_nop_changes_nothing(provider: SandboxProvider, repo: Repo) -> None:
    repo.commit(a_py="a = 1\n")
    done, patch = await run_agent(provider, repo, "nop", "")
    assert (done.exit_code, patch) == (0, b"")


def test_oracle_and_nop_make_no_llm_calls() -> None:
    assert {c.name: c.create(c.config()).dialect for c in swe_agents()} == {"oracle": None, "nop": None}
