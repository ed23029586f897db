"""TurnHooks and FinishedHook: call the plugins' notification hooks, and log their errors."""

from __future__ import annotations

import logging

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.plugins.manager import PluginSet

logger = logging.getLogger(__name__)


class TurnHooks:
    """An observer of the process that runs a rollout: calls the hooks of its start and of its turns."""

    def __init__(self, plugins: PluginSet) -> None:
        self._plugins = plugins

    def started(self, request: RolloutRequest) -> None:
        """Call `swe_rollout_started`."""
        _notify(
            self._plugins,
            "swe_rollout_started",
            rollout_id=request.id,
            task_id=request.task.instance_id,
            attempt=request.attempt,
        )

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Do nothing: phases have no hook."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Call `swe_turn_recorded`."""
        _notify(self._plugins, "swe_turn_recorded", rollout_id=rollout_id, turn=turn)

    def finished(self, rollout: Rollout) -> None:
        """Do nothing: it is not on disk yet."""


class FinishedHook:
    """An observer of the process that records a rollout: calls the hook of its end."""

    def __init__(self, plugins: PluginSet) -> None:
        self._plugins = plugins

    def started(self, request: RolloutRequest) -> None:
        """Do nothing: `TurnHooks` does."""

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Do nothing: phases have no hook."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Do nothing: `TurnHooks` does."""

    def finished(self, rollout: Rollout) -> None:
        """Call `swe_rollout_finished`."""
        _notify(self._plugins, "swe_rollout_finished", rollout=rollout)


def _notify(plugins: PluginSet, hook: str, **values: object) -> None:
    for problem in plugins.notify(hook, **values):
        logger.warning("%s", problem)
