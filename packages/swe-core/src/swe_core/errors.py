"""The exceptions that swe-core raises on purpose.

    SweError
    ├── UsageError               the user's input: options, configuration, files (exit code 2)
    │   ├── ConfigError          a setting is unknown, mistyped or missing
    │   ├── PluginError          a plugin is unknown, broken, blocked or ambiguous
    │   └── TaskError            a task row is missing something or holds the wrong type
    ├── SandboxError             where the code runs failed
    │   ├── SandboxTimeout       a command outlived its time; its tree was killed (also TimeoutError)
    │   ├── SandboxDied          the sandbox itself is gone
    │   │   └── SandboxBroken    because of what the code inside did to it
    │   ├── ImageNotFound        the image is absent and cannot be pulled (also LookupError)
    │   └── PolicyRefused        the provider cannot enforce what was asked
    ├── AgentError               the coding agent failed
    │   └── NoLLMCall            it ended without one call through the endpoint
    ├── EngineError              the model's side failed
    │   ├── EngineRefused        it said no, and will say no again: 401, 403, 404
    │   │   └── RequestRefused   it said no to this one request; another may pass: 400, 413, 422
    │   │       └── ContextOverflow  its prompt leaves no room in the context
    │   ├── EngineUnavailable    unreachable, overloaded or failing, after all retries
    │   ├── EngineProtocolError  it answered something that is not its protocol
    │   └── LedgerError          sampled tokens are not all accounted for
    └── GraderError              the verdict could not be reached (never a verdict itself)

Every message is one sentence that names the thing, what was expected and what to do. The four middle
branches are the *boundaries* of a rollout. A plugin may raise any exception: the boundary that records it
(`boundary_of`) classifies it by where it happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Boundary = Literal["sandbox", "agent", "engine", "grader"]


class SweError(Exception):
    """Base of every exception that swe-core raises on purpose."""


class UsageError(SweError):
    """The user's input is wrong; the command line prints the sentence and exits with 2."""


class ConfigError(UsageError):
    """A setting is unknown, mistyped or missing."""


class PluginError(UsageError):
    """A plugin is unknown, broken, blocked or ambiguous."""


class TaskError(UsageError):
    """A task row lacks something or holds the wrong type."""


class SandboxError(SweError):
    """Where the code runs failed."""


class SandboxTimeout(SandboxError, TimeoutError):
    """A command outlived its time; its process tree inside the sandbox was killed."""


class SandboxDied(SandboxError):
    """The sandbox itself is gone: nothing can be executed in it any more."""


class SandboxBroken(SandboxDied):
    """The code inside broke the sandbox, say by removing what the sandbox itself needs.

    Only for what a provider knows to be the deed of that code: where an agent did it, the rollout is
    unresolved and not an error.
    """


class ImageNotFound(SandboxError, LookupError):
    """The image is absent and cannot be pulled."""


class PolicyRefused(SandboxError):
    """The provider cannot enforce a policy that was asked for, so it refuses to open the sandbox."""


class AgentError(SweError):
    """The coding agent failed."""


class NoLLMCall(AgentError):
    """The agent ended without one LLM call through the rollout's endpoint."""


class EngineError(SweError):
    """The model's side failed.

    `status` is the HTTP status that the agent is answered with. It is none of those that clients retry
    (429, 5xx): the engine has made its own retries when it raises.
    """

    status: int = 424


class EngineRefused(EngineError):
    """The engine said no and will say no again (401, 403, 404)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RequestRefused(EngineRefused):
    """The engine refuses this one request (400, 413, 422), say because its context is too long.

    The only failure of an engine that does not end the rollout: the agent is told the engine's own words,
    and may compact its history and ask again.
    """


class ContextOverflow(RequestRefused):
    """The prompt leaves no room in the context.

    Args:
        prompt_tokens: Tokens of the prompt.
        limit: Tokens of the context.
        or_more: Whether it was refused before all its tokens were counted.
    """

    def __init__(self, prompt_tokens: int, limit: int, *, or_more: bool = False) -> None:
        # The words that agents look for in OpenAI's and vLLM's own message.
        found = f"{prompt_tokens} tokens{' or more' if or_more else ''}"
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
            f"{found}. Please reduce the length of the messages.",
            400,
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class EngineUnavailable(EngineError):
    """The engine is unreachable, overloaded or failing, after all retries."""


class EngineProtocolError(EngineError):
    """The engine answered something that is not its protocol."""


class LedgerError(EngineError):
    """Sampled tokens are not all accounted for: sampled is not trained + dropped."""


class GraderError(SweError):
    """The verdict could not be reached. Never a verdict: it carries no reward."""


_BRANCH: tuple[tuple[type[SweError], Boundary], ...] = (
    (SandboxError, "sandbox"),
    (AgentError, "agent"),
    (EngineError, "engine"),
    (GraderError, "grader"),
)


def boundary_of(error: BaseException, default: Boundary) -> Boundary:
    """The boundary that `error` belongs to: its own branch, else `default`, where it happened."""
    return next((name for kind, name in _BRANCH if isinstance(error, kind)), default)


@contextmanager
def raised_as(kind: type[SweError]) -> Iterator[None]:
    """Raise what a plugin raises in the context as a `kind`, the one that its contract names."""
    try:
        yield
    except kind:
        raise
    except Exception as error:  # a plugin may raise anything
        raise kind(sentence(error)) from error


def sentence(error: BaseException) -> str:
    """The text of `error` for people: our own sentence as it is, any other exception with its type. It can be
    written as UTF-8, also where `error` quotes a file name that cannot."""
    try:
        text = " ".join(str(error).split()).encode(errors="backslashreplace").decode()
    except Exception:  # a plugin's exception may fail even at this
        text = ""
    if isinstance(error, SweError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
