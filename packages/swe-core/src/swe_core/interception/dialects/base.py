"""The seam on which dialects stand: what the server needs of a wire format, and what it gives.

    bytes ─parse→ ParsedRequest ─(gate, engine)→ Completion ─reply→ a body, or events during generation

A new dialect is one module: a `Dialect` whose `parse` turns a request into the canonical form of
`swe_core.api.messages`, and a `Reply` that turns a completion, or its pieces as they come, into bytes. It is
added to `DIALECTS`, and the server routes its path, keeps its streams alive and tells errors in its shape.
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
    """The body is no request of the dialect; the sentence says why."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """What a request asks for.

    Args:
        body: It as the body of a chat-completions request: what is recorded, and what engines relay.
        messages: The conversation in canonical form.
        tools: The tools offered, chat-completions form; None where there are none.
        stream: Whether the reply is wanted as events.
        max_tokens: Tokens that the agent wants at most; None where it does not say.
    """

    body: Mapping[str, Any]
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    stream: bool
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as an agent is told it.

    Args:
        status: HTTP status.
        kind: Whose it is; a dialect has its own word for each.
        message: One sentence.
        code: A machine's word that agents of every dialect may look for, such as "context_length_exceeded".
    """

    status: int
    kind: ErrorKind
    message: str
    code: str | None = None


class Reply(ABC):
    """The reply to one request, whole or as a stream of events. Not shared between requests."""

    @abstractmethod
    def body(self, completion: Completion) -> bytes:
        """The whole reply, JSON."""

    @abstractmethod
    def delta(self, delta: Delta) -> bytes:
        """The events of one piece."""

    @abstractmethod
    def end(self, completion: Completion) -> bytes:
        """The events after the last piece; where none was sent, the whole message before them."""

    @abstractmethod
    def failed(self, problem: Problem) -> bytes:
        """The event that ends a stream which has begun."""


class Dialect(ABC):
    """One wire format. Stateless: one instance serves all requests.

    Attributes:
        path: Where requests are posted, below an agent's base URL.
        keepalive: What keeps a waiting stream alive and says nothing.
    """

    path: ClassVar[str]
    keepalive: ClassVar[bytes] = b": keepalive\n\n"

    @abstractmethod
    def parse(self, raw: bytes | bytearray) -> ParsedRequest:
        """The body of a request, validated as far as this program relies on it.

        Raises:
            BadRequest: It is no request of this dialect, or wants what no engine here gives, such as images.
        """

    @abstractmethod
    def reply(self, asked: ParsedRequest, model: str) -> Reply:
        """A new reply to `asked`; `model` stands for what the engine leaves unsaid."""

    @abstractmethod
    def error(self, problem: Problem) -> bytes:
        """The body of an error, JSON, in the shape that the dialect's SDKs show."""

    @abstractmethod
    def models(self, model: str) -> bytes:
        """The list of the one model there is, JSON."""
