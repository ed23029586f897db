"""The real Pi in a real sandbox with `network=llm`, its bundle mounted read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from swe_agents_pi.agent import PiAgent
from swe_core import AgentEvent, AgentExit, Process, Sandbox, SandboxSpec
from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.builtin.local.provider import LocalProvider

from .helpers import ScriptedLLM, calls, context

OBSTACLE = why_not(find_bwrap())
pytestmark = [
    pytest.mark.pi,
    pytest.mark.anyio,
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
]


@pytest.fixture
async def sandbox(pi_bundle: Path, tmp_path: Path) -> AsyncIterator[Sandbox]:
    (tmp_path / "repository").mkdir()
    spec = SandboxSpec(repository=tmp_path / "repository", assets=tuple(PiAgent().assets()))
    async with LocalProvider().open(spec) as opened:
        yield opened


@asynccontextmanager
async def started(agent: PiAgent, sandbox: Sandbox, llm: ScriptedLLM) -> AsyncIterator[Process]:
    """Pi at work in the sandbox, which reaches the endpoint."""
    async with sandbox.reach(llm.url.removesuffix("/v1")) as inside:
        ctx = context(f"{inside}/v1")
        for path, content in agent.files(ctx).items():
            await sandbox.write(path, content, mode=0o600)
        with anyio.fail_after(120):
            yield await sandbox.start(agent.command(ctx), env=agent.env(ctx), stdin=agent.stdin(ctx))


async def events_of(agent: PiAgent, process: Process) -> list[AgentEvent]:
    output = b"".join([chunk async for stream, chunk in process.output() if stream == "stdout"])
    return [event for line in output.decode().splitlines() for event in agent.parse_event(line)]


async def test_pi_works_in_a_sandbox_that_reaches_nothing_but_its_endpoint(
    llm: ScriptedLLM, sandbox: Sandbox
) -> None:
    llm.replies = [
        calls("write", '{"path": "made.txt", "content": "made"}'),
        calls("bash", '{"command": "touch /opt/swe/pi/answer.mjs /opt/swe/pi/bin/new; pwd"}'),
        calls("answer", '{"text": "done"}'),
    ]
    agent = PiAgent()
    async with started(agent, sandbox, llm) as process:
        events = await events_of(agent, process)
        assert agent.failure(AgentExit(await process.wait(), None, "")) is None
    assert not [event for event in events if event.kind == "error"]
    assert await sandbox.read("/testbed/made.txt") == b"made"
    shown = next(event.text for event in events if event.kind == "tool_result" and event.tool == "bash")
    assert shown.count("Read-only file system") == 2
    assert "/testbed" in shown


@pytest.mark.slow
async def test_killed_pi_leaves_nothing_running(llm: ScriptedLLM, sandbox: Sandbox) -> None:
    """A child of Pi's bash outlives Pi's own SIGKILL, so the sandbox's kill must end the whole tree."""
    llm.replies = [calls("bash", '{"command": "sleep 1000 >/dev/null 2>&1 & echo $!"}'), None]
    agent = PiAgent()
    async with started(agent, sandbox, llm) as process:
        await llm.hanging.wait()
        await process.kill()
        events = await events_of(agent, process)
        code = await process.wait()
    assert agent.failure(AgentExit(code, None, "")) is not None
    assert code == 137
    (child,) = (event.text.strip() for event in events if event.kind == "tool_result")
    assert child.isdecimal()
    assert (await sandbox.exec(["sh", "-c", f"kill -0 {child}"])).exit_code != 0
