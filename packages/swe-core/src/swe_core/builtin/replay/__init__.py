"""The engine `replay`: answers from a recording."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from swe_core.api.component import Component, Config
from swe_core.api.engine import Engine
from swe_core.plugins.hookspecs import hookimpl


class ReplayConfig(Config):
    """`[engine.replay]`."""

    file: Path | None = Field(default=None, description="recording, one rollout a line")


def _create(config: ReplayConfig) -> Engine:
    from swe_core.builtin.replay.engine import ReplayEngine

    return ReplayEngine(config)


@hookimpl
def swe_engines() -> Iterable[Component[Engine]]:
    return [Component("replay", _create, ReplayConfig, "answers from a recording (no model at all)")]
