"""A run as data: one JSON object, or a table with a row for each rollout."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, get_args

from swe_core.api.records import Phases, Purpose, Rollout
from swe_core.report.facts import facts_of, suspicious_kinds, tamper_kinds, why, without_evaluations
from swe_core.report.statistics import CONFIDENCE
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import read_evaluations
from swe_core.system.printable import printable

if TYPE_CHECKING:
    from swe_core.report.token_audit import TokenAudit
    from swe_core.rollout.training_account import TrainingAccount

_FORMULA = tuple("=+-@＝＋－＠")
"""First characters of formulas, also the full-width ones of East Asian keyboards."""
_TESTS = {"fail_to_pass", "pass_to_pass"}
COLUMNS = (
    "id", "task_id", "attempt", "agent", "sandbox", "engine", "model", "node", "outcome", "reward",
    "unshaped_reward", "cancelled_as", "evaluation", "boundary", "error_type", "why", "ended_by",
    "finish_reason", "turns", "prompt_tokens", "completion_tokens", "sampled", "trainable", "chains",
    "patch_bytes", "agent_exit_code", "test_exit_code", "test_seconds", "channel", "tampering", "suspicious",
    *(f"{phase}_seconds" for phase in Phases.model_fields), "started_at", "seconds", "retries",
    *(f"{purpose}_sandbox_{what}" for purpose in get_args(Purpose) for what in ("flavor", "seconds")),
)  # fmt: skip
"""Columns of the table, in order."""


def summary(
    run: RunDirectory,
    rollouts: Sequence[Rollout],
    tokens: TokenAudit | None,
    training: TrainingAccount | None = None,
) -> dict[str, object]:
    """Return the run in numbers, and each rollout's record without the statuses of single tests.

    Shares are rounded to four decimals; times are in seconds. Of a training, all numbers but `evaluations`,
    `training`, `ledger` and `rollouts` are without its evaluations.

    Args:
        training: What became of the trainable tokens; None for an evaluation.
    """
    facts = facts_of(without_evaluations(rollouts))
    return {
        "directory": str(run.path),
        "notes": list(run.info.notes),
        "planned": run.info.planned,
        "finished": facts.finished,
        **facts.outcomes,
        "cancelled_as": facts.cancelled_as,
        "errors_by_boundary": facts.errors,
        "errors": [asdict(failures) for failures in facts.failures],
        "errors_after_answer": facts.errors_after_answer,
        "resolved_rate": _rounded(facts.resolved_rate),
        "pass_at_k": [
            {
                "k": one.k,
                "value": round(one.value, 4),
                "low": round(one.low, 4),
                "high": round(one.high, 4),
                "confidence": CONFIDENCE,
                "tasks": one.tasks,
                "verdicts": one.verdicts,
            }
            for one in facts.passes
        ],
        "tampering": asdict(facts.tampering),
        "suspicious": asdict(facts.suspicious),
        "unchecked": list(facts.unchecked),
        "rollout_notes": list(facts.notes),
        "phases": {name: asdict(spread) for name, spread in facts.phases.items()},
        "sandboxes": [asdict(used) for used in facts.sandboxes],
        "retried": asdict(facts.retried),
        "turns": facts.turns,
        "prompt_tokens": facts.prompt_tokens,
        "completion_tokens": facts.completion_tokens,
        "ledger": tokens
        and {
            **tokens.ledger.model_dump(mode="json"),
            "balanced": not tokens.problems,
            "missing": tokens.missing,
            "accounted_percent": round(tokens.accounted, 4),
            "problems": list(tokens.problems),
        },
        "evaluations": [
            {**one.model_dump(mode="json"), "resolved_rate": _rounded(one.resolved_rate)}
            for one in read_evaluations(run.path)
        ],
        "training": training and training.summary(),
        "tasks": [{**asdict(task), "attempts": task.attempts} for task in facts.tasks],
        "rollouts": [
            rollout.model_dump(mode="json", exclude={"grade": _TESTS})  # for 2,438 tasks some hundred MB
            for rollout in rollouts
        ],
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def table(rollouts: Sequence[Rollout]) -> str:
    """Return CSV (RFC 4180) with a header of `COLUMNS` and a row for each rollout, in the given order.

    A missing value is empty. A text has one line, and is no formula to a spreadsheet.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in _row(rollout).items()} for rollout in rollouts)
    return text.getvalue()


def _cell(value: object) -> object:
    """Return the cell of a value; an apostrophe precedes a text that would be a formula.

    See https://owasp.org/www-community/attacks/CSV_Injection.
    """
    if not isinstance(value, str):
        return value
    text = " ".join(printable(value).split())
    return f"'{text}" if text.startswith(_FORMULA) else text


def _row(rollout: Rollout) -> dict[str, object]:
    failure, grade, ledger = rollout.failure, rollout.grade, rollout.ledger
    same = {name: getattr(rollout, name) for name in COLUMNS if name in Rollout.model_fields}
    return {
        **same,
        "boundary": failure and failure.boundary,
        "error_type": failure and failure.type,
        "why": why(rollout),
        "prompt_tokens": rollout.usage.prompt_tokens,
        "completion_tokens": rollout.usage.completion_tokens,
        "sampled": ledger and ledger.sampled,
        "trainable": ledger and ledger.trainable,
        "chains": ledger and ledger.chains,
        "test_exit_code": grade and grade.test_exit_code,
        "test_seconds": grade and grade.test_seconds,
        "channel": grade and grade.channel,
        "tampering": " ".join(tamper_kinds(rollout)),
        "suspicious": ", ".join(suspicious_kinds(rollout)),
        **{f"{phase}_seconds": seconds for phase, seconds in rollout.phases},
        "started_at": rollout.started_at.isoformat(),
        "retries": len(rollout.retried),
        **_sandboxes(rollout),
    }


def _sandboxes(rollout: Rollout) -> dict[str, object]:
    """Return the cells of sandbox use for each purpose; of several flavors the names and the sum."""
    cells: dict[str, object] = {}
    for purpose in get_args(Purpose):
        used = [one for one in rollout.sandboxes if one.purpose == purpose]
        cells[f"{purpose}_sandbox_flavor"] = " ".join(one.flavor for one in used if one.flavor)
        cells[f"{purpose}_sandbox_seconds"] = round(sum(one.seconds for one in used), 4) if used else None
    return cells
