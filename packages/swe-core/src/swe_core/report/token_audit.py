"""The token ledgers of a run, checked against the turns on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from swe_core.api.records import Ledger, Rollout, Turn
from swe_core.errors import LedgerError, UsageError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.chains import build_chains, step_of
from swe_core.tokens.ledger import LOST_NODE, RETRIED, add_ledgers, prove


@dataclass(frozen=True, slots=True)
class TokenAudit:
    """The sum of a run's ledgers, and whether its turns confirm it.

    Args:
        ledger: The sum of the ledgers of its rollouts.
        sampled: Tokens that were sampled, counted from the turns on disk, and those of lost nodes.
        problems: One sentence for each rollout whose turns do not prove its ledger.
    """

    ledger: Ledger
    sampled: int
    problems: tuple[str, ...]

    @property
    def missing(self) -> int:
        """Return sampled tokens on disk minus those in the ledgers."""
        return self.sampled - self.ledger.trainable - sum(self.ledger.dropped.values())

    @property
    def accounted(self) -> float:
        """Return the share of sampled tokens that the ledgers list as trainable or dropped, percent."""
        return 100.0 * (1 - self.missing / self.sampled) if self.sampled else 100.0


def audit(run: RunDirectory, rollouts: Sequence[Rollout]) -> TokenAudit:
    """Check the ledgers of `rollouts`, finished ones of `run`, against their turns."""
    none = Ledger(sampled=0, trainable=0)
    sampled, ledgers, problems = 0, [], []
    for rollout in rollouts:
        ledgers.append(rollout.ledger or none)
        # No turn of a lost node is on this disk: the driver counted the ids as it heard of them.
        lost = ledgers[-1].dropped.get(LOST_NODE, 0)
        sampled += lost
        try:
            found = Ledger(sampled=lost, trainable=0, dropped={LOST_NODE: lost}) if lost else none
            for turns, no_reward in _tries(run, rollout):
                sampled += sum(len(turn.tokens.completion) for turn in turns if turn.tokens is not None)
                found = add_ledgers([found, recount(turns, no_reward) or none])
        except (LedgerError, UsageError) as error:
            problems.append(f"{rollout.id}: {error}")
            continue
        if differing := _differing(ledgers[-1], found):
            problems.append(f"{rollout.id}: its ledger is not what its turns on disk say: {differing}")
    return TokenAudit(add_ledgers(ledgers), sampled, tuple(problems))


def recount(turns: Iterable[Turn], no_reward: str | None = None) -> Ledger | None:
    """Prove the ledger of a rollout again from its recorded turns; None if they have no tokens.

    Args:
        turns: As `RunDirectory.turns` gives them.
        no_reward: As in `prove`.

    Raises:
        LedgerError: The records do not fit together, or do not balance.
    """
    with_tokens = [(turn, turn.tokens) for turn in turns if turn.tokens is not None]
    if not with_tokens:
        return None
    steps = [step_of(turn.index, tokens, summary=turn.summary) for turn, tokens in with_tokens]
    sampled = sum(len(tokens.completion) for _, tokens in with_tokens)
    return prove(sampled, steps, build_chains(steps), no_reward)


def _tries(run: RunDirectory, rollout: Rollout) -> Iterator[tuple[list[Turn], str | None]]:
    """Yield the turns of each attempt of a rollout, and why none of their tokens is trainable, if so."""
    for one in rollout.retried:
        if one.folder is not None:
            yield run.turns(rollout.id, one.folder), RETRIED
    yield run.turns(rollout.id), rollout.not_trained


def _differing(ledger: Ledger, found: Ledger) -> str:
    return ", ".join(
        f"{name} {getattr(ledger, name)} instead of {getattr(found, name)}"
        for name in Ledger.model_fields
        if getattr(ledger, name) != getattr(found, name)
    )
