"""Evaluator: runs evaluations of the policy on held-out tasks while it is trained.

Their attempts get the next free slots, with the agent, the sandbox, the grader and the engine of the
training. They belong to no group, never become stale, and none of their tokens is trained.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import anyio
import numpy as np
import orjson
from anyio.to_thread import run_sync

from swe_core.api.records import Rollout
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import SweError
from swe_core.rollout.training_records import EVALUATIONS_FILE, Evaluation, append_lines
from swe_trainer_trl.journal.journal import BegunEvaluation, Journal
from swe_trainer_trl.rollouts.attempts import Attempts
from swe_trainer_trl.rollouts.messages import Evaluated, Value

logger = logging.getLogger(__name__)


class Evaluator:
    """Runs evaluations, several at a time if they overlap.

    Args:
        requests: A request for each held-out task.
        number: Attempts at each task.
        attempts: Runs the attempts.
        run: The run directory.
        report: Called after an evaluation is recorded.
    """

    def __init__(
        self,
        requests: Sequence[RolloutRequest],
        number: int,
        attempts: Attempts,
        journal: Journal,
        run: Path,
        report: Callable[[Evaluated], None],
    ) -> None:
        self._templates = list({request.task.instance_id: request for request in requests}.values())
        self._number = number
        self._attempts = attempts
        self._journal = journal
        self._file = run / EVALUATIONS_FILE
        self._report = report
        self._begun: set[int] = set()

    async def evaluate(self, evaluation: BegunEvaluation) -> None:
        """Run an evaluation to its end; one that this process has begun is left alone.

        Attempts that an earlier process finished count, and do not run again.

        Raises:
            SweError: The journal or the run directory cannot be written.
        """
        if evaluation.id in self._begun:
            return
        self._begun.add(evaluation.id)
        finished: list[FinishedRollout] = []

        async def attempt(template: RolloutRequest, number: int) -> None:
            first = f"{template.task.instance_id}-{evaluation.name}-{number}"
            finished.append(await self._attempts.run(template, first, number, evaluation=evaluation.step))

        async with anyio.create_task_group() as tasks:
            for template in self._templates:
                for number in range(self._number):
                    tasks.start_soon(attempt, template, number)
        result = _result(evaluation, finished)
        await run_sync(self._write, evaluation, result)
        logger.info(
            "evaluation at step %d: %d of %d resolved, %d errors, policy versions %s to %s",
            *(result.step, result.resolved, result.verdicts, result.errors, result.oldest, result.newest),
        )
        self._report(Evaluated(id=evaluation.id, values=metrics_of(result)))

    def _write(self, evaluation: BegunEvaluation, result: Evaluation) -> None:
        """Record a finished evaluation; in one thread, so that no cancellation comes in between.

        First its line: after a kill in between it is recorded again from its rollouts, and has another line.
        """
        try:
            append_lines(self._file, [orjson.dumps(result.model_dump(mode="json"))])
        except OSError as error:
            raise SweError(
                f"cannot write {str(self._file)!r}: {error.strerror or error}; make room, then resume with "
                "--resume"
            ) from error
        self._journal.finish_evaluation(evaluation.id)


def metrics_of(result: Evaluation) -> dict[str, Value]:
    """Return the metrics of an evaluation, with names that choose TRL's reduction."""
    values: dict[str, Value] = {
        "eval/step": float(result.step),
        "eval/rollouts": float(result.rollouts),
        "eval/errors": float(result.errors),
    }
    if result.reward is not None:
        values["eval/resolved_rate"] = float(result.resolved), float(result.verdicts)
        values["eval/reward"] = result.reward * result.verdicts, float(result.verdicts)
    if result.oldest is not None and result.newest is not None:
        values["eval/version_min"] = float(result.oldest)
        values["eval/version_max"] = float(result.newest)
    return values


def _result(evaluation: BegunEvaluation, finished: Sequence[FinishedRollout]) -> Evaluation:
    rollouts: list[Rollout] = [one.rollout for one in finished]
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    of_chains = [c.versions[c.completion_mask] for one in finished for c in one.chains]
    versions = np.unique(np.concatenate([np.empty(0, np.int32), *of_chains])).tolist()
    return Evaluation(
        step=evaluation.step,
        version=evaluation.version,
        oldest=min(versions, default=None),
        newest=max(versions, default=None),
        rollouts=len(rollouts),
        verdicts=len(rewards),
        resolved=sum(rollout.outcome == "resolved" for rollout in rollouts),
        errors=sum(rollout.outcome == "error" for rollout in rollouts),
        reward=fmean(rewards) if rewards else None,
        finished_at=datetime.now(UTC),
    )
