"""Engine: generates replies; ChatRequest, Completion, Sampled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from swe_core.api.messages import Message
from swe_core.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Delta = Mapping[str, Any]
"""A piece of an assistant message, as `choices[0].delta` in a chat-completions chunk."""
Emit = Callable[[Delta], Awaitable[None]]
"""Callback for each piece during generation. Awaiting it is the back-pressure. A piece may be read later or
never, so an engine may build it lazily."""


class Usage(BaseModel):
    """Token counts of one completion, from the engine; 0 where unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True)
class EngineSession:
    """The rollout behind a request. An engine may keep state per session, such as a position in a recording.

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
"""How a prompt became ids. "bridge": a renderer of the model family rendered only the new messages;
"template": a prefix-preserving template did; "full": the whole conversation was rendered."""

ForkCause = Literal["start", "branch", "rewritten", "template", "retokenised", "truncated", "unknown"]
"""Why a turn extends no chain. "start": it starts a conversation; "branch": another turn already extends its
history; "rewritten": the client changed its history; "template": the template renders old messages
differently; "retokenised": the same text has other ids; "truncated": the previous reply was cut and
cannot be closed."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The exact tokens of one turn.

    Args:
        extends: Earlier turn of the session whose ids (prompt and completion) start this prompt; None where
            there is none or the engine does not know.
        prompt_ids: Ids of the prompt after those of `extends`, int32 [P]; all ids where that is None.
        completion_ids: Sampled ids including the stop token, int32 [C].
        logprobs: Natural log-probability of each sampled id under the sampling distribution, float32 [C];
            NaN where the server gave none.
        versions: Policy version that sampled each id, int32 [C].
        rendered: How the prompt became ids.
        cause: Why the turn extends no chain; None where `extends` is set.
        dropped: Why none of these tokens may be trained, such as "forced"; None where they may. Later turns
            still have them as context.
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
    """The tokens that a call has sampled so far, so that those of an aborted or failed call are counted.

    During generation an engine sets `sampled`, or calls `follow` once.

    Attributes:
        trouble: Why the engine is trying again; None where it is not. A call without a piece that the wall
            budget cuts is then an error of the engine.
    """

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._make: Callable[[], Sampled | None] = lambda: None

    @property
    def sampled(self) -> Sampled | None:
        """Return the tokens so far; None where there are none."""
        return self._make()

    @sampled.setter
    def sampled(self, sampled: Sampled | None) -> None:
        self._make = lambda: sampled

    def follow(self, make: Callable[[], Sampled | None]) -> None:
        """Compute `sampled` with `make` on each read, at no cost per token."""
        self._make = make


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One LLM call of the agent.

    Args:
        body: A chat-completions request body: the agent's own where it speaks that dialect.
        messages: The conversation so far in canonical form (`swe_core.api.messages`).
        tools: The tools in chat-completions form; None where there are none.
        max_tokens: Maximum sampled tokens: the smaller of the agent's limit and the rest of its budget; None
            is no limit.
        max_context: Maximum tokens of prompt and completion together; None is the model's limit.
        progress: Receives the tokens that the engine has sampled so far.
        as_told: Redacts a message as the agent receives it. An engine that looks up its replies in later
            histories stores the redacted ones.
        auxiliary: What the call is for, if it is not the policy's work (`AgentSpec.auxiliary`).
        summary: Whether it asks for the summary of a compaction (`AgentSpec.summary`).
    """

    body: Mapping[str, Any]
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    max_tokens: int | None = None
    max_context: int | None = None
    progress: Progress = field(default_factory=Progress)
    as_told: Callable[[Message], Message] = lambda message: message
    auxiliary: str | None = None
    summary: bool = False

    @property
    def stream(self) -> bool:
        """Return whether the agent requests a stream."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True, slots=True)
