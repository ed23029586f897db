"""TRLRolloutWorker: what TRL's trainer takes rollouts from. The rollouts run in a process of their own."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from swe_core.errors import SweError, sentence
from swe_core.run.settings import Settings
from swe_trainer_trl.compat import make_sample
from swe_trainer_trl.journal.arrays import count
from swe_trainer_trl.journal.groups import Row
from swe_trainer_trl.journal.journal import Journal, ReadyGroup
from swe_trainer_trl.normalization import Part
from swe_trainer_trl.rollouts.messages import (
    Back,
    Closed,
    Command,
    Failed,
    FeedOptions,
    Lost,
    Metrics,
    Start,
    Stop,
    Taken,
    Version,
    line,
    report,
)
from swe_trainer_trl.trainer.row_queue import Item, RowBuffer

logger = logging.getLogger(__name__)

_GRACE = 60.0
"""Seconds that the rollouts' process has to close its sandboxes."""
_POLL = 0.5
"""Seconds between two looks at whether to stop, where a queue is full."""
_NOT_FOR_THE_CHILD = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
)
"""What `accelerate launch` and torchrun tell the processes of a trainer; the rollouts are none of them."""


class TRLRolloutWorker:
    """TRL's `RolloutWorkerProtocol`, on rollouts of an agent that nobody changed.

    `start` spawns the process in which agents run; rows come back through the journal, so that what a killed
    process had finished is there when the run is resumed.

    Attributes:
        rollout_buffer: Rows for the trainer.
        metrics_queue: What the rollouts measured, for the trainer's log.
        version: Of the policy; 0 before the trainer's first weight sync.
        idle: Called in the trainer's thread while it waits for rows.

    Args:
        settings: The run's, with the engine's URL and how it samples.
        directory: The run directory, which is there.
        journal: Its journal, at `journal_path`.
        options: How groups are made.
        queue_rows: Rows to hold for the trainer, besides those of one group.
        max_row: Ids of the longest row that the trainer takes; None or 0 for any. Asked for each group.
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
        self.version = journal.version
        self._ahead = 0
        self._server_lost = False
        self.idle: Callable[[], None] = _nothing
        self._settings = settings
        self._directory = directory
        self._journal = journal
        self._journal_path = journal_path
        self._options = options
        self._max_row = max_row
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: int | None = None
        self._writing = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._stopping = threading.Event()
        self._heard = 0.0
        self._failure: Failed | None = None
        self._problem: BaseException | None = None

    # what TRL asks

    def start(self) -> None:
        """Start the rollouts. TRL calls it once, after the first weight sync."""
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
                start_new_session=True,  # Ctrl-C is the trainer's to hear, which then says stop
            )
        except BaseException:
            os.close(commands)
            os.close(ours_read)
            raise
        finally:
            os.close(theirs_read)
            os.close(theirs_write)
        self._heard = time.monotonic()
        start = Start(
            settings=self._settings.model_dump(mode="json"),
            directory=str(self._directory),
            journal=str(self._journal_path),
            version=self.version,
            updates=self._journal.updates(),
            options=self._options,
        )
        with self._writing:
            self._commands = commands
            for message in (start, Lost()) if self._server_lost else (start,):
                self._write(message)
        # Only now: what they say comes after that.
        for work, name in ((lambda: self._listen(ours_read), "reports"), (self._pump, "rows")):
            thread = threading.Thread(target=self._guarded, args=(work,), name=f"swe-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End the rollouts, with every sandbox closed; what they had not finished can be resumed. TRL
        calls it when training ends, however it does."""
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
        """The policy has this version from now on."""
        self._journal.raise_version(model_version)
        updates = self._journal.updates()[model_version]
        self.version = model_version
        self._ahead = model_version - updates
        self._say(Version(version=model_version, updates=updates))

    def server_lost(self) -> None:
        """The policy's server has died: its rollouts are ended, and their attempts left open."""
        self._server_lost = True
        self._say(Lost())

    def server_back(self) -> None:
        """It is there again, with the policy's weights: rollouts go on."""
        self._server_lost = False
        self._say(Back())

    def check_health(self, stale_after_s: float) -> None:
        """Raise where no more rows will come. TRL asks whenever it has waited for some.

        Raises:
            SweError: The rollouts' process has ended, or says nothing since `stale_after_s` seconds.
        """
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
            for thread in self._threads[:1]:  # its last words may still be on their way
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

    # its two threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:  # told by check_health, in the trainer's thread
            self._problem = problem

    def _listen(self, descriptor: int) -> None:
        """Hear what the rollouts' process says, until it ends."""
        with os.fdopen(descriptor, "rb") as reports:
            for data in reports:
                if not data.endswith(b"\n"):  # it was killed while it said this
                    return
                self._heard = time.monotonic()
                message = report(data)
                if isinstance(message, Closed):
                    self._closed.set()
                elif isinstance(message, Metrics):
                    self.metrics_queue.put(message.values)
                elif isinstance(message, Failed):
                    self._failure = message

    def _pump(self) -> None:
        """Take groups from the journal as they are closed, into the buffer."""
        after = -1
        while True:
            self._closed.clear()  # before the look at `_stopping`, which is set before it
            if self._stopping.is_set():
                return
            for group in self._journal.ready(after):
                after = group.closed
                self._hand_over(group)
                self._closed.set()  # there may be more
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
            model_version=row.update,  # the buffer makes a version of it
            group_id=group,
            metrics={"sample/reward": row.reward},
            enqueued_at=time.time(),
        )
        return Item(
            row_id, group, Part(row.rollout_id, count(row.completion_mask), whole), row.update, sample
        )

    # what they say to the rollouts' process

    def _stale(self, item: Item) -> None:
        self._journal.drop([item.row_id], "stale")
        self.metrics_queue.put({"staleness/rows_dropped_total": 1.0})

    def _taken(self, group: int) -> None:
        self._say(Taken(group=group))

    def _say(self, message: Command) -> None:
        with self._writing:
            self._write(message)

    def _write(self, message: Command) -> None:
        with suppress(BrokenPipeError):  # that it has ended is check_health's to tell
            if self._commands is not None:
                data = line(message)
                while data:
                    data = data[os.write(self._commands, data) :]


def _nothing() -> None:
    """What an idle trainer does where nobody says anything else."""


def _with_traceback(failure: Failed) -> str:
    return f"{failure.message}\n{failure.traceback}" if failure.traceback else failure.message
