"""The model's side: ChatRequest, Completion, Engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from swe_core.api.messages import Message
from swe_core.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Delta = Mapping[str, Any]
"""A piece of an assistant message as in a chat-completions chunk: `choices[0].delta`."""
Emit = Callable[[Delta], Awaitable[None]]
"""Called with each piece while the engine generates; awaiting it is the back-pressure. A piece is read later,
or never, and an engine may make it only then."""


class Usage(BaseModel):
    """Tokens of one completion, as the engine counted them; 0 where it did not say."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True)
class EngineSession:
    """Which rollout asks. An engine may keep state per session, e.g. its position in a recording.

    Args:
        rollout_id: Unique within a run.
        task_id: The task's `instance_id`.
        attempt: 0-based attempt at this task.
        agent: The agent's name.
    """

    rollout_id: str
    task_id: str
    attempt: int
    agent: str


Rendered = Literal["bridge", "template", "full"]
"""How a prompt's ids were made: only the new messages, by a renderer that knows the family or by a template
proven to preserve prefixes, or the whole conversation afresh."""

ForkCause = Literal["start", "branch", "rewritten", "template", "retokenised", "truncated", "unknown"]
"""Why a turn extends no chain: it begins a conversation; its history was extended by another turn already;
the client rewrote its history; the template renders history otherwise once more follows; the same text came
out as other ids; the reply before was cut and cannot be closed; the engine does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The exact tokens of one turn.

    Args:
        extends: The earlier turn of the same session whose ids (prompt and completion) this prompt begins
            with, by construction; None where there is none, or the engine does not know.
        prompt_ids: The prompt's ids after those of `extends`, int32 [P]; all of them where it is None.
        completion_ids: What was sampled, int32 [C], the stop token included.
        logprobs: Natural log-probability of each sampled id under the distribution that it was drawn from,
            float32 [C]; NaN where the server gave none.
        versions: Policy version that sampled each id, int32 [C].
        rendered: How the prompt was made.
        cause: Why it extends nothing; None where `extends` is set.
        dropped: Why the engine says that none of these tokens may be trained, such as "forced"; None where
            they may. They are context of the turns that follow all the same.
    """

    extends: Sampled | None
    prompt_ids: NDArray[np.int32]
    completion_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    rendered: Rendered = "full"
    cause: ForkCause | None = "unknown"
    dropped: str | None = None


class Progress:
    """What a call has sampled so far. An engine keeps it current while it generates, so that the tokens of
    a call that is aborted or fails are counted too: it sets `sampled`, or says once how to make it."""

    def __init__(self) -> None:
        self._make: Callable[[], Sampled | None] = lambda: None

    @property
    def sampled(self) -> Sampled | None:
        """The tokens so far; None where there are none."""
        return self._make()

    @sampled.setter
    def sampled(self, sampled: Sampled | None) -> None:
        self._make = lambda: sampled

    def follow(self, make: Callable[[], Sampled | None]) -> None:
        """Have `sampled` made by `make` whenever it is read, which costs a token nothing."""
        self._make = make


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One LLM call of the agent.

    Args:
        body: A chat-completions request body: the agent's own where it speaks that dialect.
        messages: The conversation so far in canonical form (`swe_core.api.messages`).
        tools: The tools offered, chat-completions form; None where there are none.
        max_tokens: Tokens that may be sampled, the smaller of what the agent asked for and what its budget
            has left; None is no limit.
        max_context: Tokens that prompt and completion may have together; None is no limit but the model's.
        progress: Where the engine tells what it has sampled so far.
        as_told: Turns a message of the engine into the one that the agent gets: without secrets. An engine
            that finds its replies in later histories keeps those.
    """

    body: Mapping[str, Any]
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    max_tokens: int | None = None
    max_context: int | None = None
    progress: Progress = field(default_factory=Progress)
    as_told: Callable[[Message], Message] = lambda message: message

    @property
    def stream(self) -> bool:
        """Whether the agent asked for a stream."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole reply of the model.

    Args:
        message: An OpenAI assistant message: `role`, `content`, and where present `tool_calls` and
            `reasoning_content`.
        finish_reason: Why it ended: "stop", "length" (cut at a limit) or "tool_calls".
        usage: Its tokens.
        model: The model's name, where the engine says it.
        sampled: Its exact tokens; None from an engine that does not own them.
    """

    message: dict[str, Any]
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    sampled: Sampled | None = None


class Engine(ABC):
    """Generates replies. One instance serves a whole run, many rollouts at once.

    An engine is an async context manager: connections are opened and closed with it.
    """

    model: str
    """The model name that agents are told to ask for."""
    unfit: str | None = None
    """Why nothing that it answers is of use any more: a sentence, with which the run ends."""
    limits_context: bool = False
    """Whether it counts a prompt's tokens before it generates, and so can keep `ChatRequest.max_context`."""

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @property
    def context(self) -> int | None:
        """Tokens of the model's context; None where the engine is not told, or not before `check`."""
        return None

    async def check(self) -> None:  # noqa: B027 (most engines have nothing to ask)
        """Ask once, before any sandbox is opened, whether the engine can serve this run at all.

        Raises:
            EngineError: It cannot, and will not without the user's help.
        """

    def set_policy_version(self, version: int) -> None:
        """Say that the weights behind this engine are those of policy `version` from now on. A trainer calls
        it after each weight sync; the first version is 0. What is sampled from here on carries it.

        Raises:
            EngineError: The engine does not own the tokens, so nothing can be trained from it.
        """
        raise EngineError(
            f"the engine of the model {self.model!r} does not own its tokens, so it cannot serve a trainer: "
            "choose one that does, with --engine vllm"
        )

    def notes(self) -> Sequence[str]:
        """Sentences that must stand wherever results of this engine are shown; empty for a real model.

        An engine whose replies are recordings says so here.
        """
        return ()

    async def end(self, session: EngineSession) -> None:  # noqa: B027 (most engines keep nothing)
        """The rollout of `session` is over and asks no more: free what is kept for it, write what is due.

        Called once per session that was opened, whatever its outcome, after its last `complete` has ended or
        was left to itself. It is not waited for longer than for a call that is cancelled.

        Raises:
            EngineError: What was due could not be done; the rollout fails with it.
        """

    @abstractmethod
    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        """Answer one request with a whole completion; cancelling the call aborts the generation.

        A call that is cancelled and does not end is left to itself after `CLOSING` seconds
        (`swe_core.system.detached`).

        Args:
            emit: Where to send pieces while they are generated, when the agent streams. An engine that
                cannot stream need not call it: the server sends the whole completion as one piece. It raises
                `EngineProtocolError` for what is no mapping.

        Raises:
            ContextOverflow: The prompt leaves no room; the agent is told so in its dialect and may compact.
            EngineError: After the engine's own retries; any other exception counts as one.
        """
