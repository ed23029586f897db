"""The interception server under load: hundreds of rollouts, faulty clients and engines, and a kill."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import anyio
import pytest
import tenacity

from swe_core.api.engine import Engine, EngineSession
from swe_core.api.records import Ledger, requests_of
from swe_core.interception.gate import Gate
from swe_core.interception.server import InterceptionServer
from swe_core.report.token_audit import recount
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.ledger import add_ledgers
from swe_testing.records import make_run
from swe_testing.vllm import ScriptedVLLM, VLLMFault
from swe_testing.waiting import until

from .shaky_server import BAD_DAYS, MAX_BODY, Shaky

pytestmark = pytest.mark.anyio
MISDEEDS = ("leave", "twice", "malformed", "token", "oversize", "retry")
RETRY = {"x-stainless-retry-count": "1"}
WORSE_DAYS = {day: 20 if day == "ok" else 6 for day in BAD_DAYS}
"""So bad that a few rollouts see each of them."""


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """Clients and server of hundreds of rollouts are in one process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@asynccontextmanager
async def connections() -> AsyncIterator[aiohttp.ClientSession]:
    """A client without limits."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        yield http


@dataclass
class Reply:
    """What one request got."""

    status: int = 0
    text: str = ""
    whole: bool = False


async def ask(
    http: aiohttp.ClientSession, url: str, token: str, body: bytes, hold: int | None = None, **headers: str
) -> Reply:
    """Post `body` and read the reply; leave after `hold` events where that is given."""
    reply = Reply()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    async with http.post(f"{url}/chat/completions", data=body, headers=headers) as response:
        reply.status = response.status
        if response.content_type == "application/json":
            said = await response.json()
            if response.status == 200:
                reply.text, reply.whole = said["choices"][0]["message"]["content"] or "", True
            return reply
        events = 0
        async for line in response.content:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:]).get("choices", ()):
                    reply.text += choice["delta"].get("content") or ""
            if line.startswith(b"data: [DONE]"):
                reply.whole = True
            events += line.startswith(b"data:")
            if hold is not None and events > hold:
                response.close()
                return reply
    return reply


@dataclass
class Agent:
    """One rollout's clients, which misbehave at random."""

    name: str
    url: str
    token: str
    random: Random
    http: aiohttp.ClientSession
    seen: Counter[str] = field(default_factory=Counter)
    whole: dict[bytes, set[str]] = field(default_factory=dict)
    """Request → the different texts that were delivered whole for it."""
    heard: Callable[[], None] = lambda: None
    """Called for each reply that was delivered whole."""

    async def run(self, steps: int = 4) -> None:
        messages: list[Any] = []
        for step in range(steps):
            messages.append({"role": "user", "content": f"{self.name}/{step}"})
            body = json.dumps({"messages": messages, "stream": self.random.random() < 0.8}).encode()
            kind = self.random.choice(["ask", "ask", "leave", "twice", "malformed", "token", "oversize"])
            self.seen[kind] += 1
            if kind == "malformed":
                self.refused(await ask(self.http, self.url, self.token, body[:-1]), 400)
            elif kind == "token":
                self.refused(await ask(self.http, self.url, "not-" + self.token, body), 401)
            elif kind == "oversize":
                self.refused(await ask(self.http, self.url, self.token, body.ljust(MAX_BODY + 1)), 413)
            elif kind == "leave":
                await self.ask(body, hold=self.random.randrange(4), patience=self.random.uniform(0, 0.2))
            elif kind == "twice":
                async with anyio.create_task_group() as group:
                    for _ in range(2):  # either may be the later one
                        group.start_soon(partial(self.ask, body, **RETRY))
            if self.random.random() < 0.3:
                self.seen["retry"] += 1
                await self.ask(body, **(RETRY if self.random.random() < 0.5 else {}))
            messages.append({"role": "assistant", "content": await self.ask(body)})

    async def ask(self, body: bytes, hold: int | None = None, patience: float = 1.0, **headers: str) -> str:
        """Return a text of this rollout; disconnect when `patience` seconds are over."""
        reply = Reply()
        headers = RETRY if body in self.whole else headers
        with anyio.move_on_after(patience):
            reply = await ask(self.http, self.url, self.token, body, hold, **headers)
        if reply.status == 200:
            own = f"[{self.name}] "
            assert own.startswith(reply.text) or reply.text.startswith(own)
        else:
            assert reply.status in (0, 400, 424), reply.status
        if reply.whole:
            self.whole.setdefault(body, set()).add(reply.text)
            self.heard()
        return reply.text

    def refused(self, reply: Reply, status: int) -> None:
        assert (reply.status, reply.whole) == (status, False)


