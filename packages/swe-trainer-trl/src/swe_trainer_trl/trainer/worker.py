"""TRLRolloutWorker: supplies TRL's trainer with rollouts, which run in a separate process."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from swe_core.errors import SweError, sentence
from swe_core.run.settings import Settings
from swe_trainer_trl.compat import make_sample
from swe_trainer_trl.journal.arrays import count
from swe_trainer_trl.journal.groups import Row
from swe_trainer_trl.journal.journal import BegunEvaluation, Journal, ReadyGroup
from swe_trainer_trl.normalization import Part
from swe_trainer_trl.rollouts.messages import (
    Back,
    Closed,
    Command,
    Evaluate,
    Evaluated,
    Failed,
    FeedOptions,
    Finish,
    Lost,
    Metrics,
    Start,
    Stop,
    Taken,
    Version,
    line,
    report,
)
from swe_trainer_trl.server.urls import server_urls
from swe_trainer_trl.trainer.row_queue import Item, RowBuffer

logger = logging.getLogger(__name__)

_GRACE = 60.0
"""Seconds within which the rollouts' process must close its sandboxes."""
_POLL = 0.5
"""Seconds between two checks for a stop while the buffer is full."""
_NOT_FOR_THE_CHILD = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
)
"""Variables that `accelerate launch` and torchrun set for a trainer's processes. They do not apply to the
rollouts' process."""


