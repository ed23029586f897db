"""The interface of a dialect: a wire format in, a wire format out.

    bytes ─parse→ ParsedRequest ─(gate, engine)→ Completion ─reply→ a body, or events during generation

A new dialect is one module: a `Dialect` whose `parse` turns a request into the canonical form of
`swe_core.api.messages`, results sorted (`sort_results`), and a `Reply` that turns a completion, or its
pieces, into bytes. Add it to `DIALECTS`: the server routes its paths, keeps its streams alive and sends
errors in its shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from swe_core.api.agent import DialectName
from swe_core.api.engine import Completion, Delta
from swe_core.api.messages import Message
from swe_core.errors import ContextOverflow

_QUOTED = 1000
"""Characters at the beginning and at the end of a long error."""

ErrorKind = Literal["invalid_request", "authentication", "rollout_over", "engine", "tool", "server"]


class BadRequest(ValueError):
    """The body is not a request of the dialect; the sentence says why.

    `code` is the dialect's word for the error, where it has one.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        if len(message) > 2 * _QUOTED:  # it quotes the body, and is recorded
            message = f"{message[:_QUOTED]} … {message[-_QUOTED:]}"
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Route:
    """A path of a dialect.

    Args:
        path: Pattern of aiohttp, below the rollout's root, such as "/v1/chat/completions".
        kind: "generate" makes a reply; "count" counts the tokens of a prompt.
        stream: Whether the path asks for a stream; None where the body says.
    """

    path: str
    kind: Literal["generate", "count"] = "generate"
    stream: bool | None = None

    @property
    def unversioned(self) -> str:
        """Return `path` without the version at its beginning, such as "chat/completions"."""
        return self.path.split("/", 2)[2]


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is sent to.

    Args:
        route: The route.
        params: The values in the route's path.
        query: The query's parameters.
        memory: What the dialect keeps of this rollout, such as the responses that later requests name. It
            lives as long as the rollout, so it grows at most linearly with the calls.
    """

    route: Route
    params: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request.

    Args:
        body: The request as a chat-completions body, which is recorded and relayed.
        tools: The tools in chat-completions form; None where there are none.
        max_tokens: Most tokens that the agent wants; None where it sets no limit.
        extra: What the dialect's own `Reply` needs.
    """

    body: Mapping[str, Any]
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    stream: bool
    max_tokens: int | None
    extra: Any = None


@dataclass(frozen=True, slots=True)
class Problem:
    """An error for an agent.

    Args:
        kind: Who caused the error; each dialect has its own word.
        code: OpenAI's machine-readable word, such as "context_length_exceeded".
        overflow: The numbers of a prompt that is too long: clients look for their dialect's own words.
    """

    status: int
    kind: ErrorKind
    message: str
    code: str | None = None
    overflow: ContextOverflow | None = None


class Reply(ABC):
    """The reply to one request, complete or as a stream of events.

    Attributes:
        content_type: That of a stream.
    """

    content_type: ClassVar[str] = "text/event-stream"

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
        name: Its name in records and in `AgentSpec.dialect`.
        routes: Its paths.
        key_header: Where its clients send the key, for errors.
        keepalive: Bytes that keep a waiting stream alive and mean nothing.
    """

    name: ClassVar[DialectName]
    routes: ClassVar[Sequence[Route]]
    key_header: ClassVar[str] = "Authorization: Bearer"
    keepalive: ClassVar[bytes] = b": keepalive\n\n"

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """Return the key that a client offers as `key_header` says; None without one."""
        return bearer(headers)

    @abstractmethod
    def parse(self, raw: bytes | bytearray, target: Target) -> ParsedRequest:
        """Parse a request's body, and validate the parts that this program uses.

        Large bodies are parsed in a worker thread.

        Raises:
            BadRequest: The body is not a request of this dialect, or needs images or the like.
        """

    def kept(self, memory: Mapping[str, Any]) -> int:
        """Return the bytes in `memory` that a small request may repeat; they count as part of its body."""
        return 0

    @abstractmethod
    def reply(self, asked: ParsedRequest, model: str) -> Reply:
        """Return a new reply to `asked`; `model` is the name where the engine gives none."""

    @abstractmethod
    def error(self, problem: Problem) -> bytes:
        """Return the body of an error, JSON, in the shape that the dialect's SDKs show."""

    def count(self, tokens: int) -> bytes:
        """Return the body of the reply to a route of kind "count", JSON."""
        raise NotImplementedError(f"the dialect {self.name!r} has no route that counts tokens")


def bearer(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token in the header `Authorization`."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
