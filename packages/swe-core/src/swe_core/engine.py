"""The model's side: ChatRequest, Completion, Engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Delta = Mapping[str, Any]
"""A piece of an assistant message as in a chat-completions chunk: `choices[0].delta`."""
Emit = Callable[[Delta], Awaitable[None]]
"""Called with each piece while the engine generates; awaiting it is the back-pressure."""


class Usage(BaseModel):
    """Tokens of one completion, as the engine counted them; 0 where it did not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One LLM call of the agent.

    Args:
        body: The chat-completions request body as the agent sent it, validated to hold `messages`.
    """

    body: Mapping[str, Any]

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation so far, OpenAI message dicts."""
        messages: Sequence[Mapping[str, Any]] = self.body["messages"]
        return messages

    @property
    def stream(self) -> bool:
        """Whether the agent asked for a stream."""
        return bool(self.body.get("stream"))


class Completion(BaseModel):
    """One whole reply of the model.

    `message` is an OpenAI assistant message: `role`, `content`, and where present `tool_calls` and
    `reasoning_content`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    message: dict[str, Any]
    finish_reason: str = "stop"
    usage: Usage = Usage()
    model: str = ""


class Engine(ABC):
    """Generates replies. One instance serves a whole run, many rollouts at once.

    An engine is an async context manager: connections are opened and closed with it.
    """

    model: str
    """The model name that agents are told to ask for."""

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def check(self) -> None:  # noqa: B027 (most engines have nothing to ask)
        """Ask once, before any sandbox is opened, whether the engine can serve this run at all.

        Raises:
            EngineError: It cannot, and will not without the user's help.
        """

    def notes(self) -> Sequence[str]:
        """Sentences that must stand wherever results of this engine are shown; empty for a real model.

        An engine whose replies are recordings says so here.
        """
        return ()

    async def end(self, session: EngineSession) -> None:  # noqa: B027 (most engines keep nothing)
        """The rollout of `session` is over and asks no more: free what is kept for it, write what is due.

        Called once per session that was opened, after its last `complete` returned, whatever its outcome.

        Raises:
            EngineError: What was due could not be done; the rollout fails with it.
        """

    @abstractmethod
    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        """Answer one request with a whole completion; cancelling the call aborts the generation.

        Args:
            emit: Where to send pieces while they are generated, when the agent streams. An engine that
                cannot stream need not call it: the server sends the whole completion as one piece.

        Raises:
            EngineError: After the engine's own retries; any other exception counts as one.
        """
