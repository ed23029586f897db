"""Errors with equal reasons: their key for a count, and the limit at which a run cannot succeed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from swe_core.api.records import Failure, Rollout
from swe_core.errors import Boundary

_ID = re.compile(r"(?=[\w-]*\d)[\w-]{8,}")
"""A word that differs from call to call: a request, a container, a temporary folder."""
_VARYING = (
    (re.compile(r"'[^']*'|\"[^\"]*\""), "''"),
    (re.compile(r"/[^\s:;,)]+"), "/"),
    # also a fraction and a unit: '950ms', '12.5 s', '3.2GB'
    (re.compile(r"\d+(?:\.\d+)*(?: ?(?:[mnuµ]?s|min|m|h|[kKMGT]?i?B|%)(?!\w))?"), "0"),
)


class Reason(NamedTuple):
    """What equal errors have in common."""

    boundary: Boundary
    type: str
    text: str


def reason_of(failure: Failure, rollout_id: str, task_id: str) -> Reason:
    """Return the reason of an error: its message without the rollout's id, the task's, and other ids."""
    ids = "|".join(re.escape(one) for one in (rollout_id, task_id))
    text = re.sub(rf"(?<![\w-])(?:{ids})(?![\w-])", "…", failure.message)
    return Reason(failure.boundary, failure.type, _ID.sub("…", text))


def kind_of(reason: Reason) -> Reason:
    """Return what errors with the same cause have in common, without quoted names, paths and numbers.

    Two missing images, for example, are one kind.
    """
    text = reason.text
    for varying, instead in _VARYING:
        text = varying.sub(instead, text)
    return reason._replace(text=text)


class EqualErrors:
    """Counts equal errors since the last verdict.

    A few broken tasks, whose images are missing for example, end no run of many tasks: the errors must have
    hit as many tasks as the limit says, or all tasks of a run that has fewer.

    Args:
        limit: Number of equal errors, each of another task, that ends a run; 0 is no limit.
        tasks: Number of tasks that the run has.
    """

    def __init__(self, limit: int, tasks: int) -> None:
        self._limit = limit
        self._tasks = min(limit, tasks)
        self._seen: defaultdict[Reason, list[str]] = defaultdict(list)

    def add(self, rollout: Rollout) -> Sequence[str]:
        """Count a finished rollout.

        Returns:
            The task of each rollout with its error, if they show that the run cannot succeed, else nothing.
        """
        if rollout.reward is not None:
            self._seen.clear()
        if self._limit == 0 or rollout.failure is None or rollout.outcome != "error":
            return ()
        tasks = self._seen[kind_of(reason_of(rollout.failure, rollout.id, rollout.task_id))]
        tasks.append(rollout.task_id)
        return tuple(tasks) if len(tasks) >= self._limit and len(set(tasks)) >= self._tasks else ()