class Completion:
    """One complete reply of the model.

    Args:
        message: An OpenAI assistant message: `role`, `content`, optionally `tool_calls` and
            `reasoning_content`.
        finish_reason: Why it ended: "stop", "length" (cut at a limit) or "tool_calls".
        usage: Token counts.
        model: The model's name, where the engine reports it.
        sampled: The exact tokens; None from an engine that does not record tokens.
        stopped_by: The text of the request's `stop` that ended it, where the engine knows it.
    """

    message: dict[str, Any]
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    sampled: Sampled | None = None
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens of an engine's tokenizer.

    Args:
        tokenizer: Its name, or the path of its directory.
        tokens: By id: the bytes that the token stands for in a text; None where no token has the id.
        special: Id → name of each token that a text contains as a whole, such as `<|im_end|>`.
    """

    tokenizer: str
    tokens: Sequence[bytes | None]
    special: Mapping[int, str]


class Engine(ABC):
    """Generates replies. One instance serves a whole run, many rollouts at once.

    An engine is an async context manager that opens and closes its connections.
    """

    model: str
    """The model name that agents use in LLM calls."""
    unfit: str | None = None
    """Why the engine can no longer serve the run, one sentence; the run then ends with it."""
    without_calls: str | None = None
    """Why no tool call of the model can be read, one sentence; known after `check`. Agents that need tools
    (`AgentSpec.calls_tools`) then cannot run."""
    limits_context: bool = False
    """Whether it counts prompt tokens before it generates and so keeps `ChatRequest.max_context`."""
    sampling: Mapping[str, float] | None = None
    """How it samples, whatever an agent asks for: temperature, top_p, top_k (-1 for all), min_p and the
    penalties, by vLLM's names. None if it does not own its tokens."""

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @property
    def context(self) -> int | None:
        """Return the size of the model's context, tokens; None where unknown or before `check`."""
        return None

    async def check(self) -> None:  # noqa: B027 (most engines have nothing to ask)
        """Check, once before any sandbox is opened, that the engine can serve the run.

        Raises:
            EngineError: The engine cannot serve the run until the user acts.
        """

    def set_policy_version(self, version: int) -> None:
        """Set the policy version of all tokens from now on. A trainer calls it after each weight sync.

        Args:
            version: Version of the weights; the first is 0.

        Raises:
            EngineError: The engine does not record tokens, so it cannot serve a trainer.
        """
        raise EngineError(
            f"the engine of the model {self.model!r} does not own its tokens, so it cannot serve a trainer: "
            "choose one that does, with --engine vllm"
        )

    def take_out(self, url: str) -> Collection[str]:
        """Give no more rollouts to the server of `url`: it is dead, or lacks the policy's weights.

        A trainer with several servers calls this, and `put_in` when the server is back. An engine that asks
        one server may ignore both.

        Returns:
            The ids of the open rollouts on that server. The caller ends them.
        """
        return ()

    def put_in(self, url: str) -> None:  # noqa: B027 (see `take_out`)
        """Give rollouts to the server of `url`, which has the policy's weights."""

    def vocabulary(self) -> TokenTable | None:
        """Return the tokens of the tokenizer; None from an engine that does not own its tokens.

        Readers of a run show ids as text with it. Called once per run directory, after `check`, in a thread.
        """
        return None

    def notes(self) -> Sequence[str]:
        """Return sentences to show with all results of this engine, such as that its replies are recordings.

        Empty for a real model.
        """
        return ()

    async def end(self, session: EngineSession) -> None:  # noqa: B027 (most engines keep nothing)
        """End the session of a finished rollout: free its state and write pending data.

        Called once per session, whatever its outcome, after its last `complete` has ended or was abandoned.
        The caller waits `CLOSING` seconds at most (`swe_core.system.detached`).

        Raises:
            EngineError: The session cannot be ended properly. The rollout fails with this error.
        """

    async def count_tokens(self, request: ChatRequest, session: EngineSession) -> int | None:
        """Return the tokens of the prompt that `complete` would send; None if the engine cannot count them.

        Raises:
            RequestRefused: The chat template refuses the conversation.
        """
        return None

    @abstractmethod
    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        """Answer one request with a complete reply. Cancellation aborts the generation.

        A cancelled call that does not end is abandoned after `CLOSING` seconds (`swe_core.system.detached`).

        Args:
            emit: Receives pieces during generation, when the agent requests a stream. An engine that cannot
                stream need not call it: the server then sends the complete reply as one piece. It raises
                `EngineProtocolError` for a piece that is no mapping.

        Raises:
            ContextOverflow: The prompt leaves no room. The agent gets this error in its dialect and may
                compact its history.
            EngineError: The engine's own retries have failed. Any other exception counts as one.
        """
