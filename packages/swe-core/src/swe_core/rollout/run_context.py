"""The live objects that the rollouts of a run share."""

from __future__ import annotations

from dataclasses import dataclass

from swe_core.api.agent import AgentSpec
from swe_core.api.engine import Engine
from swe_core.api.grader import Grader
from swe_core.api.sandbox import SandboxProvider
from swe_core.interception.server import InterceptionServer
from swe_core.system.redaction import Redactor


@dataclass(frozen=True, slots=True)
class BlackBox:
    """Black-box mode: where the agent calls the provider itself, with a key that the user hands over."""

    url: str
    key: str


@dataclass(frozen=True, slots=True)
class RunContext:
    """The live objects that the rollouts of a run share; `gate` is the host's way to answer LLM calls."""

    agent: AgentSpec
    provider: SandboxProvider
    grader: Grader
    gate: tuple[InterceptionServer, Engine] | None
    black_box: BlackBox | None
    redactor: Redactor
