"""The grader "swe": a patch is graded in a fresh sandbox by the task's own tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from swe_core.api.component import Component, Config
from swe_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from swe_core.api.grader import Grader


class SweGraderConfig(Config):
    """Settings of the grader "swe"."""

    log_mb: int = Field(
        default=16, gt=0, description="MiB kept of the test log, from its start and (most of it) its end"
    )
    suspicious: Literal["mark", "unresolved"] = Field(
        default="mark",
        description="what becomes of a patch that passes and adds constructs that cheats are made of: it is "
        "marked in its grade, or it is unresolved (the default of a training)",
    )


def _create(config: SweGraderConfig) -> Grader:
    from swe_core.builtin.swe.grader import SweGrader

    return SweGrader(config.log_mb * 1024 * 1024, refuses=config.suspicious == "unresolved")


@hookimpl
def swe_graders() -> Iterable[Component[Grader]]:
    """Offer the grader "swe"."""
    return [Component("swe", _create, SweGraderConfig, "the task's own tests, in a fresh sandbox")]
