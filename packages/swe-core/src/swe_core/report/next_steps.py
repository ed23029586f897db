"""What to do after a run: commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from swe_core.api.records import Rollout
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.run_list import State
from swe_core.system.natural_order import natural_key


class Step(NamedTuple):
    """A command, and what it is for."""

    purpose: str
    command: str


def is_interrupted(rollout: Rollout) -> bool:
    """Return whether a signal cancelled `rollout`, so that a resumed run runs it again."""
    return rollout.outcome == "cancelled" and rollout.cancelled_as is None


def in_order(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return `rollouts` in the natural order of their tasks and attempts."""
    return sorted(rollouts, key=lambda rollout: (natural_key(rollout.task_id), rollout.attempt))


def next_steps(run: RunDirectory, rollouts: Sequence[Rollout], state: State) -> list[Step]:
    """Return the commands that may come next, the most important first.

    Args:
        rollouts: The finished rollouts of `run`.
        state: Its state, or how it has just ended.
    """
    steps = []
    evaluates = run.info.planned is not None
    failed = [one for one in in_order(rollouts) if one.outcome in ("unresolved", "error")]
    errors = sum(rollout.outcome == "error" for rollout in rollouts)
    if state == "interrupted":
        steps.append(Step("the rest", _command("run", "--resume", run)))
    if errors and evaluates and state != "running":
        which = "the rest and the errors" if state == "interrupted" else "the errors again"
        steps.append(Step(which, _command("run", "--resume", run, "--retry-errors")))
    if failed:
        steps.append(Step("the first failure", _command("show", run, failed[0].id)))
    elif rollouts:
        steps.append(Step("a rollout", _command("show", run, in_order(rollouts)[0].id)))
    steps.append(Step("in a browser", _command("view", run)))
    return steps


def _command(*words: str | RunDirectory) -> str:
    return shlex.join(["swe-core", *(word if isinstance(word, str) else str(word.path) for word in words)])
