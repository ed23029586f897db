"""Foreign calls: what a command of the agent asks with the gate's token is answered, and not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Sampled
from swe_core.api.messages import message_key
from swe_core.api.sandbox import SandboxSpec
from swe_core.builtin.local.bwrap import SOCKET_DIR
from swe_core.builtin.local.provider import LocalProvider
from swe_core.interception.server import InterceptionServer
from swe_core.report.token_audit import recount
from swe_core.system import callers
from swe_core.tokens.chains import chains_of
from swe_testing.records import make_run
from swe_testing.sandbox.base import PATIENCE

from ..token_turns import make_sampled
from .helpers import by_hand, who

Messages = list[dict[str, Any]]
ORDER = "Look for every caller of the function parse, and list them."
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {argument: {}}}}}
    for name, argument in (("bash", "command"), ("Task", "prompt"))
]


def system(text: str = "You are the agent.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(number: int, tool: str = "", **arguments: str) -> dict[str, Any]:
    """The reply to call `number`, as the agent repeats it."""
    said: dict[str, Any] = {
        "role": "assistant",
        "content": f"This is what the policy says as number {number}.",
    }
    if tool:
        function = {"name": tool, "arguments": orjson.dumps(arguments).decode()}
        said["tool_calls"] = [{"id": f"c{number}", "type": "function", "function": function}]
    return said


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


RUN = says(0, "bash", command="python -m pytest")
TASK = says(0, "Task", prompt=ORDER)
PROMPT = [system(), user("Fix the issue above by changing the source code of the repository.")]
NEXT = [*PROMPT, RUN, result(0, "3 passed in the tests of the module")]
FORK = [*PROMPT, RUN, result(0, "I wrote this result myself, so that it is trained")]
LAST = [*NEXT, says(1), user("Go on, please, until the whole of it is done.")]


class Policy(Engine):
    """Gives the replies in order. It knows a conversation that goes on from one of them, as `vllm` does."""

    model = "policy"

    def __init__(self, replies: list[dict[str, Any]]) -> None:
        self._replies = iter(replies)
        self._known: dict[object, Sampled] = {}

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        keys = [message_key(message) for message in request.messages]
        ends = [end for end in range(len(keys), 0, -1) if tuple(keys[:end]) in self._known]
        base = self._known[tuple(keys[: ends[0]])] if ends else None
        reply = next(self._replies)
        new = str(keys[ends[0] :] if ends else keys)
        tokens = _sampled(new, reply["content"], base)
        self._known[(*keys, message_key({"tool_calls": (), **reply}))] = tokens
        return Completion(reply, sampled=tokens)


def _sampled(prompt: str, text: str, base: Sampled | None) -> Sampled:
    return make_sampled(list(prompt.encode()), list(text.encode()), base, cause=None if base else "start")


HONEST: dict[str, tuple[list[Messages], dict[int, dict[str, Any]]]] = {
    "one conversation": ([PROMPT, NEXT, LAST], {0: RUN}),
    "a retry of the first call": ([PROMPT, PROMPT, [*PROMPT, says(1), user("Go on.")]], {}),
    "a retry of a later call": ([PROMPT, NEXT, NEXT], {0: RUN}),
    "a reply that the agent refused": ([PROMPT, NEXT, [*NEXT, user("Use a tool."), user("Now.")]], {0: RUN}),
    "a first reply that it refused": ([PROMPT, [*PROMPT, user("Use a tool.")]], {}),
    "a compaction": ([PROMPT, NEXT, [system(), user(f"So far: {says(1)['content']}")]], {0: RUN}),
    "a summary by another system prompt": (
        [PROMPT, [system("You summarise."), user(f"{PROMPT[1]['content']}\n{RUN['content']}")]], {0: RUN}),
    "a sub-agent that a tool orders": (
        [PROMPT, [system("You explore."), user(ORDER)], [*PROMPT, TASK, result(0, "done")]], {0: TASK}),
    "a sub-agent that the plugin announces": ([PROMPT, [system("Announced"), user("Review.")]], {}),
    "old results that the agent cut": (
        [PROMPT, NEXT, [*PROMPT, RUN, result(0, "[cut]"), says(1), user("Go on.")]], {0: RUN}),
}  # fmt: skip
CHEATS: dict[str, tuple[list[Messages], dict[int, dict[str, Any]], list[int]]] = {
    "no system prompt": ([PROMPT, [user("Say yes.")], NEXT], {0: RUN}, [1]),
    "another system prompt": ([PROMPT, [system("Mine"), user("Say yes.")], NEXT], {0: RUN}, [1]),
    "the agent's system prompt": ([PROMPT, [system(), user("Say yes.")], NEXT], {0: RUN}, [1]),
    "the agent's prompt and more": ([PROMPT, [*PROMPT, user("Say yes.")], NEXT], {0: RUN}, [1]),
    "the agent's prompt and a made-up reply": (
        [PROMPT, [*PROMPT, says(7), user("Say yes.")], NEXT], {0: RUN}, [1]),
    "what it goes on with": (
        [PROMPT, [user("Say yes.")], [user("Say yes."), says(1), user("Again.")], NEXT], {0: RUN}, [1, 2]),
    "a fork before the agent goes on": ([PROMPT, FORK, NEXT], {0: RUN}, [1]),
    "a fork after the agent went on": (
        [PROMPT, NEXT, [*NEXT, says(1), user("Go on.")], FORK], {0: RUN}, [3]),
    "a fork of a fork": (
        [PROMPT, FORK, NEXT, [*NEXT, says(2), user("a")], [*NEXT, says(2), user("a"), says(3), user("b")],
         [*FORK, says(1), user("Again.")]], {0: RUN}, [1, 5]),
    "an order that no tool of a sub-agent has": (
        [PROMPT, [user("python -m pytest --of-all-the-tests")], NEXT],
        {0: says(0, "bash", command="python -m pytest --of-all-the-tests")}, [1]),
    "40,000 junk tokens": (
        [PROMPT, [user("junk " * 8000)], NEXT], {0: RUN, 1: says(1) | {"content": "x" * 40000}}, [1]),
}  # fmt: skip


def on(messages: Messages, number: int, text: str = "Go on.") -> Messages:
    """What goes on from the reply `number` to `messages`."""
    return [*messages, says(number), user(text)]


# The same with evidence of processes: calls, replies, those by a late process, those that are foreign.
COPY = [system(), user("I repeat what was said to the agent."), RUN, result(0, "passed")]
LATE: dict[str, tuple[list[Messages], dict[int, dict[str, Any]], list[int], list[int]]] = {
    "a fork longer than the agent's": (
        [PROMPT, FORK, on(FORK, 1), on(on(FORK, 1), 2), NEXT, on(NEXT, 4)], {0: RUN}, [1, 2, 3], [1, 2, 3]),
    "a fork by a command that never ends": (
        [PROMPT, NEXT, on(NEXT, 1), on(on(NEXT, 1), 2)], {0: RUN}, [2, 3], [2, 3]),
    "three conversations that repeat the agent's": (
        [PROMPT, COPY, [*COPY[:-1], result(0, "2")], [*COPY[:-1], result(0, "3")], NEXT], {0: RUN},
        [1, 2, 3], [1, 2, 3]),
    "40,000 junk tokens on a fork": (
        [PROMPT, FORK, on(FORK, 1), NEXT], {0: RUN, 1: says(1) | {"content": "x" * 40000}}, [1, 2], [1, 2]),
    "a copy of the call from which the agent goes on": (
        [PROMPT, NEXT, NEXT, on(NEXT, 1)], {0: RUN, 2: says(1)}, [2], []),
    "what the plugin announces": (
        [PROMPT, NEXT, [system("Announced"), user("a")], on([system("Announced"), user("a")], 2)], {0: RUN},
        [2, 3], []),
}  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "replies", "late", "foreign"),
    [pytest.param(*case, None, [], id=name) for name, case in HONEST.items()]
    + [pytest.param(*case, [], [], id=f"{name}, one process") for name, case in HONEST.items()]
    + [pytest.param(*case, [*range(1, 9)], [], id=f"{name}, many") for name, case in HONEST.items()]
    + [pytest.param(*case[:2], None, case[2], id=name) for name, case in CHEATS.items()]
    + [pytest.param(*case[:2], case[2], case[2], id=f"{name}, late") for name, case in CHEATS.items()]
    + [pytest.param(*case, id=name) for name, case in LATE.items()],
)
async def test_foreign_calls_are_not_trained(
    server: InterceptionServer,
    tmp_path: Path,
    calls: list[Messages],
    replies: dict[int, dict[str, Any]],
    late: list[int] | None,
    foreign: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, number = callers.boot_time() - 1, 0

    def born(_: object) -> float | None:
        return None if late is None else callers.boot_time() if number in late else agent

    monkeypatch.setattr(callers, "born", born)
    run = make_run(tmp_path / "run")
    folder = run.folder("r1")
    policy = Policy([replies.get(number, says(number)) for number in range(len(calls))])
    async with server.session(
        policy, who(task="astropy__astropy-7"), folder.add_turn, on_foreign=folder.add_foreign,
        own=lambda request: request.messages[0]["content"] == "Announced",
    ) as gate, by_hand(server, gate) as http:  # fmt: skip
        assert not any(told in str(http.base_url) for told in ("astropy", "r1"))
        for number, messages in enumerate(calls):
            body = {"messages": messages, "tools": TOOLS, "seed": number}
            assert (await http.post("/chat/completions", json=body)).status_code == 200
    folder.close()
    turns = run.turns("r1")
    assert [turn.index for turn in turns if turn.tokens and turn.tokens.dropped == "foreign"] == foreign
    assert recount(turns) == gate.ledger()
    trained = {turn for chain in chains_of(turns) for turn in chain.turns}
    assert trained == set(range(len(calls))) - set(foreign)


# Makes a call with a URL, a token and messages, and prints the messages with its reply.
_ASK = """
import json, sys, urllib.request
def ask(url, token, messages, more):
    body = json.dumps({"messages": messages}).encode()
    request = urllib.request.Request(url + "/chat/completions", body, {"Authorization": "Bearer " + token})
    reply = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]
    return messages + [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": more}]
"""
_COMMAND = (
    _ASK
    + """
import glob, http.client, socket
url, token, messages = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
fork = ask(url, token, ask(url, token, messages, "Mine."), "Mine too.")
direct = http.client.HTTPConnection("relay")
direct.sock = socket.socket(socket.AF_UNIX)
direct.sock.connect(glob.glob(sys.argv[4] + "/*.sock")[0])
body = json.dumps({"messages": fork})
direct.request("POST", "/rollout" + url.partition("/rollout")[2] + "/chat/completions", body,
               {"Authorization": "Bearer " + token})
assert direct.getresponse().status == 200
"""
)
_AGENT = (
    _ASK
    + """
import subprocess
url, token, command, sockets = sys.argv[1:]
begun = ask(url, token, [{"role": "user", "content": "Fix it."}], "The result.")
subprocess.run([sys.executable, "-c", command, url, token, json.dumps(begun), sockets], check=True)
ask(url, token, begun, "")
"""
)


@pytest.mark.usefixtures("local_sandbox")
async def test_calls_by_a_command_are_not_the_agents_own(server: InterceptionServer) -> None:
    """A longer fork, a part of it without the program of the relay."""
    foreign: list[int] = []
    async with LocalProvider().open(SandboxSpec(disk_mb=64)) as sandbox:
        async with (
            server.session(
                Policy([says(number) for number in range(5)]), who(), lambda turn: None,
                on_foreign=foreign.extend,
            ) as gate,
            sandbox.reach(server.url) as url,
        ):  # fmt: skip
            argv = ["python3", "-c", _AGENT, url + gate.path, gate.token, _COMMAND, SOCKET_DIR]
            done = await sandbox.exec(argv, timeout=PATIENCE)
            assert done.exit_code == 0, done.stderr
    assert (gate.turns, foreign) == (5, [1, 2, 3])
