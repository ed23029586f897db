"""The agent "mini", run as the program it is, against a provider that speaks real HTTP."""

from __future__ import annotations

import ast
import importlib.resources
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_core.api.agent import AgentContext, AgentEvent, AgentExit
from swe_core.builtin.mini import MiniConfig, swe_agents
from swe_core.builtin.mini.spec import Mini
from swe_core.rollout.recording import RecordedReply
from swe_testing.provider import ScriptedProvider, call_tool, say
from swe_testing.records import make_task
from swe_testing.waiting import until


class Ran:
    """The end of one run."""

    def __init__(self, agent: Mini, done: subprocess.CompletedProcess[bytes]) -> None:
        self.exit_code = done.returncode
        lines = done.stdout.decode().splitlines()
        self.events = [event for line in lines for event in agent.parse_event(line)]
        self.stderr = done.stderr.decode()
        assert len(self.events) == len(lines)
        last = self.events[-1] if self.events else None
        error = last if last is not None and last.kind == "error" else None
        self.failure = agent.failure(AgentExit(self.exit_code, error, self.stderr))

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


async def run_mini(tmp_path: Path, url: str, prompt: str = "fix it", **config: Any) -> Ran:
    """Run it as the rollout loop would, but on the host."""
    workdir, home = tmp_path / "work", tmp_path / "home"
    workdir.mkdir()
    home.mkdir()
    agent = Mini(MiniConfig(**config))
    ctx = AgentContext(make_task(), prompt, url, "the-token", "the-model", str(workdir), str(home))
    for path, content in agent.files(ctx).items():
        await anyio.Path(path).write_bytes(content)
    old = tmp_path / "old" / "python3"  # the project's, first on PATH
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho SyntaxError >&2; exit 1\n")
    old.chmod(0o755)
    path = f"{old.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "http_proxy": "http://127.0.0.1:1", **agent.env(ctx)}
    with anyio.fail_after(180):
        done = await anyio.run_process(
            agent.command(ctx), input=agent.stdin(ctx), cwd=workdir, env=env, check=False
        )
    return Ran(agent, done)


async def test_mini_runs_commands_and_exits(tmp_path: Path) -> None:
    command = "echo changed >file; pwd; echo err >&2; exit 3"
    replies = [call_tool("bash", {"command": command}), say("Done.", reasoning_content="It is done.")]
    async with ScriptedProvider(replies) as provider:
        ran = await run_mini(tmp_path, provider.url, "füge hinzu")
    assert (ran.exit_code, ran.stderr, ran.failure) == (0, "", None)
    result = f"exit code: 3\n{tmp_path / 'work'}\nerr\n"
    assert ran.events == [
        AgentEvent(kind="tool_call", text=command, tool="bash"),
        AgentEvent(kind="tool_result", text=result, tool="bash"),
        AgentEvent(kind="reasoning", text="It is done."),
        AgentEvent(kind="text", text="Done."),
    ]
    assert (tmp_path / "work" / "file").read_text() == "changed\n"

    first, second = provider.requests
    assert first.headers["Authorization"] == "Bearer the-token"
    assert first.body["model"] == "the-model"
    assert not first.body.get("stream")
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["bash"]
    system, user = first.body["messages"]
    assert str(tmp_path / "work") in system["content"]
    assert user == {"role": "user", "content": "füge hinzu"}
    kept, assistant, answer = second.body["messages"][:2], *second.body["messages"][2:]
    assert kept == first.body["messages"]
    assert assistant["tool_calls"] == replies[0].message["tool_calls"]
    assert answer == {"role": "tool", "tool_call_id": "call_1", "content": result}


FUNCTIONS: list[tuple[Any, str]] = [
    ({"name": "bash", "arguments": '{"command": "echo 1"}'}, "exit code: 0\n1\n"),
    ({"name": "bash", "arguments": {"command": "echo hi"}}, "exit code: 0\nhi\n"),
    ({"name": "bash", "arguments": '{"command": "env | grep -c SWE_MINI_; cat; echo end"}'},
     "exit code: 0\n0\nend\n"),  # it hides its settings and stdin
    ({"name": "python", "arguments": "{}"}, "error: there is no tool 'python'"),
    ({"name": "bash", "arguments": '{"command": "echo'}, "error: the arguments must be a JSON object"),
    ({"name": "bash", "arguments": '{"command": 7}'}, "error: the arguments must be a JSON object"),
    ({"name": "bash", "arguments": "[]"}, "error: the arguments must be a JSON object"),
    ({"name": "bash", "arguments": None}, "error: the arguments must be a JSON object"),
    ({"name": "bash"}, "error: the arguments must be a JSON object"),
    ({}, "error: there is no tool 'None'"),
    (None, "error: there is no tool 'None'"),
    ({"name": "bash", "arguments": '{"command": "a\\u0000b"}'}, "error: the command could not be started"),
]  # fmt: skip


