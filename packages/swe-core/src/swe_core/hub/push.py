"""Push a run: while it runs, in a thread of its own (`HubPush`), or afterwards (`push_run`)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.errors import UsageError, sentence
from swe_core.hub.client import TryLater
from swe_core.hub.dataset import DatasetRepository
from swe_core.hub.options import PushOptions
from swe_core.hub.pushed_run import PushedRun, is_final
from swe_core.hub.secrets import push_redactor
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_core.rollout.runner import Runner
from swe_core.system.plural import counted

logger = logging.getLogger(__name__)

MAX_ROWS = 1000
MAX_BYTES = 128 * 1024 * 1024
"""Bytes of rollouts' folders in one shard, which is built in memory."""

WAIT = wait_exponential(multiplier=1, max=10)
_TRIES = 4
"""Seconds between the last attempts, and their number: enough for a short failure, not for an outage."""


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of `push_run`.

    Args:
        url: The page of the data set.
        new: Rollouts that this push added.
        finished: Finished rollouts of the run, all of which the data set holds now.
        interrupted: Interrupted rollouts, which run again when the run is resumed.
        unfinished: Rollouts without a record: running, killed, or not begun. Where their planned number is
            unknown, only those that have begun.
    """

    url: str
    new: int
    finished: int
    interrupted: int
    unfinished: int


def push_run(run: RunDirectory, options: PushOptions) -> PushResult:
    """Push the finished rollouts of a run that were not pushed yet. The run may still be running.

    Args:
        options: `to` names the data set.

    Raises:
        TryLater: The Hub does not answer, after several attempts. Shards that were pushed stay.
        UsageError: No later attempt can succeed either.
    """
    repository = DatasetRepository(options)
    recorded, none = run.rollouts(), PushedRun.of(run)
    final = [rollout for rollout in recorded if is_final(rollout)]
    before: list[PushedRun] = []

    def once() -> int:
        before.append(repository.run(none))
        return _push(run, repository, final, ())

    _with_retries(once)
    ids = {rollout.id for rollout in recorded}
    begun = {folder.name for folder in (run.path / FOLDERS).glob("*")} - ids
    planned = run.info.planned
    return PushResult(
        url=repository.url,
        new=sum(before[0].is_missing(rollout) for rollout in final),
        finished=len(final),
        interrupted=len(recorded) - len(final),
        unfinished=len(begun) if planned is None else max(0, planned - len(ids)),
    )


class HubPush:
    """The extension of a run that pushes its finished rollouts to a data set while others run.

    Args:
        options: `to` names the data set.
    """

    def __init__(self, options: PushOptions) -> None:
        self._options = options
        self._repository: DatasetRepository | None = None

    async def prepare(self) -> None:
        """Open the data set, before anything of the run is open, so that a wrong token is reported at once.

        A Hub that does not answer is a warning: the push tries again later.

        Raises:
            UsageError: No later attempt can succeed either.
        """
        self._repository = await anyio.to_thread.run_sync(DatasetRepository, self._options)
        try:
            await anyio.to_thread.run_sync(self._repository.open)
        except TryLater as error:
            logger.warning("%s; the run continues, and the push tries again", sentence(error))

    @asynccontextmanager
    async def running(self, runner: Runner) -> AsyncIterator[None]:
        """Push the finished rollouts, also those from before a resume; at the end, push the remaining ones.

        Errors are logged, never raised. Call `prepare` first.
        """
        if self._repository is None:
            raise RuntimeError("HubPush.running was called before HubPush.prepare")
        pusher = _Pusher(self._repository, runner.store, self._options.every)
        runner.observe(pusher)
        pusher.start()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(pusher.close)


class _Pusher:
    """An observer whose thread does the blocking work."""

    def __init__(self, repository: DatasetRepository, run: RunDirectory, every: float) -> None:
        self._repository = repository
        self._run = run
        self._every = every
        self._changed = threading.Condition()
        self._waiting: dict[str, Rollout] = {}
        self._secrets: set[str] = set()
        self._closing = False
        self._last_error = ""
        self._pushed = 0
        self._thread = threading.Thread(target=self._work, name="push", daemon=True)

    def start(self) -> None:
        """Start the thread, which first pushes the rollouts from before a resume."""
        self._thread.start()

    def close(self) -> None:
        """Push the remaining rollouts, and log the result."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def started(self, request: RolloutRequest) -> None:
        """Nothing to push."""

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Nothing to push."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Nothing to push."""

    def finished(self, rollout: Rollout) -> None:
        """Queue the rollout, which is on disk."""
        if not is_final(rollout):
            return
        with self._changed:
            self._waiting[rollout.id] = rollout
            self._secrets |= self._run.redactor.known()
            self._changed.notify()

    def _work(self) -> None:
        try:
            before = {rollout.id: rollout for rollout in self._run.rollouts() if is_final(rollout)}
        except UsageError as error:
            logger.warning("rollouts that finished earlier are not pushed: %s", sentence(error))
            before = {}
        with self._changed:
            self._waiting = {**before, **self._waiting}
        while not self._wait():
            self._push(self._once)
        if self._waiting:
            logger.info("pushing the remaining rollouts to %s", self._repository.url)
        self._push(lambda: _with_retries(self._once))
        left = len(self._waiting)
        if left:
            logger.warning(
                "up to %s not pushed; the run directory has them, and this command pushes them: "
                "swe-core push %s --to %s",
                f"{counted(left, 'rollout')} {'is' if left == 1 else 'are'}",
                self._run.path,
                self._repository.id,
            )
        elif self._pushed:
            what = counted(self._pushed, "rollout")
            logger.info("pushed %s to %s", what, self._repository.url)

    def _wait(self) -> bool:
        """Wait until the next commit is due and has a rollout. Returns whether the run is over."""
        due = time.monotonic() + self._every
        with self._changed:
            self._changed.wait_for(lambda: self._closing, due - time.monotonic())
            self._changed.wait_for(lambda: self._closing or bool(self._waiting))
            return self._closing

    def _push(self, once: Callable[[], int]) -> None:
        """Push, and log each error once."""
        try:
            self._pushed += once()
        except Exception as error:  # the boundary: a failed push ends no run
            if sentence(error) != self._last_error:
                self._last_error = sentence(error)
                logger.warning("%s", self._last_error)
        else:
            self._last_error = ""

    def _once(self) -> int:
        with self._changed:
            waiting, secrets = dict(self._waiting), set(self._secrets)
        pushed = _push(self._run, self._repository, waiting.values(), secrets)
        with self._changed:
            for rollout_id, rollout in waiting.items():
                if self._waiting[rollout_id] is rollout:
                    del self._waiting[rollout_id]
        return pushed


