"""RolloutWorker: takes the runner and does something with what it finishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from swe_core.runner import Runner


class RolloutWorker(Protocol):
    """Drives a run: collects rollouts to a run directory, or feeds a trainer."""

    async def run(self, runner: Runner) -> None:
        """Drive `runner` to its end; return when the run is over."""
        ...
