"""The page of a group: the attempts at one task side by side, and why their advantages are what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, pstdev
from typing import Any

from swe_core.api.records import Turn
from swe_core.api.task import TestStatus
from swe_core.report.facts import why
from swe_core.report.finished import RolloutHead
from swe_core.rollout.run_directory import FOLDERS, PATCH_FILE
from swe_core.rollout.training_records import ClosedGroup, GroupMember
from swe_core.system.natural_order import natural_key
from swe_core.view.diff import Patch, patch_at
from swe_core.view.graded import PASSED
from swe_core.view.render import Page
from swe_core.view.site import NotShown, ShownRun, Site
from swe_core.view.training import Trained, advantages

MAX_ATTEMPTS = 32
"""Attempts that are shown side by side."""
MAX_TESTS = 300
_OPEN_LINES = 40
_SKIPPED: Mapping[str, str] = {
    "too_few_scored": "too few of its attempts have a verdict",
    "overlong": "too few of its attempts with a verdict were not cut short",
    "stale": "too few of its attempts with a verdict were sampled by a policy that is fresh enough",
    "no_tokens": "none of its attempts has a trainable token",
}
_LEFT_OUT: Mapping[str, str] = {
    "no_reward": "it has no reward",
    "overlong": "a budget or the limit of a reply cut it",
    "stale": "the policy that sampled it was too old",
}


_EVALUATED = "These attempts evaluate the policy on a held-out task: none of them is trained."


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of the group.

    Args:
        why: What its end says.
        advantage: What a training multiplies its tokens with; None where it has none.
        fate: Why a trainer did not train it; empty if it did, and for an evaluation.
        rows: Its trained rows.
        versions: Oldest and newest policy version that sampled its trainable tokens; None without.
        behind: Updates between the oldest of them and the newest step that trained it; None if none did.
        patch: Its patch; None without one.
        same: The attempt before it that has the same patch.
    """

    head: RolloutHead
    why: str
    advantage: float | None
    fate: str
    rows: Sequence[Trained]
    versions: tuple[int, int] | None
    behind: int | None
    statuses: Mapping[str, TestStatus]
    patch: Patch | None
    same: RolloutHead | None

    @property
    def weights(self) -> list[float]:
        """Return the weights of its rows in their steps, each once."""
        return sorted({row.weight for row in self.rows})


def page(site: Site, query: Mapping[str, str], name: str, key: str) -> Page:
    """Return the page of the group `key` of a run."""
    run = site.run(name)
    groups = run.groups()
    if key not in groups:
        raise NotShown(f"The run {name!r} has no group {key!r}.")
    version = f"{run.heads.version}:{run.training.version}"
    return Page("group.html", partial(_values, run, groups, key), version)


def _values(run: ShownRun, groups: Mapping[str, Sequence[RolloutHead]], key: str) -> dict[str, Any]:
    heads = sorted(groups[key], key=lambda head: (head.attempt, natural_key(head.id)))
    closed = run.training.groups.get(key)
    attempts = _attempts(run, heads[:MAX_ATTEMPTS], heads, closed)
    flips, steady = _tests(attempts)
    names = sorted(groups, key=natural_key)
    at = names.index(key)
    return {
        "title": f"Group {key}",
        "run": run,
        "key": key,
        "task": heads[0].task_id,
        "attempts": attempts,
        "left_out": len(heads) - len(attempts),
        "closed": closed,
        "shaped": any(head.unshaped_reward != head.reward for head in heads),
        "zeroed": _zeroed(heads, closed),
        "computed": closed is None,
        "said": _EVALUATED
        if heads[0].evaluation is not None
        else why_advantages(heads, closed, training=bool(run.training)),
        "flips": flips[:MAX_TESTS],
        "more_flips": max(0, len(flips) - MAX_TESTS),
        "steady": steady,
        "before": names[at - 1] if at else None,
        "after": names[at + 1] if at + 1 < len(names) else None,
        "has_tokens": any(head.ledger for head in heads),
        "open_lines": _OPEN_LINES,
        "passed": PASSED,
    }


def _zeroed(heads: Sequence[RolloutHead], closed: ClosedGroup | None) -> Mapping[str, float | None]:
    """Return rollout → reward as the group compared it; empty where that is each rollout's own."""
    compared = {} if closed is None else {one.rollout_id: one.reward for one in closed.members}
    own = {head.id: head.reward for head in heads}
    return compared if any(own.get(name, reward) != reward for name, reward in compared.items()) else {}


def paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the run and the key of each group."""
    for run in map(site.run, site.runs):
        for key in run.groups():
            yield run.name, key


def why_advantages(heads: Sequence[RolloutHead], closed: ClosedGroup | None, *, training: bool) -> str:
    """Return why the advantages of a group are what they are, in sentences.

    Args:
        closed: What the trainer recorded of it; None if nothing.
        training: Whether a trainer recorded anything of the run.
    """
    if closed is not None:
        rewards = [one.reward for one in closed.members if one.reward is not None and one.left_out is None]
        number = len(closed.members)
    else:
        rewards = [head.reward for head in heads if head.reward is not None]
        number = len(heads)
    parts = []
    equal = bool(rewards) and min(rewards) == max(rewards)
    if closed is not None and closed.skipped is not None and closed.skipped != "no_spread":
        reason = _SKIPPED.get(closed.skipped, closed.skipped)
        parts.append(
            f"The trainer skipped this group, so none of its rows was trained: {reason} ({closed.skipped})"
        )
    elif not rewards:
        parts.append("No attempt has a reward, so there is no advantage")
    elif equal:
        alike = f"All {len(rewards)} rewards are equal" if len(rewards) > 1 else "There is one reward"
        parts.append(f"{alike} ({round(rewards[0], 4)}): the group has no spread, so every advantage is 0")
        if closed is not None:
            parts.append(
                "The trainer skipped it (no_spread): none of its rows was trained"
                if closed.skipped
                else "The trainer trained it all the same (no_spread = keep), and it moves no weight"
            )
    else:
        parts.append(
            f"The rewards have a mean of {fmean(rewards):.3g} and a standard deviation of "
            f"{pstdev(rewards):.3g}: an advantage is (reward − mean) / (std + 1e-8)"
        )
    missing = number - len(rewards)
    if missing and rewards:
        parts.append(
            f"{missing} of the {number} attempts {'does' if missing == 1 else 'do'} not count, "
            "so the mean is that of the others"
        )
    if closed is None and training:
        parts.append("The trainer has not closed this group: attempts may be missing")
    return ". ".join(parts) + "."


def _attempts(
    run: ShownRun, shown: Sequence[RolloutHead], heads: Sequence[RolloutHead], closed: ClosedGroup | None
) -> list[Attempt]:
    scored = [head for head in heads if head.reward is not None]
    computed = dict(
        zip(
            (head.id for head in scored),
            advantages([head.reward for head in scored if head.reward is not None]),
            strict=True,
        )
    )
    members = {} if closed is None else {one.rollout_id: one for one in closed.members}
    found: list[Attempt] = []
    patches: dict[bytes, RolloutHead] = {}
    for head in shown:
        member = members.get(head.id)
        rows = run.training.rows_of(head.id)
        versions = _versions(run.directory.turns(head.id)) if head.ledger else None
        patch = patch_at(run.path / FOLDERS / head.id / PATCH_FILE, run.path)
        grade = run.heads.record(head).grade if head.grade is not None else None
        found.append(
            Attempt(
                head,
                why(head),
                _advantage(head, closed, rows, computed),
                "" if rows else _fate(head, closed, member),
                rows,
                versions,
                max(row.version for row in rows) - versions[0] if rows and versions else None,
                {**grade.fail_to_pass, **grade.pass_to_pass} if grade is not None else {},
                patch,
                patches.get(patch.digest) if patch and patch.digest else None,
            )
        )
        if patch and patch.digest:
            patches.setdefault(patch.digest, head)
    return found


def _fate(head: RolloutHead, closed: ClosedGroup | None, member: GroupMember | None) -> str:
    """Return why an attempt is not trained; empty where no trainer says it."""
    if head.cancelled_as is not None:
        return f"it was cancelled as {head.cancelled_as}"
    if closed is None or member is None:
        return ""
    if member.left_out is not None:
        return _LEFT_OUT.get(member.left_out, member.left_out)
    if member.reward is None:
        return _LEFT_OUT["no_reward"]
    return "it waits for a step" if closed.skipped is None else f"the group was skipped ({closed.skipped})"


def _advantage(
    head: RolloutHead, closed: ClosedGroup | None, rows: Sequence[Trained], computed: Mapping[str, float]
) -> float | None:
    """Return the advantage that the trainer recorded, or else the computed one."""
    if rows:
        return rows[-1].advantage
    if head.evaluation is not None:
        return None
    if closed is None:
        return computed.get(head.id)
    member = next((one for one in closed.members if one.rollout_id == head.id), None)
    if member is not None and member.advantage is None and closed.skipped == "no_spread":
        return None if member.left_out or member.reward is None else 0.0
    return None if member is None else member.advantage


def _versions(turns: Sequence[Turn]) -> tuple[int, int] | None:
    """Return the oldest and the newest policy version of trainable tokens."""
    found = [
        version
        for turn in turns
        if turn.tokens is not None and turn.tokens.dropped is None
        for version, _ in turn.tokens.versions
    ]
    return (min(found), max(found)) if found else None


def _tests(attempts: Sequence[Attempt]) -> tuple[list[str], dict[str, int]]:
    """Return the tests that pass in some attempts only, and of the others how many pass and do not."""
    graded = [one.statuses for one in attempts if one.statuses]
    flips, steady = [], {"passed": 0, "failed": 0}
    for test in dict.fromkeys(name for statuses in graded for name in statuses):
        passes = {statuses[test] in PASSED for statuses in graded if test in statuses}
        if len(passes) > 1:
            flips.append(test)
        else:
            steady["passed" if passes == {True} else "failed"] += 1
    return flips, steady
