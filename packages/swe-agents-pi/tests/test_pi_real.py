"""The real Pi against a scripted endpoint on loopback: what it does, prints, and how its end is read."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from swe_agents_pi.agent import PiAgent
from swe_agents_pi.config import PiConfig
from swe_core import AgentContext, AgentEvent, AgentExit
from swe_core.rollout.agent_output import AgentOutput
from swe_core.rollout.run_directory import RolloutFolder
from swe_core.system.redaction import Redactor

from .helpers import TASK, TOKEN, Reply, ScriptedLLM, calls, fails, says

pytestmark = pytest.mark.pi
slow = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class HostContext(AgentContext):
    """A context for a run on the bare host, where the bundle lies where it was built."""

    bundle: Path = Path()

    def asset(self, name: str) -> str:
        return str(self.bundle)


@dataclass(frozen=True)
class Ended:
    """One finished run of the real Pi."""

    exit: AgentExit
    failure: str | None
    events: list[AgentEvent]
    output: str

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


QUICK = PiConfig(settings={"retry": {"baseDelayMs": 10}})
Interfere = Callable[[int], Awaitable[None]]
"""Called with Pi's pid when it was started."""


@dataclass
class RunPi:
    """Runs Pi as the rollout loop does, only that the sandbox is a temporary directory."""

    llm: ScriptedLLM
    bundle: Path
    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def workdir(self) -> Path:
        return self.root / "work"

    async def __call__(
        self,
        *replies: Reply | None,
        config: PiConfig = QUICK,
        prompt: str = "Fix it.",
        model: str = "policy",
        interfere: Interfere | None = None,
    ) -> Ended:
        self.llm.replies[:] = replies
        agent = PiAgent(config)
        self.workdir.mkdir(exist_ok=True)
        rest = {"home": str(self.root / "home"), "bundle": self.bundle}
        ctx = HostContext(TASK, prompt, self.llm.url, TOKEN, model, str(self.workdir), **rest)
        for path, content in agent.files(ctx).items():
            await anyio.Path(path).parent.mkdir(parents=True, exist_ok=True)
            await anyio.Path(path).write_bytes(content)
        folder = RolloutFolder(self.root / "record", Redactor())
        output = AgentOutput(agent, folder)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root), **self.env, **agent.env(ctx)}
        async with await anyio.open_process(agent.command(ctx), cwd=ctx.workdir, env=env) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                with anyio.fail_after(120):
                    await process.stdin.send(agent.stdin(ctx))
                    await process.stdin.aclose()
                    if interfere is not None:
                        await interfere(process.pid)
                    async for chunk in process.stdout:
                        output.feed("stdout", chunk)
                    async for chunk in process.stderr:
                        output.feed("stderr", chunk)
                    code = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
        output.close()
        folder.close()
        ended = AgentExit(128 - code if code < 0 else code, output.last_error, output.stderr_tail)
        lines = (folder.path / "transcript.jsonl").read_text().splitlines()
        events = [AgentEvent.model_validate_json(line) for line in lines]
        log = (folder.path / "agent.log").read_text(errors="replace")
        return Ended(ended, agent.failure(ended), events, log)


@pytest.fixture
def run_pi(llm: ScriptedLLM, pi_bundle: Path, tmp_path: Path) -> RunPi:
    return RunPi(llm, pi_bundle, tmp_path)


def message(body: Mapping[str, Any], role: str) -> str:
    """The text of the last message of `role` in a request."""
    content = [item["content"] for item in body["messages"] if item["role"] == role][-1]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def test_works_with_bash_and_ends_by_answer(run_pi: RunPi, llm: ScriptedLLM) -> None:
    thinks = [{"role": "assistant", "reasoning_content": "Let me think."}, {"content": "I write a file."}]
    call = calls("bash", '{"command": "echo done | tee made.txt"}').deltas[1:]
    first = Reply([*thinks, *call], finish="tool_calls")
    ended = await run_pi(first, calls("answer", '{"text": "Wrote made.txt."}'))
    assert ended.failure is None
    assert ended.exit.exit_code == 0
    assert (run_pi.workdir / "made.txt").read_text() == "done\n"
    assert len(llm.bodies) == 2, "the answer ends the agent without one more call"
    assert [(event.kind, event.tool, event.text) for event in ended.events] == [
        ("reasoning", None, "Let me think."),
        ("text", None, "I write a file."),
        ("tool_call", "bash", '{"command": "echo done | tee made.txt"}'),
        ("tool_result", "bash", "done\n"),
        ("tool_call", "answer", '{"text": "Wrote made.txt."}'),
        ("tool_result", "answer", "Submitted."),
    ]


