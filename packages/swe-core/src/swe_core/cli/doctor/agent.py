"""`swe-core doctor --agent NAME`: one scripted turn of an agent, and what was seen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_core.api.agent import AgentSpec
from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession
from swe_core.api.messages import message_key
from swe_core.api.records import Turn, requests_of
from swe_core.api.sandbox import SandboxProvider
from swe_core.api.shell_call import shell_call
from swe_core.errors import UsageError, sentence
from swe_core.run.trial import Run, ScriptedModel, Trial, run_trial, shell_reply, text_reply
from swe_core.system.plural import counted
from swe_core.system.redaction import MARK

_COMMAND = "env; printf 'doctor-%s' seen"  # some agents refuse commands with `$(`
_PRINTED = "doctor-seen"
_SDK_KEYS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
)
"""Variables in which SDKs look for a key."""
_ENDED = "The doctor has seen enough. Nothing is left to do."


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that was seen.

    Args:
        name: What was looked at.
        text: What was seen.
        remedy: What to do, where something is wrong; else "".
    """

    name: str
    text: str
    remedy: str = ""


class _Watching(ScriptedModel):
    """Runs one command by the agent's shell tool, then ends; without such a tool it ends at once.

    Attributes:
        first: Seconds from `started` to the first call; None before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: float | None = None
        self._ran = False
        self.started = time.monotonic()

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        if self.first is None:
            self.first = time.monotonic() - self.started
        return await super().complete(request, session, emit)

    def reply(self, request: ChatRequest) -> Completion:
        if request.auxiliary is not None:
            return super().reply(request)
        if self._ran or shell_call(request.tools, _COMMAND) is None:
            return text_reply(_ENDED)
        self._ran = True
        return shell_reply(request, Run(_COMMAND, "I look around."))


async def look_at(agent: AgentSpec, provider: SandboxProvider) -> list[Seen]:
    """Run one scripted turn of `agent` in a sandbox of `provider`, and return what was seen.

    Raises:
        UsageError: The agent makes no LLM calls.
        SweError: The agent's bundle or the sandbox cannot be made.
    """
    if agent.dialect is None:
        raise UsageError(f"the agent {agent.name!r} makes no LLM calls, so there is no turn to look at")
    model = _Watching()
    trial = await run_trial(agent, model, provider, problem="Look around in this repository.")
    return list(_seen(agent, trial, model))


def _seen(agent: AgentSpec, trial: Trial, model: _Watching) -> Iterator[Seen]:
    turns = trial.turns
    dialects = Counter(turn.dialect for turn in turns)
    wrong = bool(dialects) and set(dialects) != {agent.dialect}
    yield Seen(
        "dialect",
        _counted(dialects) or "it made no LLM call",
        f"AgentSpec.dialect says {agent.dialect!r}: set it to what the agent speaks." if wrong else "",
    )
    if not turns:
        yield _end(trial)
        return
    bodies = list(requests_of(turns))
    streamed = sum(bool(body.get("stream")) for body in bodies)
    yield Seen("streaming", f"{streamed} of {counted(len(turns), 'call')}")
    yield Seen("first call", f"{model.first or 0:.2f} s after the sandbox was asked for")
    yield Seen("model names", _counted(Counter(str(body.get("model")) for body in bodies)))
    yield Seen("output limits", _counted(Counter(map(_limit, bodies))))
    yield _auxiliary(turns, model.asked)
    yield _tools(trial, model)
    yield _history(model.asked)
    yield _key(trial)
    events = Counter(event.kind for event in trial.events)
    none = "parse_event returned no event: the transcript is empty." if not events else ""
    yield Seen("transcript", _counted(events) or "no event", none)
    yield _end(trial)


def _auxiliary(turns: Sequence[Turn], asked: Sequence[ChatRequest]) -> Seen:
    said = Counter(turn.auxiliary for turn in turns if turn.auxiliary)
    bare = sum(not request.tools and request.auxiliary is None for request in asked)
    odd = bare if bare < sum(request.auxiliary is None for request in asked) else 0
    return Seen(
        "auxiliary calls",
        _counted(said) or "none",
        f"{counted(odd, 'call offers', 'calls offer')} no tools, unlike the others: if they are no work of "
        "the policy (a title, a summary for the screen), let AgentSpec.auxiliary say so."
        if odd
        else "",
    )


def _tools(trial: Trial, model: _Watching) -> Seen:
    names = {tool["function"]["name"] for request in model.asked for tool in request.tools or ()}
    listed = f"{len(names)}: {', '.join(sorted(names))}" if names else "none"
    shells = [shell_call(request.tools, "") for request in model.asked]
    shell = next((found[0] for found in shells if found is not None), None)
    if shell is None:
        return Seen("tools", f"{listed}; none runs commands")
    ran = any(_PRINTED in str(message["content"]) for request in model.asked for message in request.messages)
    return Seen(
        "tools",
        f"{listed}; {shell} runs commands",
        "" if ran else f"The command that the script ran by {shell} printed nothing that came back.",
    )


def _history(asked: Sequence[ChatRequest]) -> Seen:
    """Whether each call of the policy continues an earlier one, which decides whether it is one row."""
    known: list[list[object]] = []
    starts = 0
    for request in asked:
        if request.auxiliary is not None:
            continue
        keys = [message_key(message) for message in request.messages]
        starts += not any(keys[: len(earlier)] == earlier for earlier in known)
        known.append(keys)
    kept = (
        "each call continues an earlier one"
        if starts == 1
        else f"{counted(starts, 'call continues', 'calls continue')} no earlier one"
    )
    remedy = "The agent rewrites its history or starts sub-agents: each such call is a row of its own."
    return Seen("history", kept, "" if starts == 1 else remedy)


def _key(trial: Trial) -> Seen:
    # Records are redacted: a key that a child printed is a mark.
    lines = _printed(trial).splitlines()
    names = sorted({line.partition("=")[0] for line in lines if f"={MARK}" in line})
    read = [name for name in names if name in _SDK_KEYS]
    return Seen(
        "key",
        f"its commands see it in {', '.join(names)}" if names else "commands of the agent do not see it",
        f"SDKs read {', '.join(read)}, so the LLM calls of a test suite would become part of the rollout: "
        "pass the key in a file, or in a variable of the agent's own."
        if read
        else "",
    )


def _printed(trial: Trial) -> str:
    return "\n".join(str(message.get("content")) for turn in trial.turns for message in turn.messages)


def _end(trial: Trial) -> Seen:
    if trial.failure is not None:
        return Seen("end", "it failed", sentence(trial.failure))
    return Seen("end", f"by itself, with exit code {trial.exit_code}")


def _limit(body: dict[str, object]) -> str:
    return str(body.get("max_tokens") or body.get("max_completion_tokens") or "none")


def _counted(found: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in found.items())
