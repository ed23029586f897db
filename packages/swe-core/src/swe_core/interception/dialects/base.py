"""The interface of a dialect: a wire format in, a wire format out.

    bytes ─parse→ ParsedRequest ─(gate, engine)→ Completion ─reply→ a body, or events during generation

A new dialect is one module: a `Dialect` whose `parse` turns a request into the canonical form of
`swe_core.api.messages`, and a `Reply` that turns a completion, or its pieces, into bytes. Add it to
`DIALECTS`: the server routes its path, keeps its streams alive and sends errors in its shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from swe_core.api.engine import Completion, Delta
from swe_core.api.messages import Message

ErrorKind = Literal["invalid_request", "authentication", "rollout_over", "engine", "tool", "server"]


class BadRequest(ValueError):
    """The body is not a request of the dialect; the sentence says why."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request.

    Args:
        body: The request as a chat-completions body, which is recorded and relayed.
        tools: The tools in chat-completions form; None where there are none.
        max_tokens: Most tokens that the agent wants; None where it sets no limit.
    """

    body: Mapping[str, Any]
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    stream: bool
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Problem:
    """An error for an agent.

    Args:
        kind: Who caused the error; each dialect has its own word.
        code: Machine-readable word of every dialect, such as "context_length_exceeded".
    """

    status: int
    kind: ErrorKind
    message: str
    code: str | None = None


class Reply(ABC):
    """The reply to one request, complete or as a stream of events."""

    @abstractmethod
    def body(self, completion: Completion) -> bytes:
        """Return the complete reply, JSON."""

    @abstractmethod
    def delta(self, delta: Delta) -> bytes:
        """Return the events of one piece."""

    @abstractmethod
    def end(self, completion: Completion) -> bytes:
        """Return the events after the last piece; without pieces, the complete message first."""

    @abstractmethod
    def failed(self, problem: Problem) -> bytes:
        """Return the event that ends a stream with an error."""


class Dialect(ABC):
    """One wire format. Stateless: one instance serves all requests.

    Attributes:
        path: Path of requests, below an agent's base URL.
        keepalive: Bytes that keep a waiting stream alive and mean nothing.
    """

    path: ClassVar[str]
    keepalive: ClassVar[bytes] = b": keepalive\n\n"

    @abstractmethod
    def parse(self, raw: bytes | bytearray) -> ParsedRequest:
        """Parse a request's body, and validate the parts that this program uses.

        Raises:
            BadRequest: The body is not a request of this dialect, or needs images or the like.
        """

    @abstractmethod
    def reply(self, asked: ParsedRequest, model: str) -> Reply:
        """Return a new reply to `asked`; `model` is the name where the engine gives none."""

    @abstractmethod
    def error(self, problem: Problem) -> bytes:
        """Return the body of an error, JSON, in the shape that the dialect's SDKs show."""

    @abstractmethod
    def models(self, model: str) -> bytes:
        """Return the list of the one model, JSON."""