@slow
async def test_prompt_and_settings_arrive_at_the_endpoint(run_pi: RunPi, llm: ScriptedLLM) -> None:
    """And it ends by a reply that is plain text."""
    prompt = "@/etc/passwd --help\n/model x\n!ls `id` $(id) ünïcödé 🐍\n" + "long " * 60_000 + "end"
    config = PiConfig(max_tokens=123)
    ended = await run_pi(says("Nothing to do."), model="org/Model-8B:high", config=config, prompt=prompt)
    assert ended.failure is None
    assert ended.texts("text") == ["Nothing to do."]
    (body,) = llm.bodies
    assert llm.keys == [f"Bearer {TOKEN}"]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("org/Model-8B:high", 123, True)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["read", "bash", "edit", "write", "answer"]
    assert body["messages"][0]["role"] == "system"
    assert message(body, "user") == prompt
    assert not body.keys() & {"max_completion_tokens", "store", "reasoning_effort"}


@slow
async def test_nothing_that_a_repository_has_for_agents_is_loaded(run_pi: RunPi, llm: ScriptedLLM) -> None:
    work, skill = run_pi.workdir, "---\nname: s\ndescription: OBEY-THE-REPOSITORY\n---\n"
    names = ("AGENTS.md", "CLAUDE.md", ".pi/SYSTEM.md", ".pi/APPEND_SYSTEM.md")
    for name, content in {
        **dict.fromkeys(names, "OBEY-THE-REPOSITORY"),
        **dict.fromkeys((".pi/skills/s/SKILL.md", ".agents/skills/s/SKILL.md"), skill),
        ".pi/settings.json": '{"retry": {"enabled": false}}',
        ".pi/extensions/e.mjs": "import fs from 'node:fs'; export default () => fs.writeFileSync('ran', '')",
        ".mcp.json": '{"mcpServers": {"m": {"command": "touch", "args": ["ran"]}}}',
    }.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(content)
    ended = await run_pi(fails(500), says("ok"))
    assert ended.failure is None, "the repository's settings would have turned the retry off"
    assert "OBEY-THE-REPOSITORY" not in json.dumps(llm.bodies)
    assert not (work / "ran").exists()


