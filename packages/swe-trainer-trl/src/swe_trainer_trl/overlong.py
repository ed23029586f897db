"""What a training makes of attempts that were cut short: `worker.trl.overlong`."""

from __future__ import annotations

from typing import Literal

from swe_core.api.records import Rollout

Overlong = Literal["grade", "exclude", "zero"]
"""grade: such an attempt counts as graded; exclude: it is left out of its group; zero: its reward is 0."""


def is_overlong(rollout: Rollout) -> bool:
    """Return whether a budget ended the agent's run, or a limit of tokens cut the policy's last reply.

    A cut reply with others after it is no end: the agent went on. A time-out of the agent (`limits.agent`) is
    an error without a verdict, which counts nowhere.
    """
    return rollout.ended_by is not None or rollout.finish_reason == "length"
