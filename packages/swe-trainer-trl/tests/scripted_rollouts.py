"""A one-file plugin whose rollouts do what a script says: agent, engine and grader are all named "scripted".

The engine says one word a call, and the agent does it: "again" asks once more, "compact" asks for a summary,
"stay" never ends, "crash" fails, "done" ends well, and so does "cut", a reply that a limit cut. The tokens of
a word are its bytes. Even attempts are resolved, odd ones are not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import numpy as np

from swe_core import AgentContext, AgentSpec, Component, hookimpl
from swe_core.api.component import Config
from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Sampled, Usage
from swe_core.api.grader import Grade, Graded
from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.rollout import loop
from swe_core.sandboxing.repository.patch import Change
from swe_trainer_trl.rollouts.messages import FeedOptions

PATIENCE = 120.0
"""Seconds until a test that hangs fails."""
OPTIONS = FeedOptions(
    group_size=2, max_staleness=1, min_scored=2, keep_without_spread=False, give_up_after=2, groups_ahead=2,
    shuffle=False, seed=0,
)  # fmt: skip
AGENT = """
import json, os, sys, time, urllib.request
if sys.argv[1] == "fails":
    sys.exit(1)
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
messages, word = [{"role": "user", "content": "begin"}], "again"
while word in ("again", "compact"):
    body = json.dumps({"messages": messages}).encode()
    request = urllib.request.Request(os.environ["BASE"] + "/chat/completions", body, headers)
    reply = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    word = reply["content"]
    messages += [reply, {"role": "user", "content": "go on"}]
if word == "stay":
    time.sleep(1e6)
sys.exit(word == "crash")
"""
Say = Callable[[EngineSession, int], Awaitable[str]]
"""The word of a rollout's call, the calls counted from 0."""


class AgentConfig(Config):
    """`mark` stands in the command line of each agent; with "fails" it makes no call."""

    mark: str = ""


class ScriptedAgent(AgentSpec):
    """Executes its script."""

    name = "scripted"

    def __init__(self, config: AgentConfig) -> None:
        self._mark = config.mark

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["python3", "-I", "-S", "-c", AGENT, self._mark]

    def summary(self, request: ChatRequest) -> bool:
        return [message["content"] for message in request.messages[-2:-1]] == ["compact"]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"BASE": ctx.base_url, "KEY": ctx.api_key}


class ScriptedEngine(Engine):
    """Says what `say` tells it to, in tokens of the policy's version at the end of each call.

    Attributes:
        version: Of the policy.
        versions: All that it was told, in order.
        taken_out: URLs of servers that get no rollouts.

    Args:
        server_of: Returns the URL of the server of a rollout.
    """

    model = "scripted"

    def __init__(self, say: Say, server_of: Callable[[str], str] = lambda rollout: "") -> None:
        self.version = 0
        self.versions: list[int] = []
        self.taken_out: set[str] = set()
        self._say = say
        self._server_of = server_of
        self._calls: Counter[str] = Counter()
        self._last: dict[str, Sampled] = {}

    def set_policy_version(self, version: int) -> None:
        self.version = version
        self.versions.append(version)

    def take_out(self, url: str) -> list[str]:
        self.taken_out.add(url)
        return [rollout for rollout in self._calls if self._server_of(rollout) == url]

    def put_in(self, url: str) -> None:
        self.taken_out.discard(url)

    @property
    def rollouts(self) -> list[str]:
        """The ids of those that asked for something."""
        return list(self._calls)

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        rollout = session.rollout_id
        call = self._calls[rollout]
        self._calls[rollout] += 1
        version = self.version  # as an engine whose replies come whole: that at which it was asked for
        word = await self._say(session, call)
        last = self._last.get(rollout)
        ids = np.frombuffer(word.encode(), np.uint8).astype(np.int32)
        logprobs, versions = np.full(len(ids), -0.5, np.float32), np.full(len(ids), version, np.int32)
        cause = "start" if last is None else None
        sampled = Sampled(last, np.array([call], np.int32), ids, logprobs, versions, "bridge", cause)
        self._last[rollout] = sampled
        usage = Usage(prompt_tokens=1, completion_tokens=len(ids))
        ended = "length" if word == "cut" else "stop"
        message = {"role": "assistant", "content": word}
        return Completion(message, finish_reason=ended, usage=usage, sampled=sampled)

    async def end(self, session: EngineSession) -> None:
        self._last.pop(session.rollout_id, None)


class ScriptedGrader:
    """Needs no sandbox."""

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        return Graded(grade=Grade(resolved=place(spec.labels["swe-core.rollout"])[1] % 2 == 0))


def words_of(script: Mapping[str, Sequence[str]], session: EngineSession, call: int) -> tuple[str, str]:
    """The word of a call by the script, which may name "GROUP/ATTEMPT", "ATTEMPT" or "*" and whose last word
    is repeated; and what comes before that word and ">"."""
    group, attempt = place(session.rollout_id)
    words = script.get(f"{group}/{attempt}") or script.get(str(attempt)) or script["*"]
    name, _, word = words[min(call, len(words) - 1)].rpartition(">")
    return name, word


def place(rollout_id: str) -> tuple[int | str, int]:
    """The group, or the evaluation by its name, and the attempt of a rollout."""
    found = re.search(r"-(?:g(\d+)|(eval[\d.]+))-(\d+)(-\d+)?$", rollout_id)
    assert found is not None
    return int(found[1]) if found[1] else found[2], int(found[3])


async def _prepared(sandbox: Sandbox, task: Task, *, hide: bool) -> None:
    """No base: there will be no patch."""


async def _exported(sandbox: Sandbox, base: None, *, timeout: float) -> Change:
    return Change(b"")


def leave_repositories(put: Callable[[object, str, object], None] = setattr) -> None:
    """Neither cut histories nor export patches, which takes a hundred processes: no agent changes files."""
    put(loop, "prepare_repository", _prepared)
    put(loop, "export_change", _exported)


def agents(mark: str) -> int:
    """Processes of agents with this mark on this host, seen from outside their sandboxes."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            found += words[0] == b"python3" and mark.encode() in words
    return found


class BrokenEngine(ScriptedEngine):
    """Cannot be opened, for a bug."""

    async def __aenter__(self) -> Engine:
        raise RuntimeError("the engine has a bug")


class EngineConfig(Config):
    """`folder` has `script.json`. A word behind "NAME>" is only said once the folder has a file NAME.

    A `broken` engine has a bug.
    """

    folder: Path = Path()
    url: str | None = None
    broken: bool = False


def from_folder(folder: Path) -> Say:
    """The words of `script.json`."""
    script: Mapping[str, Sequence[str]] = json.loads((folder / "script.json").read_text())

    async def say(session: EngineSession, call: int) -> str:
        name, word = words_of(script, session, call)
        while name and not (folder / name).exists():  # noqa: ASYNC110 (another process makes it)
            await anyio.sleep(0.02)
        return word

    return say


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    leave_repositories()  # this process is none of the tests
    return [Component("scripted", ScriptedAgent, AgentConfig)]


@hookimpl
def swe_engines() -> Iterable[Component[Engine]]:
    def create(config: EngineConfig) -> Engine:
        return (BrokenEngine if config.broken else ScriptedEngine)(from_folder(config.folder))

    return [Component("scripted", create, EngineConfig)]


@hookimpl
def swe_graders() -> Iterable[Component[ScriptedGrader]]:
    return [Component("scripted", lambda config: ScriptedGrader())]