@slow
async def test_token_is_in_no_file_and_no_output_and_children_inherit_no_endpoint(run_pi: RunPi) -> None:
    """Nor is a proxy asked that is in the environment of the image."""
    proxy = "http://127.0.0.1:1"
    run_pi.env = {"HTTP_PROXY": proxy, "http_proxy": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": "example.org"}
    ended = await run_pi(calls("bash", '{"command": "env | grep -v ^SWE_LLM_TOKEN"}'), says("ok"))
    assert (ended.failure, ended.texts("text")) == (None, ["ok"])
    files = [path for path in run_pi.root.rglob("*") if path.is_file()]
    assert any(path.name == "models.json" for path in files)
    assert [path for path in files if TOKEN in path.read_text(errors="replace")] == []
    assert TOKEN not in ended.output
    (shown,) = ended.texts("tool_result")
    assert "PATH=" in shown
    assert run_pi.llm.url not in shown
    assert "OPENAI" not in shown


NOTHING = Reply([{"role": "assistant", "content": ""}])
SAID = '500: {"message":"said the test"}'
AGAIN = [("error", SAID), ("info", f"retry 1 of 1: {SAID}"), ("text", "ok"), ("info", "the retry succeeded")]
CUT = [("info", "the reply was cut off at its token limit")]


@slow
@pytest.mark.parametrize(
    ("replies", "events"),
    [
        ([NOTHING], [("text", "")]),
        ([fails(500), NOTHING], None),
        ([says("I was about to", finish="length")], [("text", "I was about to"), *CUT]),
        ([says("", finish="length")], [("text", ""), *CUT]),
        ([fails(500), says("ok")], AGAIN),
    ],
    ids=("empty", "empty after a retry", "cut", "cut at once", "repaired"),
)
async def test_end_without_fault(run_pi: RunPi, replies: list[Reply], events: Any) -> None:
    ended = await run_pi(*replies)
    assert (ended.failure, ended.exit.last_error) == (None, None)
    assert not any(event.fatal for event in ended.events)
    assert events is None or sorted((event.kind, event.text) for event in ended.events) == sorted(events)


@slow
async def test_errors_of_a_call_are_reported_to_the_model(run_pi: RunPi, llm: ScriptedLLM) -> None:
    """Malformed arguments, a tool that is none, a command that fails, an answer without its text."""
    ended = await run_pi(
        calls("bash", '{"command": echo'),
        calls("browse", "{}"),
        calls("bash", '{"command": "exit 3"}'),
        calls("answer", "{}"),
        calls("answer", '{"text": "now"}'),
    )
    assert ended.failure is None
    assert len(llm.bodies) == 5
    assert "Invalid arguments" in message(llm.bodies[1], "tool")
    assert '{"command": echo' in ended.texts("tool_call")[0], "the transcript shows what was sampled"
    assert "not found" in message(llm.bodies[2], "tool")
    results = [event for event in ended.events if event.kind == "tool_result"]
    assert [event.tool for event in results] == ["bash", "browse", "bash", "answer", "answer"]
    assert "exited with code 3" in results[2].text


HTML = Reply(body="<html>Welcome</html>", content_type="text/html")
OVERFLOW = "maximum context length is 10 tokens (context_length_exceeded)"
FAILURES: list[tuple[list[Reply], int, str]] = [
    ([fails(500)] * 2, 2, "500.*said the test"),
    ([HTML] * 2, 2, "Stream ended without finish_reason"),
    ([says("half", breaks=True)] * 2, 2, "terminated"),
    ([fails(400, OVERFLOW)], 1, "maximum context length"),
    ([says("x", finish="content_filter")], 1, "content_filter"),
    ([calls("bash", '{"command": "true"}'), fails(401)], 2, "401"),
]


@slow
@pytest.mark.parametrize(("replies", "attempts", "says_why"), FAILURES)
async def test_failed_llm_call_is_a_failure_with_pis_own_words(
    run_pi: RunPi, llm: ScriptedLLM, replies: list[Reply], attempts: int, says_why: str
) -> None:
    ended = await run_pi(*replies)
    assert ended.exit.exit_code == 0
    assert len(llm.bodies) == attempts
    assert ended.failure is not None
    assert ended.failure.startswith("Pi ended with an error: ")
    assert re.search(says_why, ended.failure)
    assert ended.exit.last_error is not None
    assert ended.exit.last_error.fatal


@slow
@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1/v1"], ids=("no retries", "nobody listens"))
async def test_call_that_is_not_answered_once_is_a_failure(run_pi: RunPi, llm: ScriptedLLM, url: str) -> None:
    llm.url = url or llm.url
    ended = await run_pi(fails(500), config=PiConfig(retries=0))
    assert len(llm.bodies) == (not url)
    assert re.search("onnection" if url else "500", str(ended.failure))


@slow
async def test_killed_in_the_middle(run_pi: RunPi, llm: ScriptedLLM) -> None:
    async def kill(pid: int) -> None:
        await llm.hanging.wait()
        os.kill(pid, signal.SIGKILL)

    ended = await run_pi(calls("bash", '{"command": "true"}'), None, interfere=kill)
    assert ended.exit.exit_code == 137
    assert [event.kind for event in ended.events] == ["tool_call", "tool_result"]
    assert ended.failure is not None
    assert ended.failure.startswith("Pi was killed by SIGKILL")


@slow
async def test_compaction_can_be_asked_for(run_pi: RunPi, llm: ScriptedLLM) -> None:
    talk = [calls("bash", json.dumps({"command": f"seq {n} 4000"})) for n in range(4)]
    compaction = {"enabled": True, "reserveTokens": 2000, "keepRecentTokens": 2000}
    small = PiConfig(context_window=12_000, max_tokens=1000, settings={"compaction": compaction})
    ended = await run_pi(*talk, *[says("a summary")] * 4, config=small)
    assert any("compaction started" in text for text in ended.texts("info"))
    assert any(body["messages"][0] != llm.bodies[0]["messages"][0] for body in llm.bodies)
