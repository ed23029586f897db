"""foreign_turns: the turns of a rollout that are no work of its agent, from how its conversations branch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from swe_core.tokens.chains import Step

Start = Literal["early", "own", "again", "foreign"]
"""Whose a turn that continues no other is. "early": the agent made it before the policy had said anything;
"own": the agent's too; "again": it begins as an early one, but continues no reply; "foreign": none of it."""
_OPENING = 8
"""Ids at the end of a prompt that may only open the reply."""


def foreign_turns(steps: Sequence[Step], starts: Mapping[int, Start], late: Collection[int] = ()) -> set[int]:
    """Return the indices of the turns that are not the agent's.

    Of different continuations of one reply, the agent's is the one that most turns go on from, or the last.
    Equal continuations are retries. One that another repeats and adds to is the agent's where that is: the
    agent has refused its reply.

    Args:
        steps: In the order in which they ended, each after its base.
        starts: Of each turn without a base, "own" where missing; also of one that changed its history.
        late: Turns that no process of the agent asked for. Those that the agent goes on from are its own.
    """
    foreign = set(late)
    for step in reversed(steps):
        if step.index not in foreign and step.base is not None:
            foreign.discard(step.base)
    late = frozenset(foreign)
    later: dict[int, int] = defaultdict(int)  # turns that go on from a turn
    for step in reversed(steps):
        if step.base is not None and step.index not in late:
            later[step.base] += 1 + later[step.index]
    rivals: dict[int | None, list[Step]] = defaultdict(list)
    early = [step for step in steps if starts.get(step.index) == "early"]  # the agent's in any case
    for step in steps:
        start = starts.get(step.index, "own" if step.base is None else "again")
        if start == "foreign":
            foreign.add(step.index)
        elif start == "again" and step.dropped is None and step.index not in late:
            rivals[step.base].append(step)
    for base, same in rivals.items():
        foreign |= _lost(same, later, early if base is None else ())
    for step in steps:
        if step.base in foreign:
            foreign.add(step.index)
    return foreign


def _lost(rivals: Sequence[Step], later: Mapping[int, int], early: Sequence[Step]) -> set[int]:
    """Return the indices of those that are not the agent's.

    Args:
        early: Turns with which the rivals begin; where one has a later turn, only its repetitions are own.
    """
    rivals = [one for one in rivals if not any(np.array_equal(one.prompt, own.prompt) for own in early)]
    if not rivals or (len(rivals) == 1 and not early):
        return set()
    if any(later[one.index] for one in early):
        return {one.index for one in rivals}
    kept = max(rivals, key=lambda one: (later[one.index], one.index)).prompt

    begun = {one.index: one.prompt[:-_OPENING] for one in rivals}
    own = {at for at, ids in begun.items() if len(ids) and np.array_equal(ids, kept[: len(ids)])}
    return {one.index for one in rivals if one.index not in own and not np.array_equal(one.prompt, kept)}
