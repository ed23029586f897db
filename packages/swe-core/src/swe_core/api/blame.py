"""Policy or infrastructure: the one rule that says whom a failure is laid to. docs/grading.md explains it.

    where, and what failed                                     counts as
    the agent, before its first answered call                  infrastructure: the policy has done nothing yet
    the agent after it: crash, signal, time limit, no answer   policy: the patch is graded
    `SandboxBroken` or `SandboxTimeout` after it               policy: without a patch the reward is 0
    any other failure of the sandbox, the engine               infrastructure
    a grading sandbox, before the patch is in it               infrastructure
    `SandboxBroken`, `SandboxTimeout`, a tree or log that
      cannot be made or read, `limits.grade`                   policy, if the reference could be graded
    another failure of the sandbox with the patch              the same, if it comes twice

Evidence comes from outside: a provider raises `SandboxBroken` only where its own service, or the kernel, says
that the container ended by itself or ran out of its memory. What cannot be told apart is infrastructure, and
the report counts it (`may_be_policys`).
"""

from __future__ import annotations

from typing import Protocol

from swe_core.errors import Boundary, SandboxBroken, SandboxError, SandboxTimeout, boundary_of


class _Failure(Protocol):
    @property
    def boundary(self) -> Boundary: ...


class _Usage(Protocol):
    @property
    def completion_tokens(self) -> int: ...


class _Ended(Protocol):
    @property
    def outcome(self) -> str: ...
    @property
    def failure(self) -> _Failure | None: ...
    @property
    def usage(self) -> _Usage: ...


def is_policys(error: Exception, where: Boundary, *, answered: bool) -> bool:
    """Return whether a failure of the agent's run, or of the export of its patch, counts as the policy's.

    Args:
        where: The boundary of an error that names none.
        answered: Whether the engine has answered a call of the policy's work.
    """
    inside = isinstance(error, SandboxBroken | SandboxTimeout) or boundary_of(error, where) == "agent"
    return answered and inside


def is_unclear(error: Exception) -> bool:
    """Return whether a failure of a grading sandbox with the patch in it may be the host's as well.

    So may an error of this process's own files and memory.
    """
    inside = isinstance(error, SandboxBroken | SandboxTimeout)  # the latter is an OSError, too
    return isinstance(error, SandboxError | OSError | MemoryError) and not inside


def may_be_policys(rollout: _Ended) -> bool:
    """Return whether the policy may have caused the error of a finished rollout.

    The engine had answered it, and the failure is not the engine's.
    """
    failure = rollout.failure
    if rollout.outcome != "error" or failure is None or failure.boundary == "engine":
        return False
    return rollout.usage.completion_tokens > 0
