"""The real Pi in a real sandbox with `network=llm`, its bundle mounted read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_agents_pi.agent import PiAgent
from swe_core import AgentExit, Sandbox, SandboxSpec
from swe_core.builtin.local.provider import LocalProvider

from .helpers import ScriptedLLM, calls, context

pytestmark = [pytest.mark.pi, pytest.mark.usefixtures("local_sandbox")]


@pytest.fixture
async def sandbox(pi_bundle: Path, tmp_path: Path) -> AsyncIterator[Sandbox]:
    (tmp_path / "repository").mkdir()
    spec = SandboxSpec(repository=tmp_path / "repository", assets=tuple(PiAgent().assets()))
    async with LocalProvider().open(spec) as opened:
        yield opened


@pytest.mark.slow
async def test_pi_works_in_a_sandbox_that_reaches_its_endpoint(llm: ScriptedLLM, sandbox: Sandbox) -> None:
    llm.replies = [
        calls("write", '{"path": "made.txt", "content": "made"}'),
        calls("bash", '{"command": "touch /opt/swe/pi/answer.mjs /opt/swe/pi/bin/new; pwd"}'),
        calls("answer", '{"text": "done"}'),
    ]
    agent = PiAgent()
    async with sandbox.reach(llm.url.removesuffix("/v1")) as inside:
        ctx = context(f"{inside}/v1")
        for path, content in agent.files(ctx).items():
            await sandbox.write(path, content, mode=0o600)
        argv = agent.command(ctx)
        done = await sandbox.exec(argv, env=agent.env(ctx), stdin=agent.stdin(ctx), timeout=120)
    assert agent.failure(AgentExit(done.exit_code, None, "")) is None
    events = [event for line in done.text.splitlines() for event in agent.parse_event(line)]
    assert not [event for event in events if event.kind == "error"]
    assert await sandbox.read("/testbed/made.txt") == b"made"
    shown = next(event.text for event in events if event.kind == "tool_result" and event.tool == "bash")
    assert shown.count("Read-only file system") == 2
    assert "/testbed" in shown
