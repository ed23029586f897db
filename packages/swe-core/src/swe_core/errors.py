"""The exceptions that swe-core raises on purpose.

    SweError
    ├── UsageError               the user's input is wrong: options, settings, files (exit code 2)
    │   ├── ConfigError          a setting is unknown, mistyped or missing
    │   ├── PluginError          a plugin is unknown, broken, blocked or ambiguous
    │   └── TaskError            a task row lacks a column or has a wrong type
    ├── SandboxError             the sandbox failed
    │   ├── SandboxTimeout       a command exceeded its time; its tree was killed (also TimeoutError)
    │   ├── SandboxDied          the sandbox no longer exists
    │   │   └── SandboxBroken    code inside broke it
    │   ├── ImageNotFound        the image is missing and cannot be pulled (also LookupError)
    │   └── PolicyRefused        the provider cannot enforce a policy or a limit
    ├── AgentError               the coding agent failed
    │   ├── AgentTimeout         the agent exceeded its time limit
    │   └── NoLLMCall            the agent ended without an LLM call
    ├── EngineError              the engine failed
    │   ├── EngineRefused        the engine refuses all requests: 401, 403, 404
    │   │   └── RequestRefused   the engine refuses one request; another may pass: 400, 413, 422
    │   │       └── ContextOverflow  the prompt leaves no room in the context
    │   ├── EngineUnavailable    unreachable, overloaded or failing, after all retries
    │   ├── EngineProtocolError  the answer does not follow the protocol
    │   └── LedgerError          sampled tokens are unaccounted for
    ├── GraderError              no verdict was reached (never a verdict itself)
    └── RunStopped               equal errors or a failing reward hook ended a run early

Every message is one sentence that names the thing, the expectation and the remedy. The four middle branches
are the *boundaries* of a rollout. A plugin may raise any exception: `boundary_of` classifies it by the place
where it was raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Boundary = Literal["sandbox", "agent", "engine", "grader"]


class SweError(Exception):
    """Base of every exception that swe-core raises on purpose."""


class UsageError(SweError):
    """The user's input is wrong. The command line prints the sentence and exits with 2."""


class ConfigError(UsageError):
    """A setting is unknown, mistyped or missing."""


class PluginError(UsageError):
    """A plugin is unknown, broken, blocked or ambiguous."""


class TaskError(UsageError):
    """A task row lacks a column or has a wrong type.

    The text has several lines where rows are invalid in several ways: one sentence for each.
    """


class SandboxError(SweError):
    """The sandbox failed."""


class SandboxTimeout(SandboxError, TimeoutError):
    """A command exceeded its time. Its process tree inside the sandbox was killed."""


class SandboxDied(SandboxError):
    """The sandbox no longer exists or executes no commands."""


class SandboxBroken(SandboxDied):
    """Code inside broke the sandbox, for example by removing files that the sandbox needs.

    A provider raises it only if its service or the kernel, and not the sandbox, says that code inside is the
    cause. If an agent or a patch is the cause, the rollout is unresolved (`swe_core.api.blame`).
    """


class ImageNotFound(SandboxError, LookupError):
    """The image is missing and cannot be pulled."""


class PolicyRefused(SandboxError):
    """The provider cannot enforce a network policy or a limit, and opens no sandbox."""


class AgentError(SweError):
    """The coding agent failed."""


class AgentTimeout(AgentError):
    """The agent did not end within its time limit (`limits.agent`)."""


class NoLLMCall(AgentError):
    """The agent ended without an LLM call through the rollout's endpoint."""


class EngineError(SweError):
    """The engine failed.

    `status` is the HTTP status of the answer to the agent. Clients do not retry it (as they do 429 and 5xx),
    because the engine has retried before it raises.
    """

    status: int = 424


class EngineRefused(EngineError):
    """The engine refuses all requests (401, 403, 404)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RequestRefused(EngineRefused):
    """The engine refuses one request (400, 413, 422), for example because its prompt is too long.

    This is the only failure of an engine that does not end the rollout: the agent gets the engine's message,
    and may compact its history and send another request.
    """


class ContextOverflow(RequestRefused):
    """The prompt leaves no room in the context.

    Args:
        prompt_tokens: Tokens of the prompt.
        limit: Tokens of the context.
        or_more: Whether counting stopped before the end of the prompt.
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
    """The engine's answer does not follow its protocol."""


class LedgerError(EngineError):
    """Sampled tokens are unaccounted for: sampled is not trainable + dropped."""


class GraderError(SweError):
    """No verdict was reached. This is never a verdict and has no reward."""


class RunStopped(SweError):
    """Equal errors or a failing reward hook ended a run early.

    Its finished rollouts are kept, and it can be resumed.
    """


_BRANCH: tuple[tuple[type[SweError], Boundary], ...] = (
    (SandboxError, "sandbox"),
    (AgentError, "agent"),
    (EngineError, "engine"),
    (GraderError, "grader"),
)


def boundary_of(error: BaseException, default: Boundary) -> Boundary:
    """Return the boundary of `error`: that of its branch, else `default`, where it was raised."""
    return next((name for kind, name in _BRANCH if isinstance(error, kind)), default)


@contextmanager
def raised_as(kind: type[SweError]) -> Iterator[None]:
    """Raise exceptions of a plugin in the context as `kind`, which its contract names."""
    try:
        yield
    except kind:
        raise
    except Exception as error:  # a plugin may raise anything
        raise kind(sentence(error)) from error


def sentence(error: BaseException) -> str:
    """Return the text of `error` for users: a `SweError` as it is, any other exception with its type.

    The text is valid UTF-8, even if `error` quotes a file name that is not.
    """
    try:
        text = " ".join(str(error).split()).encode(errors="backslashreplace").decode()
    except Exception:  # a plugin's exception may fail even at this
        text = ""
    if isinstance(error, SweError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
