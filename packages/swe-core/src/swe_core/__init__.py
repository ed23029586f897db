"""swe-core: train and evaluate models inside coding agents you did not write.

The names below are what plugins are made of; the exceptions that they raise are in `swe_core.errors`.
Importing this package imports nothing: a name is imported at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "swe_core.api.agent": ("AgentContext", "AgentEvent", "AgentExit", "AgentSpec", "HostTool"),
    "swe_core.api.component": ("Component", "Config"),
    "swe_core.api.engine": (
        *("ChatRequest", "Completion", "Delta", "Emit", "Engine", "EngineSession", "Usage"),
    ),
    "swe_core.api.grader": ("Grade", "Graded", "Grader"),
    "swe_core.api.records": ("Failure", "Rollout", "Turn"),
    "swe_core.api.sandbox": (
        *("Asset", "ExecResult", "Process", "Sandbox", "SandboxEntry", "SandboxProvider", "SandboxSpec"),
    ),
    "swe_core.api.task": ("Task", "TaskSource"),
    "swe_core.api.worker": ("RolloutWorker",),
    "swe_core.plugins.hookspecs": ("hookimpl",),
}


def __getattr__(name: str) -> object:
    """Return a public name, and keep it."""
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
