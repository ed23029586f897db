"""swe-core: train and evaluate models inside coding agents you did not write.

The names below are what plugins are made of; the exceptions that they raise are in `swe_core.errors`.
Importing this package imports nothing heavy.
"""

from swe_core.api.agent import AgentContext, AgentEvent, AgentExit, AgentSpec, HostTool
from swe_core.api.component import Component, Config
from swe_core.api.engine import ChatRequest, Completion, Delta, Emit, Engine, EngineSession, Usage
from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.records import Failure, Rollout, Turn
from swe_core.api.sandbox import (
    Asset,
    ExecResult,
    Process,
    Sandbox,
    SandboxEntry,
    SandboxProvider,
    SandboxSpec,
)
from swe_core.api.task import Task, TaskSource
from swe_core.api.worker import RolloutWorker
from swe_core.plugins.hookspecs import hookimpl

__all__ = [
    "AgentContext",
    "AgentEvent",
    "AgentExit",
    "AgentSpec",
    "Asset",
    "ChatRequest",
    "Completion",
    "Component",
    "Config",
    "Delta",
    "Emit",
    "Engine",
    "EngineSession",
    "ExecResult",
    "Failure",
    "Grade",
    "Graded",
    "Grader",
    "HostTool",
    "Process",
    "Rollout",
    "RolloutWorker",
    "Sandbox",
    "SandboxEntry",
    "SandboxProvider",
    "SandboxSpec",
    "Task",
    "TaskSource",
    "Turn",
    "Usage",
    "hookimpl",
]
