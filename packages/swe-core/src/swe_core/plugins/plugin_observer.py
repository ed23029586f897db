"""PluginObserver: call the plugins' notification hooks."""

from __future__ import annotations

import logging

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.plugins.manager import PluginSet

logger = logging.getLogger(__name__)


class PluginObserver:
    """An observer that calls the plugins' notification hooks and logs their errors."""

    def __init__(self, plugins: PluginSet) -> None:
        self._plugins = plugins

    def started(self, request: RolloutRequest) -> None:
        """Call `swe_rollout_started`."""
        self._notify(
            "swe_rollout_started",
            rollout_id=request.id,
            task_id=request.task.instance_id,
            attempt=request.attempt,
        )

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Do nothing: phases have no hook."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Call `swe_turn_recorded`."""
        self._notify("swe_turn_recorded", rollout_id=rollout_id, turn=turn)

    def finished(self, rollout: Rollout) -> None:
        """Call `swe_rollout_finished`."""
        self._notify("swe_rollout_finished", rollout=rollout)

    def _notify(self, hook: str, **values: object) -> None:
        for problem in self._plugins.notify(hook, **values):
            logger.warning("%s", problem)
