"""Episode: a rollout that a session waits for, on this host or at a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Observation = Mapping[str, Any]
"""The fields of `swe_openenv.models.SweObservation`."""


class Episode(Protocol):
    """One rollout. Its methods belong to the event loop of its host."""

    id: str

    async def begin(self) -> None:
        """Choose the task.

        Raises:
            UsageError: There is no such task.
        """
        ...

    async def run(self) -> Observation:
        """Run the rollout, or wait for the one that runs. Return its end.

        Raises:
            SweError: It has no end.
        """
        ...

    async def entries(self) -> list[dict[str, Any]]:
        """Return the trained calls of a finished rollout, chain by chain.

        Raises:
            SweError: There are none, or they cannot be read.
        """
        ...

    async def close(self, why: str | None) -> None:
        """Let go of the rollout.

        Args:
            why: Cancels it with this reason if it runs; None leaves it alone.
        """
        ...


class Host(Protocol):
    """Where rollouts run."""

    def episode(self, episode_id: str, chosen: Mapping[str, Any]) -> Episode:
        """Return the rollout with this id, not begun.

        Args:
            chosen: Arguments of a reset, which choose the task.
        """
        ...