class TRLRolloutWorker:
    """TRL's `RolloutWorkerProtocol`, with rollouts of an unmodified agent.

    `start` spawns the process in which the agents run. Rows come back through the journal, so a resumed run
    has everything that a killed process had finished.

    Attributes:
        rollout_buffer: Rows for the trainer.
        metrics_queue: Metrics of the rollouts, for the trainer's log.
        evaluations: Metrics of each finished evaluation that is not in `metrics_queue` yet, oldest first.
        version: Version of the policy; 0 before the trainer's first weight sync.
        idle: Called in the trainer's thread while it waits for rows.

    Args:
        settings: Settings of the run, with the engine's URL and sampling settings.
        directory: The existing run directory.
        journal: The journal of the run.
        journal_path: Path of that journal.
        options: Options of the groups.
        queue_rows: Rows to hold for the trainer, besides those of one group.
        max_row: Returns the largest number of ids in a row for the trainer, None or 0 for no limit. It is
            called for each group.
        check_others: Raises a `SweError` if another trainer process has ended.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        journal: Journal,
        journal_path: Path,
        options: FeedOptions,
        queue_rows: int,
        max_row: Callable[[], int | None],
        check_others: Callable[[], None],
    ) -> None:
        self.rollout_buffer = RowBuffer(
            queue_rows,
            lambda: self.version,
            options.max_staleness,
            self._stale,
            self._taken,
            lambda: self._ahead,
        )
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.evaluations: deque[dict[str, Any]] = deque()
        self.version = journal.version
        self._ahead = 0
        self._lost: set[str] = set()
        self.idle: Callable[[], None] = _nothing
        self._settings = settings
        self._directory = directory
        self._journal = journal
        self._journal_path = journal_path
        self._options = options
        self._max_row = max_row
        self._check_others = check_others
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: int | None = None
        self._writing = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._stopping = threading.Event()
        self._evaluating = {evaluation.id for evaluation in journal.open_evaluations()}
        self._evaluated = threading.Event()
        self._heard = 0.0
        self._failure: Failed | None = None
        self._problem: BaseException | None = None

    # --- TRL's protocol ---

    def start(self) -> None:
        """Start the rollouts. TRL calls this method once, after the first weight sync."""
        theirs_read, commands = os.pipe()
        ours_read, theirs_write = os.pipe()
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_THE_CHILD}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        try:
            module = "swe_trainer_trl.rollouts.process"
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs_read), str(theirs_write)],
                pass_fds=(theirs_read, theirs_write),
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the trainer only, which then sends Stop
            )
        except BaseException:  # also cancellation: clean up, then raise
            os.close(commands)
            os.close(ours_read)
            raise
        finally:
            os.close(theirs_read)
            os.close(theirs_write)
        self._heard = time.monotonic()
        with self._writing:
            there, lost = self._servers()
            start = Start(
                settings=_asking(self._settings, there).model_dump(mode="json"),
                directory=str(self._directory),
                journal=str(self._journal_path),
                version=self.version,
                updates=self._journal.updates(),
                options=self._options,
            )
            self._commands = commands
            self._write(start)
            for url in lost:
                self._write(Lost(url=url))
        # The messages of the threads must come after these.
        for work, name in ((lambda: self._listen(ours_read), "reports"), (self._pump, "rows")):
            thread = threading.Thread(target=self._guarded, args=(work,), name=f"swe-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End the rollouts and close every sandbox. Unfinished rollouts can be resumed.

        TRL calls this method when training ends, also after an error.
        """
        self._stopping.set()
        if self._process is None:
            return
        self._say(Stop())
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            logger.warning(
                "the rollouts' process did not end within %.0f s and was killed; the next run removes the "
                "sandboxes that it left behind",
                _GRACE,
            )
            self._process.kill()
            self._process.wait()
        self._closed.set()
        for thread in self._threads:
            thread.join(_GRACE)
        with self._writing:
            if self._commands is not None:
                os.close(self._commands)
                self._commands = None

    def update_model_version(self, model_version: int) -> None:
        """Set the version of the policy."""
        self._journal.raise_version(model_version)
        updates = self._journal.updates()[model_version]
        self.version = model_version
        self._ahead = model_version - updates
        self._say(Version(version=model_version, updates=updates))

    def evaluate(self, evaluation: BegunEvaluation) -> None:
        """Begin an evaluation, which is open in the journal."""
        self._evaluating.add(evaluation.id)
        self._say(Evaluate(**asdict(evaluation)))

    def finish_evaluations(self, stale_after_s: float) -> None:
        """End all rollouts of the training, and wait for the evaluations. The limits of rollouts bound it.

        Args:
            stale_after_s: As in `check_health`.

        Raises:
            SweError: As in `check_health`.
        """
        self._say(Finish())
        while self._evaluating:
            self._evaluated.wait(_POLL)
            self._evaluated.clear()
            self.check_health(stale_after_s)

    def server_lost(self, url: str) -> None:
        """End the rollouts on a server of the policy, which has died. Their attempts run again."""
        self._lost.add(url)
        self._say(Lost(url=url))

    def server_back(self, url: str) -> None:
        """Let a server have rollouts again: it is back and has the policy's weights."""
        self._lost.discard(url)
        self._say(Back(url=url))

    def check_health(self, stale_after_s: float) -> None:
        """Raise an error if no more rows will come. TRL calls this method whenever it has waited for rows.

        Args:
            stale_after_s: Seconds without a heartbeat after which the process counts as hung.

        Raises:
            SweError: The rollouts' process has ended or hangs, rows cannot be read, or another trainer
                process has ended.
        """
        self._check_others()
        self.idle()
        if self._problem is not None:
            raise SweError(
                f"rows could not be handed to the trainer: {sentence(self._problem)}"
            ) from self._problem
        if self._failure is not None:
            raise SweError(_with_traceback(self._failure))
        if self._process is None or self._stopping.is_set():
            return
        code = self._process.poll()
        if code is not None:
            for thread in self._threads[:1]:  # its last messages may still be in the pipe
                thread.join(_POLL)
            if self._failure is not None:
                raise SweError(_with_traceback(self._failure))
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise SweError(
                f"the rollouts' process {how}, so no more rows come; resume with --resume: finished "
                "rollouts are kept"
            )
        silent = time.monotonic() - self._heard
        if silent > stale_after_s:
            raise SweError(
                f"the rollouts' process has sent no heartbeat for {silent:.0f} s "
                "(grpo.heartbeat_stale_after_s), so it hangs; resume with --resume"
            )

    # --- threads ---

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:  # raised by check_health, in the trainer's thread
            self._problem = problem

    def _listen(self, descriptor: int) -> None:
        """Receive the messages of the rollouts' process until it ends."""
        with os.fdopen(descriptor, "rb") as reports:
            for data in reports:
                if not data.endswith(b"\n"):  # the process was killed while it wrote this line
                    return
                self._heard = time.monotonic()
                message = report(data)
                if isinstance(message, Closed):
                    self._closed.set()
                elif isinstance(message, Evaluated):
                    self.evaluations.append(message.values)
                    self._evaluating.discard(message.id)
                    self._evaluated.set()
                elif isinstance(message, Metrics):
                    self.metrics_queue.put(message.values)
                elif isinstance(message, Failed):
                    self._failure = message

    def _pump(self) -> None:
        """Move closed groups from the journal into the buffer, and end it after the last one."""
        after, last = -1, self._options.groups
        while True:
            self._closed.clear()  # clear before the check: `stop` sets `_stopping` before `_closed`
            if self._stopping.is_set():
                return
            over = last is not None and self._journal.all_closed(last)
            groups = self._journal.ready(after)
            for group in groups:
                after = group.closed
                self._hand_over(group)
                self._closed.set()  # more groups may be ready
            if over and not groups:
                self.rollout_buffer.end()
                return
            self._closed.wait()

    def _hand_over(self, group: ReadyGroup) -> None:
        longest = self._max_row() or 0
        fitting = [one for one in group.rows if longest <= 0 or len(one[1].input_ids) <= longest]
        if len(fitting) < len(group.rows):
            kept = {row_id for row_id, _ in fitting}
            long = [row_id for row_id, _ in group.rows if row_id not in kept]
            self._journal.drop(long, "too_long")
            self.metrics_queue.put({"batch/rows_too_long_total": float(len(long))})
        if not fitting:
            self._taken(group.id)
            return
        whole = Counter(group.trained)
        for _, row in fitting:
            whole[row.rollout_id] += count(row.completion_mask)
        items = [self._item(group.id, row_id, row, whole[row.rollout_id]) for row_id, row in fitting]
        while not self.rollout_buffer.put_group(items, _POLL):
            if self._stopping.is_set():
                return

    def _item(self, group: int, row_id: int, row: Row, whole: int) -> Item:
        sample = make_sample(
            prompt=[],
            completion=[],
            input_ids=row.input_ids,
            completion_mask=row.completion_mask,
            old_log_probs=row.old_log_probs,
            advantage=row.advantage,
            model_version=row.update,  # the buffer converts it to a version
            group_id=group,
            metrics={"sample/reward": row.reward},
            enqueued_at=time.time(),
        )
        part = Part(row.rollout_id, count(row.completion_mask), whole)
        return Item(row_id, group, part, row.update, sample, row.chain, row.cause, row.advantage)

    # --- messages to the rollouts' process ---

    def _stale(self, item: Item) -> None:
        self._journal.drop([item.row_id], "stale")
        self.metrics_queue.put({"staleness/rows_dropped_total": 1.0})

    def _taken(self, group: int) -> None:
        self._say(Taken(group=group))

    def _servers(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the servers that the rollouts' process begins with, and those of them that are dead.

        It begins without the dead ones, which its check would refuse, unless all are dead.
        """
        urls = server_urls(self._settings.run.engine_url or "")
        there = [url for url in urls if url not in self._lost]
        return (there, ()) if there else (urls, urls)

    def _say(self, message: Command) -> None:
        with self._writing:
            self._write(message)

    def _write(self, message: Command) -> None:
        with suppress(BrokenPipeError):  # check_health reports the end of the process
            if self._commands is not None:
                data = line(message)
                while data:
                    data = data[os.write(self._commands, data) :]


def _asking(settings: Settings, urls: Sequence[str]) -> Settings:
    """Return settings whose engine asks these servers."""
    if not urls:  # the engine has a URL of its own
        return settings
    run = settings.run.model_copy(update={"engine_url": ",".join(urls)})
    return settings.model_copy(update={"run": run})


def _nothing() -> None:
    """Do nothing; the default of `TRLRolloutWorker.idle`."""


def _with_traceback(failure: Failed) -> str:
    return f"{failure.message}\n{failure.traceback}" if failure.traceback else failure.message
