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
    """`[grader.swe]`."""

    reward: Literal["binary", "fraction"] = Field(
        default="binary",
        description="binary: 1 resolved, else 0; fraction: an unresolved patch that breaks nothing earns the "
        "share of FAIL_TO_PASS tests that it fixes",
    )

    log_mb: int = Field(
        default=16, gt=0, description="MiB of the test log to keep: its start and mostly its end"
    )
    suspicious: Literal["mark", "unresolved"] = Field(
        default="mark",
        description="verdict on a passing patch with suspicious code; trl: `unresolved`",
    )


def _create(config: SweGraderConfig) -> Grader:
    from swe_core.builtin.swe.grader import SweGrader

    return SweGrader(
        config.log_mb * 1024 * 1024,
        refuses=config.suspicious == "unresolved",
        pays_parts=config.reward == "fraction",
    )


@hookimpl
def swe_graders() -> Iterable[Component[Grader]]:
    return [Component("swe", _create, SweGraderConfig, "the task's own tests, in a fresh sandbox")]
