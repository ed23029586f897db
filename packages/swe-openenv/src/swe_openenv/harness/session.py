"""SweSession: one rollout as a session that a trainer waits for."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any

from openenv.core.harness import ResourceSession, ToolResult, TrainingTrace, VerifyResult

from swe_core.errors import LedgerError, UsageError, sentence
from swe_openenv.harness.background import Background
from swe_openenv.harness.episode import Episode, Observation
from swe_openenv.harness.health import Health, TrainingStopped

logger = logging.getLogger(__name__)

STOPPED = "stopped"
TIMEOUT = "timeout"
"""Why a session cancels its rollout."""


class SweSession(ResourceSession):
    """A rollout that runs by itself: wait for it, then take its trace and its reward.

    Without a verdict it has no reward and an empty trace, so that nothing of it is trained. Any thread may
    use it, and one may close it while another waits.
    """

    def __init__(self, background: Background, health: Health, episode: Episode) -> None:
        self._background = background
        self._health = health
        self._episode = episode
        self._lock = threading.Lock()
        self._running: Future[Observation] | None = None
        self._end: Observation | None = None
        self._left = False

    def initial_messages(self) -> list[dict[str, Any]]:
        """Return nothing: the agent gets the task's prompt itself."""
        return []

    def list_tools(self) -> list[Any]:
        """Return nothing: the agent has tools of its own."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Refuse.

        Raises:
            KeyError: Always.
        """
        raise KeyError(f"the session has no tool {name!r}: its agent has tools of its own")

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Run the rollout to its end. Return 0 if it has a verdict, else 1.

        Args:
            timeout_s: Seconds; None waits as long as the settings let a rollout take.

        Raises:
            TimeoutError: It has not ended by then. It is cancelled, so its sandbox is free.
        """
        with self._lock:
            if self._end is None and self._running is None:
                if self._left or self._health.over is not None:
                    return self._ended_without("cancelled", self._health.over or STOPPED)
                try:
                    self._running = self._background.start(self._episode.run)
                except UsageError:  # the factory is closed
                    return self._ended_without("cancelled", STOPPED)
        if self._end is None and self._running is not None:
            try:
                wait([self._running], timeout_s)
                self._end = self._running.result(0)
            except CancelledError:
                return self._ended_without("cancelled", STOPPED)
            except TimeoutError as error:
                if self._running.done():  # the rollout's own error
                    return self._failed(error)
                self._ended_without("cancelled", TIMEOUT)
                self._leave(TIMEOUT)
                raise TimeoutError(
                    f"the rollout {self._episode.id!r} has no verdict after {timeout_s:g} s and is cancelled"
                ) from None
            except Exception as error:  # whatever it is, this rollout has no verdict
                return self._failed(error)
            if self._end.get("outcome") != "cancelled" and self._reward() is None:
                self._health.count(self._reason())
        return 0 if self._reward() is not None else 1

    def fetch_training_trace(self) -> TrainingTrace:
        """Return the trained calls, chain by chain: each chain is a row. Empty without a verdict.

        Raises:
            TrainingStopped: No further rollout can get a verdict; TRL's worker ends with it.
        """
        if self._reward() is None:
            if self._health.over is not None:
                raise TrainingStopped(self._health.over)
            return TrainingTrace(turns=[])
        try:
            trace = TrainingTrace.from_entries(self._background.call(self._episode.entries))
            self._check_whole(trace)
            return trace
        except Exception as error:  # nothing of this rollout can be trained, but of others
            logger.warning("%s: nothing of it is trained: %s", self._episode.id, sentence(error))
            self._failed(error)
            return TrainingTrace(turns=[])

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> VerifyResult:
        """Return the grader's reward, None without a verdict; and what else is known of the rollout.

        Args:
            transcript: Ignored: the grader judged the patch.
        """
        if self._reward() is not None:  # and its trace, if it was asked for, is whole
            self._health.count(None)
        end = self._end or {}
        ledger = end.get("ledger") or {}
        dropped = {f"dropped/{reason}": count for reason, count in (ledger.get("dropped") or {}).items()}
        counts = {name: ledger[name] for name in ("sampled", "trainable") if name in ledger}
        known = {name: end[name] for name in ("turns", "seconds") if end.get(name) is not None}
        told = ("task_id", "outcome", "reason", "tests", "patch", "records")
        return VerifyResult(
            env_reward=self._reward(),
            done=bool(end.get("done")),
            metrics={**known, **counts, **dropped},
            artifacts={"episode_id": self._episode.id, **{name: end.get(name) for name in told}},
        )

    def close(self) -> None:
        """Cancel the rollout if it has not ended, and let go of it."""
        self._leave(None if self._end is not None else STOPPED)

    def _leave(self, why: str | None) -> None:
        with self._lock:
            if self._left:
                return
            self._left = True
            running = self._running
        try:
            self._background.call(partial(self._episode.close, why))
        except UsageError:
            logger.debug("%s: its run has closed already", self._episode.id)
        if running is not None:
            running.cancel()

    def _check_whole(self, trace: TrainingTrace) -> None:
        """Check that the trace trains what the rollout's ledger says.

        Raises:
            LedgerError: It does not.
        """
        trainable = sum(sum(turn.loss_mask) for turn in trace.turns)
        ledger = (self._end or {}).get("ledger") or {}
        expected = ledger.get("trainable", 0)
        if trainable != expected:
            raise LedgerError(f"the trace has {trainable} tokens to train and the ledger {expected}")

    def _reward(self) -> float | None:
        reward: float | None = self._end.get("reward") if self._end is not None else None
        return reward

    def _reason(self) -> str:
        end = self._end or {}
        return str(end.get("reason") or end.get("outcome") or "its end has no outcome")

    def _failed(self, error: Exception) -> int:
        self._health.count(sentence(error))
        return self._ended_without("error", sentence(error))

    def _ended_without(self, outcome: str, reason: str) -> int:
        """Note an end without a verdict; return the exit code for it."""
        self._end = {**(self._end or {}), "outcome": outcome, "reason": reason, "reward": None, "done": True}
        return 1
