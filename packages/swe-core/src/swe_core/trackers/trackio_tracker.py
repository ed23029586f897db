"""TrackioTracker: sends each finished rollout of an evaluation to trackio, in a thread of its own."""

from __future__ import annotations

import importlib.util
import logging
import queue
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.errors import ConfigError, sentence
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.runner import Runner
from swe_core.system.plural import counted
from swe_core.system.redaction import environment_redactor
from swe_core.trackers.names import is_local
from swe_core.trackers.options import TrackOptions
from swe_core.trackers.rollout_trace import about, conversation, spans, without_folder
from swe_core.trackers.sent_rollouts import SentRollouts
from swe_core.trackers.trackio_run import TrackioRun

logger = logging.getLogger(__name__)

LIMIT = 60.0
"""Seconds that trackio may take to open a run on this machine, and to send a rollout after the run's end."""
SPACE_LIMIT = 600.0
"""Seconds that it may take to open a run in a Space, which may have to be built first."""

SENT_FILE = "trackio.jsonl"
"""File in the run directory that lists the rollouts that trackio has."""


class TrackioTracker:
    """The extension of an evaluation that sends its finished rollouts to trackio while others run.

    A rollout becomes one step of a trackio run: its numbers, those of the run so far, and a trace with its
    conversation, phases and calls. A tracker that fails is logged and never harms the run.

    Args:
        options: Project and name of the trackio run.
        directory: The run directory, which need not exist yet.
    """

    def __init__(self, options: TrackOptions, directory: Path) -> None:
        self._options = options
        self._sent_file = directory / SENT_FILE
        self._name = options.name or directory.absolute().name
        self._opened: TrackioRun | None = None

    async def prepare(self) -> None:
        """Open the trackio run before anything else, so that wrong settings are reported at once.

        Raises:
            UsageError: trackio is not installed or refuses the settings, or `SENT_FILE` is damaged.
        """
        if importlib.util.find_spec("trackio") is None:
            raise ConfigError(
                "the tracker 'trackio' needs the library trackio, which is not installed: "
                "pip install 'swe-core[trackio]'"
            )
        sent = SentRollouts(self._sent_file)
        output, opened = sys.stdout, Future[TrackioRun]()

        def work() -> None:
            try:
                opened.set_result(TrackioRun(self._options, self._name, sent))
            except BaseException as error:  # raised again below
                opened.set_exception(error)

        # A thread that ends with the process, because nothing can stop trackio when it hangs.
        threading.Thread(target=work, name="trackio", daemon=True).start()
        limit = LIMIT if is_local(self._options) else SPACE_LIMIT
        with anyio.move_on_after(limit):
            while not opened.done():  # noqa: ASYNC110 (the thread may hang, and sets no event of this loop)
                await anyio.sleep(0.02)
        if not opened.done():
            sys.stdout = output  # trackio's thread holds it back
            raise ConfigError(
                f"trackio cannot be used: it did not open a run within {limit:g} s; look at its storage or "
                "the connection to its Space, or leave the tracker out"
            )
        self._opened = opened.result()

    @asynccontextmanager
    async def running(self, runner: Runner) -> AsyncIterator[None]:
        """Send the finished rollouts, also those from before a resume that trackio lacks.

        Errors are logged, never raised. Call `prepare` first.
        """
        if self._opened is None:
            raise RuntimeError("TrackioTracker.running was called before TrackioTracker.prepare")
        sender = _Sender(self._opened, runner.store, runner.requests)
        runner.observe(sender)
        sender.start()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(sender.close)


class _Sender:
    """An observer whose thread reads the run directory and calls trackio.

    Args:
        tracker: The trackio run.
        run: The run directory.
        requests: The requests of the run.
    """

    def __init__(self, tracker: TrackioRun, run: RunDirectory, requests: Sequence[RolloutRequest]) -> None:
        self._tracker = tracker
        self._run = run
        self._requests = requests
        self._waiting: queue.SimpleQueue[Rollout | None] = queue.SimpleQueue()
        self._secrets = environment_redactor()
        self._failed = 0
        self._steps = 0
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="trackio", daemon=True)

    def start(self) -> None:
        """Start the thread, which first sends the rollouts from before a resume."""
        logger.info("results go to %s", self._tracker.place())
        self._thread.start()

    def close(self) -> None:
        """Send the remaining rollouts, and log the result. Give up when trackio takes too long for a step."""
        output = sys.stdout
        self._waiting.put(None)
        steps = -1
        while self._thread.is_alive() and steps != self._steps:
            steps = self._steps
            self._thread.join(LIMIT)
        if self._thread.is_alive():
            sys.stdout = output  # trackio's thread holds it back
            logger.warning(
                "trackio does not answer, so it lacks rollouts; the run directory has them, and this command "
                "sends them: swe-core run --resume %s",
                shlex.quote(str(self._run.path)),
            )

    def started(self, request: RolloutRequest) -> None:
        """Nothing to send."""

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Nothing to send."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Nothing to send."""

    def finished(self, rollout: Rollout) -> None:
        """Queue the rollout as it is on disk, without secrets."""
        redacted = self._run.redactor.value(rollout.model_dump(mode="json"))
        self._waiting.put(Rollout.model_validate(redacted))

    def _work(self) -> None:
        try:
            self._tracker.sent.forget(self._tracker.lost())
            self._tracker.run.config.update(self._configuration())
            before = self._run.rollouts()
        except Exception as error:  # the boundary: a failed tracker ends no run
            self._warn(error)
            before = []
        for rollout in before:
            self._send(rollout)
            self._steps += 1
        while (waiting := self._waiting.get()) is not None:
            self._send(waiting)
            self._steps += 1
        try:
            self._tracker.finish()
            lost = len(self._tracker.lost())
        except Exception as error:  # the same
            self._warn(error)
            lost = len(self._tracker.sent.steps())
        if self._failed + lost:
            logger.warning(
                "trackio lacks up to %s; the run directory has them, and this command sends them: "
                "swe-core run --resume %s",
                counted(self._failed + lost, "rollout"),
                shlex.quote(str(self._run.path)),
            )

    def _configuration(self) -> dict[str, Any]:
        """Return what trackio shows as the configuration of the run."""
        options = self._run.info.settings.get("run", {})
        known = {name: options.get(name) for name in ("tasks", "split", "attempts", "grader")}
        for request in self._requests[:1]:
            known |= {name: getattr(request, name) for name in ("agent", "sandbox", "engine", "model")}
        shown = {
            name: without_folder(value) if isinstance(value, str) else value
            for name, value in known.items()
            if value not in (None, "")
        }
        return {**shown, "run directory": self._run.path.absolute().name, "versions": self._run.info.versions}

    def _send(self, rollout: Rollout) -> None:
        """Send a rollout that trackio lacks, and that does not run again."""
        interrupted = rollout.outcome == "cancelled" and rollout.cancelled_as is None
        if interrupted or self._tracker.sent.has(rollout):
            return
        try:
            turns = self._run.turns(rollout.id)
            events = [] if turns else self._run.events(rollout.id)
            trace = {
                "messages": conversation(turns, events),
                "metadata": about(rollout),
                "spans": spans(rollout, turns),
            }
            self._tracker.add(rollout, self._secrets.value(trace))
        except Exception as error:  # the boundary: a rollout that cannot be sent harms no other
            self._failed += 1
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        """Log each error once."""
        if sentence(error) not in self._said:
            self._said.add(sentence(error))
            logger.warning("trackio: %s", sentence(error))