async def until_tasks_ended(before: set[asyncio.Task[Any]]) -> None:
    """Wait until no task is left besides `before`; closing connections take a while."""
    await until(lambda: not asyncio.all_tasks() - before)


async def run_agents(
    run: RunDirectory,
    http: aiohttp.ClientSession,
    server: InterceptionServer,
    engine: Engine,
    names: Sequence[str],
    seen: Counter[str],
    leaving: float = 0.0,
) -> tuple[dict[str, Gate], dict[str, Agent]]:
    """All rollouts at once; of `leaving` of them the rollout ends while its agent still talks."""
    gates, agents = dict[str, Gate](), dict[str, Agent]()

    async def rollout(name: str) -> None:
        who = EngineSession(name, "task", 0, "agent")
        with closing(run.folder(name)) as folder:
            async with server.session(
                engine, who, folder.add_turn, on_undelivered=folder.add_undelivered
            ) as gate:
                agent = Agent(name, server.url + gate.path, gate.token, Random(name), http, seen)
                gates[name], agents[name] = gate, agent
                async with anyio.create_task_group() as group:
                    group.start_soon(agent.run)
                    if agent.random.random() < leaving:
                        await anyio.sleep(agent.random.uniform(0, 0.5))
                        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(rollout, name)
    return gates, agents


@pytest.mark.parametrize(
    ("rollouts", "days"), [(60, WORSE_DAYS), pytest.param(500, BAD_DAYS, marks=pytest.mark.slow)]
)
async def test_rollouts_stay_consistent_under_faults(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rollouts: int,
    days: dict[str, int],
) -> None:
    """Ledgers balance with the engine's count, rollouts are isolated, no delivered reply is sampled twice."""
    random, seen = Random(1), Counter[str]()
    names, before = list(map(str, range(rollouts))), asyncio.all_tasks()
    run = make_run(tmp_path / "run", rollouts)
    engine = Shaky(random, days)
    async with engine, InterceptionServer(max_body=MAX_BODY) as server, connections() as http:
        gates, agents = await run_agents(run, http, server, engine, names, seen, leaving=0.1)
        metrics = server._metrics.text().decode()
    await until_tasks_ended(before)

    total, recorded_turns = Ledger(sampled=0, trainable=0), 0
    for name in names:
        turns, ledger = run.turns(name), gates[name].ledger()
        assert (ledger.sampled if ledger else 0) == engine.typed[name]
        assert recount(turns) == ledger
        if ledger is not None:
            assert ledger.sampled == ledger.trainable + sum(ledger.dropped.values())
            total = add_ledgers([total, ledger])
        assert [turn.index for turn in turns] == list(range(gates[name].turns))
        recorded_turns += len(turns)
        recorded = [(turn.reply or {}).get("content") or "" for turn in turns if turn.error is None]
        for texts in agents[name].whole.values():
            assert len(texts) == 1
            assert texts <= set(recorded)
        assert all(f"[{name}] " in text for text in recorded if text)
    assert sorted(engine.ended) == sorted(names)
    assert "swe_calls_in_flight 0.0" in metrics
    assert "swe_rollouts_open 0.0" in metrics
    assert min(seen[kind] for kind in MISDEEDS) > rollouts / 10
    assert engine.days.keys() == engine._chances.keys()
    with capsys.disabled():
        print(
            f"\nreliability: {rollouts} rollouts, clients {dict(seen)}, engine {dict(engine.days)}: "
            f"{total.sampled} tokens sampled = {total.trainable} trainable + {total.dropped}, "
            f"{recorded_turns} turns on disk, 0 tasks left"
        )


VLLM_DAYS: dict[VLLMFault, int] = {
    "ok": 100,
    "500": 5,
    "drop": 5,
    "stall": 5,
    "abort": 5,
    "length": 5,
    "null-logprobs": 1,
    "empty": 2,
    "400": 2,
    "garbage": 1,
}


