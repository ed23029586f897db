"""Observers: several observers of rollouts as one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Observer, Phase, RolloutRequest
from swe_core.errors import sentence

logger = logging.getLogger(__name__)


class Observers:
    """Several observers as one. It logs what they raise, so that no observer harms a rollout."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._all = list(observers)

    def add(self, observer: Observer) -> None:
        """Add an observer of future events."""
        self._all.append(observer)

    def started(self, request: RolloutRequest) -> None:
        """Tell all; see `Observer`."""
        self._notify(lambda observer: observer.started(request))

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Tell all; see `Observer`."""
        self._notify(lambda observer: observer.phase(rollout_id, phase))

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Tell all; see `Observer`."""
        self._notify(lambda observer: observer.turn(rollout_id, turn))

    def finished(self, rollout: Rollout) -> None:
        """Tell all; see `Observer`."""
        self._notify(lambda observer: observer.finished(rollout))

    def _notify(self, call: Callable[[Observer], None]) -> None:
        for observer in self._all:
            try:
                call(observer)
            except Exception as error:  # the boundary to observers
                logger.error("an observer of the run failed: %s", sentence(error), exc_info=error)
