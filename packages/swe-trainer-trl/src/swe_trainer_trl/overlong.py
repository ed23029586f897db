"""What a training makes of attempts that were cut short, or whose agent failed.

The settings are `worker.trl.overlong` and `worker.trl.agent_errors`.
"""

from __future__ import annotations

from typing import Literal

from swe_core.api.records import Rollout
from swe_core.api.worker import FinishedRollout

Overlong = Literal["grade", "exclude", "zero"]
"""grade: such an attempt counts as graded; exclude: it is left out of its group; zero: its reward is 0."""

AgentErrors = Literal["zero", "drop"]
"""zero: an attempt whose agent failed has its verdict, or 0 without one; drop: it counts nowhere."""


def counted_reward(finished: FinishedRollout, agent_errors: AgentErrors) -> float | None:
    """Return the reward that an attempt has in its group; None if it counts nowhere.

    Otherwise a policy could fail its agent instead of its task. An attempt of which nothing was sampled is no
    work of the policy. Errors of the sandbox, the engine and the grader count nowhere.
    """
    rollout = finished.rollout
    if rollout.reward is not None:
        return None if agent_errors == "drop" and rollout.agent_failure is not None else rollout.reward
    failed = rollout.failure is not None and rollout.failure.boundary == "agent"
    sampled = bool(finished.chains) or (rollout.ledger is not None and rollout.ledger.sampled > 0)
    return 0.0 if agent_errors == "zero" and rollout.outcome == "error" and failed and sampled else None


def is_overlong(rollout: Rollout) -> bool:
    """Return whether a budget ended the agent's run, or a limit of tokens cut the policy's last reply.

    A cut reply with others after it is no end: the agent went on. A time-out of the agent (`limits.agent`) is
    none either: `counted_reward` says what becomes of it.
    """
    return rollout.ended_by is not None or rollout.finish_reason == "length"
