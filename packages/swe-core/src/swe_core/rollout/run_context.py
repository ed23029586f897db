"""RunContext: the live objects that the rollouts of a run share."""

from __future__ import annotations

from dataclasses import dataclass, field

from swe_core.api.agent import AgentSpec
from swe_core.api.engine import Engine
from swe_core.api.grader import Grader
from swe_core.api.sandbox import SandboxProvider
from swe_core.interception.server import InterceptionServer
from swe_core.rollout.task_environment import TaskEnvironments
from swe_core.system.redaction import Redactor


@dataclass(frozen=True, slots=True)
class BlackBox:
    """Black-box mode: the agent calls the provider at `url` itself, with the user's key."""

    url: str
    key: str


@dataclass(frozen=True, slots=True)
class RunContext:
    """The live objects that the rollouts of a run share.

    Args:
        gate: The server that the agents call, and the engine that answers; None if the host answers no calls.
        black_box: Set in black-box mode only.
        environments: What the set-up lines of tasks export.
    """

    agent: AgentSpec
    provider: SandboxProvider
    grader: Grader
    gate: tuple[InterceptionServer, Engine] | None
    black_box: BlackBox | None
    redactor: Redactor
    environments: TaskEnvironments = field(default_factory=TaskEnvironments)