def _with_retries(push: Callable[[], int]) -> int:
    """Call `push`, several times if the Hub is overloaded. Returns how many rollouts the last call pushed."""
    again = Retrying(
        retry=retry_if_exception_type(TryLater), stop=stop_after_attempt(_TRIES), wait=WAIT, reraise=True
    )
    return again(push)


def _push(
    run: RunDirectory, repository: DatasetRepository, rollouts: Iterable[Rollout], secrets: Iterable[str]
) -> int:
    """Push the missing ones of `rollouts`, shard by shard. Returns their number."""
    from swe_core.hub.rows import shard  # imports pyarrow

    redactor = push_redactor(secrets)
    none, wanted, pushed = PushedRun.of(run), list(rollouts), 0
    while True:
        there = repository.run(none)
        left = [rollout for rollout in wanted if there.is_missing(rollout)]
        if not left:
            return pushed
        batch = _batch(run, left)
        data = shard(run, there.run, batch, redactor)
        repository.commit(there.with_shard(batch), there.next_shard, data, len(batch))
        pushed += len(batch)


def _batch(run: RunDirectory, rollouts: list[Rollout]) -> list[Rollout]:
    """Return the first of `rollouts`: as many as fit into a shard, and at least one."""
    size = 0
    for count, rollout in enumerate(rollouts[:MAX_ROWS]):
        folder = run.path / FOLDERS / rollout.id
        size += sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0
        if count and size > MAX_BYTES:
            return rollouts[:count]
    return rollouts[:MAX_ROWS]
