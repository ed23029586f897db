"""Allowance: what a rollout's budgets have left."""

from __future__ import annotations

import math

import anyio

from swe_core.api.limits import Budgets
from swe_core.api.records import Budget


class Allowance:
    """Counts one rollout's calls and sampled tokens against its budgets.

    Attributes:
        deadline: When the wall budget ends, in `anyio.current_time()`; infinity before `start`, or where it
            has none.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._calls = 0
        self._tokens = 0
        self._held = 0
        self.deadline = math.inf

    def start(self) -> None:
        """The agent starts now: its wall budget runs from here."""
        if self._budgets.wall is not None:
            self.deadline = anyio.current_time() + self._budgets.wall

    def spent(self) -> Budget | None:
        """The budget that has run out, so that no further call may begin; None where none has."""
        if self._budgets.turns is not None and self._calls >= self._budgets.turns:
            return "turns"
        if self.left == 0:
            return "completion_tokens"
        return "wall" if anyio.current_time() >= self.deadline else None

    @property
    def left(self) -> int | None:
        """Tokens that may still be sampled; None is no limit."""
        budget = self._budgets.completion_tokens
        return None if budget is None else max(0, budget - self._tokens)

    @property
    def free(self) -> int | None:
        """Of what is left, the tokens that no call in flight holds; None is no limit."""
        return None if self.left is None else max(0, self.left - self._held)

    def begin(self, wanted: int | None) -> int | None:
        """Count a call. Returns the tokens that it may sample, of what is free at most `wanted`; None is no
        limit. It holds them until its `end`, so that calls at the same time keep the budget together."""
        self._calls += 1
        granted = min((limit for limit in (wanted, self.free) if limit is not None), default=None)
        self._held += granted or 0
        return granted

    def end(self, granted: int | None, tokens: int) -> None:
        """A call has ended that was `granted` so many by `begin` and sampled `tokens`."""
        self._held -= granted or 0
        self._tokens += tokens
