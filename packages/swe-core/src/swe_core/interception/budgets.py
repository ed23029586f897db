"""RemainingBudget: what is left of a rollout's budgets."""

from __future__ import annotations

import math

import anyio

from swe_core.api.limits import Budgets
from swe_core.api.records import Budget

_PER_TURN = 4
"""Auxiliary calls per turn of the budget at most: code in a sandbox can make its calls look like such."""


class RemainingBudget:
    """Count one rollout's calls and sampled tokens against its budgets.

    Attributes:
        deadline: End of the wall budget by `anyio.current_time()`; infinity before `start` or without one.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._calls = self._auxiliary = 0
        self._tokens = 0
        self._held = 0
        self.deadline = math.inf

    def start(self) -> None:
        """Start the wall budget."""
        if self._budgets.wall is not None:
            self.deadline = anyio.current_time() + self._budgets.wall

    def spent(self) -> Budget | None:
        """Return the budget that has run out, so that no further call may begin; None where none has."""
        turns = self._budgets.turns
        if turns is not None and (self._calls >= turns or self._auxiliary >= _PER_TURN * turns):
            return "turns"
        if self.left == 0:
            return "completion_tokens"
        return "wall" if anyio.current_time() >= self.deadline else None

    @property
    def left(self) -> int | None:
        """Return how many tokens may still be sampled; None is no limit."""
        budget = self._budgets.completion_tokens
        return None if budget is None else max(0, budget - self._tokens)

    @property
    def free(self) -> int | None:
        """Return how many tokens are left that no call in flight holds; None is no limit."""
        return None if self.left is None else max(0, self.left - self._held)

    def begin(self, wanted: int | None, is_turn: bool = True) -> int | None:
        """Begin a call and return the tokens that it may sample, at most `wanted`; None is no limit.

        The call holds these tokens until its `end`, so that concurrent calls keep the budget together.

        Args:
            is_turn: Whether the call counts as a turn.
        """
        self._calls += is_turn
        self._auxiliary += not is_turn
        granted = min((limit for limit in (wanted, self.free) if limit is not None), default=None)
        self._held += granted or 0
        return granted

    def end(self, granted: int | None, tokens: int) -> None:
        """Count the `tokens` that a call sampled, and free the tokens that `begin` `granted` it."""
        self._held -= granted or 0
        self._tokens += tokens