@pytest.mark.parametrize("rollouts", [12, pytest.param(60, marks=pytest.mark.slow)])
async def test_vllm_rollouts_stay_consistent_under_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rollouts: int
) -> None:
    """Ledgers balance, and the ids of each turn are those that the server received and sampled."""
    pytest.importorskip("renderers")
    from swe_core.builtin.vllm import VLLMConfig, engine
    from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

    monkeypatch.setattr(engine, "_BACKOFF", tenacity.wait_none())
    tokenizer = make_tokenizer(QWEN3_TOKENS, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.save_pretrained(tmp_path)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    def reply(prompt: Sequence[int]) -> list[int]:
        asked = re.findall(r"<\|im_start\|>user\n((\d+)/\d+)", tokenizer.decode(prompt))[-1]
        return encode(f"[{asked[1]}] {asked[0]} and so on and so forth<|im_end|>")

    random, seen = Random(2), Counter[str]()
    names, before = list(map(str, range(rollouts))), asyncio.all_tasks()
    run = make_run(tmp_path / "run", rollouts)
    days = random.choices(list(VLLM_DAYS), list(VLLM_DAYS.values()), k=10_000)
    settings = {"model": "scripted", "max_retries": 2, "renderer": "qwen3", "tokenizer": str(tmp_path)}
    settings["max_missing_logprobs"] = 1.0  # some days have none
    async with ScriptedVLLM([reply], encode=encode, faults=days, root=str(tmp_path)) as vllm:
        policy = engine.VLLMEngine(VLLMConfig(url=vllm.url, **settings))
        async with policy, InterceptionServer(max_body=MAX_BODY) as server, connections() as http:
            gates, agents = await run_agents(run, http, server, policy, names, seen)
    await until_tasks_ended(before)

    known = {(*asked.prompt, *asked.sent) for asked in vllm.requests}
    total: Counter[str] = Counter()
    for name in names:
        turns, ledger = run.turns(name), gates[name].ledger()
        assert recount(turns) == ledger
        if ledger is not None:
            assert ledger.sampled == ledger.trainable + sum(ledger.dropped.values())
            total += Counter({"sampled": ledger.sampled, "trainable": ledger.trainable, **ledger.dropped})
        ids: dict[int | None, tuple[int, ...]] = {None: ()}
        for turn in turns:
            if turn.tokens is not None:
                ids[turn.index] = (*ids[turn.tokens.base], *turn.tokens.prompt, *turn.tokens.completion)
                if turn.error is None:
                    assert ids[turn.index] in known
        texts = {(turn.reply or {}).get("content") or "" for turn in turns if turn.error is None}
        assert set().union(*agents[name].whole.values()) <= texts
    assert total["trainable"] > total["sampled"] / 2
    with capsys.disabled():
        asked = f"{rollouts} rollouts, {len(vllm.requests)} requests"
        print(f"\nreliability: engine vllm, {asked}: {dict(total)}")


def acknowledged(agents: Sequence[Agent]) -> int:
    """How many different replies they got whole."""
    return sum(len(texts) for agent in agents for texts in agent.whole.values())


@pytest.mark.parametrize(("rollouts", "replies"), [(20, 80), pytest.param(50, 300, marks=pytest.mark.slow)])
async def test_acknowledged_turns_survive_a_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rollouts: int, replies: int
) -> None:
    """After a SIGKILL each reply that a client received whole is on disk once, with its request."""
    script, path = Path(__file__).with_name("shaky_server.py"), tmp_path / "run"
    argv = [sys.executable, str(script), str(path), str(rollouts), "7"]
    seen, agents = Counter[str](), list[Agent]()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 (it starts at once)

        def heard() -> None:
            if acknowledged(agents) >= replies:
                process.send_signal(signal.SIGKILL)

        async def talk(agent: Agent) -> None:
            try:
                await agent.run(steps=1_000_000)
            except* aiohttp.ClientError:  # the server is no more
                pass

        try:
            assert process.stdout is not None
            opened = json.loads(await asyncio.to_thread(process.stdout.readline))
            async with connections() as http, anyio.create_task_group() as group:
                for number, (url, token) in enumerate(opened):
                    random = Random(number)
                    agents.append(Agent(str(number), url, token, random, http, seen, heard=heard))
                    group.start_soon(talk, agents[-1])
        finally:
            process.kill()
    run, total, errors = RunDirectory.open(path), Ledger(sampled=0, trainable=0), 0
    for agent in agents:
        turns = run.turns(agent.name)
        answers: Counter[tuple[str, str]] = Counter()
        for turn, body in zip(turns, requests_of(turns), strict=True):
            if turn.reply is None:
                errors += 1
                continue
            text = turn.reply["content"] or ""
            answers[json.dumps(body["messages"]), text] += 1
            assert turn.tokens is not None
            assert not text or bytes(turn.tokens.completion).decode() == text
        got = {(json.dumps(json.loads(body)["messages"]), text)
               for body, texts in agent.whole.items() for text in texts}  # fmt: skip
        assert got <= answers.keys()
        assert all(times == 1 for (_, text), times in answers.items() if text)
        total = add_ledgers([total, recount(turns) or Ledger(sampled=0, trainable=0)])
    assert acknowledged(agents) >= replies
    assert min(seen[kind] for kind in MISDEEDS) > replies / 30
    assert errors > replies / 30
    with capsys.disabled():
        print(
            f"\nreliability: killed after {acknowledged(agents)} acknowledged turns, clients {dict(seen)}, "
            f"{errors} calls without a reply: 0 lost, {total.sampled} tokens on disk = "
            f"{total.trainable} trainable + {total.dropped}"
        )