async def test_mini_answers_all_calls_of_a_reply(tmp_path: Path) -> None:
    calls = [{"id": f"c{i}", "type": "function", "function": made} for i, (made, _) in enumerate(FUNCTIONS)]
    reply = RecordedReply(message={"role": "assistant", "content": "Many.", "tool_calls": calls})
    async with ScriptedProvider([reply, say("ok")]) as provider:
        ran = await run_mini(tmp_path, provider.url)
    assert ran.exit_code == 0
    assert ran.texts("text") == ["Many.", "ok"]
    answers = [m for m in provider.requests[1].body["messages"] if m["role"] == "tool"]
    assert [answer["tool_call_id"] for answer in answers] == [f"c{i}" for i in range(len(FUNCTIONS))]
    for (function, said), answer, told in zip(FUNCTIONS, answers, ran.texts("tool_result"), strict=True):
        assert answer["content"] == told, function
        assert told.startswith(said), function


@pytest.mark.slow
async def test_mini_kills_hanging_command_with_its_children_but_does_not_wait_for_others(
    tmp_path: Path,
) -> None:
    commands = ["sleep 600 & echo $!", "echo started; sleep 600 & echo $! >pid; sleep 600"]
    replies = [*(call_tool("bash", {"command": command}) for command in commands), say("ok")]
    async with ScriptedProvider(replies) as provider:
        ran = await run_mini(tmp_path, provider.url, command_timeout=1.5)
    left, killed = ran.texts("tool_result")
    assert killed == "killed: it did not end within 1.5 s\nstarted\n"
    pid = int((tmp_path / "work" / "pid").read_text())
    await until(lambda: not is_alive(pid))  # it is not a child of this process
    code, pid_left = left.splitlines()
    assert code == "exit code: 0"
    os.kill(int(pid_left), 9)  # it was left running, as the command wanted


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not only its exit code."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def test_mini_cuts_long_output_in_the_middle(tmp_path: Path) -> None:
    command = "echo first; yes | head -c 5000000; echo last; kill -9 $$"
    async with ScriptedProvider([call_tool("bash", {"command": command}), say("ok")]) as provider:
        ran = await run_mini(tmp_path, provider.url, output_chars=1000)
    result = ran.texts("tool_result")[0]
    assert result.startswith("exit code: 137\nfirst\ny\n")
    assert result.endswith("y\nlast\n")
    assert "\n[... 4999011 bytes left out ...]\n" in result
    assert len(result) < 1100


async def test_mini_stops_after_max_turns(tmp_path: Path) -> None:
    async with ScriptedProvider([call_tool("bash", {"command": "true"})]) as provider:
        ran = await run_mini(tmp_path, provider.url, max_turns=3)
    assert len(provider.requests) == 3
    assert (ran.exit_code, ran.failure) == (0, None)
    assert ran.texts("info") == ["stopped after 3 turns"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("500", "the endpoint answered HTTP 500: "),
        ("html", "the endpoint answered "),
        ("drop", "the endpoint cannot be reached: "),
        ("not-json", "the endpoint answered no completion: "),
    ],
)
async def test_mini_exits_on_endpoint_failure(tmp_path: Path, fault: Any, said: str) -> None:
    async with ScriptedProvider(then=fault) as provider:
        ran = await run_mini(tmp_path, provider.url)
    assert ran.exit_code == 1
    assert ran.stderr == ""
    assert len(provider.requests) == 1  # retries are the host's
    (error,) = ran.events
    assert error.fatal
    assert error.text.startswith(said)
    assert ran.failure == f"the agent 'mini' ended with an error: {error.text}"


def test_mini_is_one_file_for_python_3_8() -> None:
    source = importlib.resources.files("swe_core.builtin.mini").joinpath("mini_agent.py").read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] in sys.stdlib_module_names
    assert len(source.splitlines()) <= 200


@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
@example('{"kind": "shout", "text": "x"}')
@example('{"kind": "text", "text": 1}')
@example('{"kind": [], "text": "x"}')
def test_mini_parses_unknown_lines_as_info(line: str) -> None:
    events = Mini(MiniConfig()).parse_event(line)
    assert list(events) == ([AgentEvent(kind="info", text=line)] if line.strip() else [])


def test_mini_is_registered() -> None:
    (component,) = swe_agents()
    agent = component.create(component.config())
    assert (component.name, agent.name, agent.dialect) == ("mini", "mini", "chat")
    ended = AgentExit(127, None, "")
    assert agent.failure(ended) == "the agent 'mini' could not start: the sandbox has no python3"
