"""Trainer processes: this one, which is rank 0, starts the others and joins them to a process group.

Rank 0 has the journal, the rollouts, the server and the disk. The others only compute: TRL deals the rows of
each micro-batch to all, and they take part in its collective operations.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed import distributed_c10d

from swe_core.errors import SweError
from swe_core.system.ports import free_port
from swe_trainer_trl.compat import AsyncGRPOConfig
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.trainer import cpu_processes
from swe_trainer_trl.trainer.arguments import grpo_arguments

logger = logging.getLogger(__name__)

READY = b"ready\n"
"""What another process writes when it has imported everything and can join."""
_WAIT = timedelta(days=7)
"""Timeout of a collective operation: the other processes wait in one while rank 0 waits for rows."""
_START = 600.0
"""Seconds until the other processes are ready; an import of torch and TRL takes 20 s and more."""
_END = 60.0
"""Seconds in which the other processes must end after the training."""
_NOTICED = 5.0
"""Seconds in which the end of a process that an error comes from is noticed."""
_HANGS = 120.0
"""Seconds after the end of another process until rank 0 must have ended. It stops its rollouts first, but
NCCL may wait for the other process for ever."""


@dataclass(frozen=True, slots=True)
class RankJob:
    """What every trainer process needs to know.

    Args:
        config: Settings of the worker.
        directory: The run directory.
        output_dir: Directory of the checkpoints.
        group_size: Attempts per task; None if unset.
        defaults: See `swe_trainer_trl.trainer.arguments.grpo_arguments`.
        model: The policy's weights.
        tasks: Ids of the tasks.
        checkpoint: The checkpoint to resume from; None without one.
        over: Whether the training of `checkpoint` is at its end.
        processes: Number of trainer processes.
    """

    config: TRLConfig
    directory: Path
    output_dir: Path
    group_size: int | None
    defaults: Mapping[str, Any]
    model: str
    tasks: Sequence[str]
    checkpoint: Path | None
    over: bool
    processes: int

    def arguments(self) -> AsyncGRPOConfig:
        """Return TRL's arguments of this process."""
        cpu_processes.install()
        return grpo_arguments(
            self.config,
            output_dir=self.output_dir,
            group_size=self.group_size,
            defaults=self.defaults,
            sharded=self.config.sharding == "fsdp",
        )


@contextmanager
def joined(job: RankJob) -> Iterator[tuple[AsyncGRPOConfig, Callable[[], None]]]:
    """Start the other trainer processes and join them as rank 0.

    The other processes end with the block, and with this process.

    Yields:
        TRL's arguments for all processes, and a function that raises an error once another process has ended.

    Raises:
        SweError: Another process ended; the sentence quotes its log.
    """
    others = _Others(job)
    try:
        others.start()
        with _in_group(0, job.processes, others.port):
            try:
                yield job.arguments(), others.check
            except Exception as error:  # of any kind: the end of another process may be its cause
                died = others.died(_NOTICED)
                if died is not None:
                    raise SweError(f"{died}; resume with --resume") from error
                raise
        others.finish()
    finally:
        others.end()


@contextmanager
def joining(rank: int, processes: int, ready: int) -> Iterator[None]:
    """Join the group of rank 0 as another process. This process ends with rank 0.

    The standard input holds the job, then the port of the group, and then nothing until rank 0 ends.

    Args:
        ready: Descriptor on which to say that this process can join.
    """
    os.write(ready, READY)
    port = int(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_rank_0, name="swe-rank-0", daemon=True).start()
    with _in_group(rank, processes, port):
        yield


class _Others:
    """The other processes, as rank 0 sees them."""

    def __init__(self, job: RankJob) -> None:
        self.port = 0
        self._job = job
        self._processes: list[subprocess.Popen[bytes]] = []
        self._over = threading.Event()
        self._dead: int | None = None
        self._death = threading.Event()

    def start(self) -> None:
        """Start them, and wait until all can join.

        Raises:
            SweError: One ended, or was not ready in time.
        """
        message = pickle.dumps(self._job)
        for rank in range(1, self._job.processes):
            command = [sys.executable, "-m", "swe_trainer_trl.trainer.follow", str(rank)]
            with self._log(rank).open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # a Ctrl-C in the terminal reaches rank 0 only
                )
            self._processes.append(process)
            _say(process, message)
        until = time.monotonic() + _START
        for rank, process in enumerate(self._processes, 1):
            if not _is_ready(process, until):
                raise SweError(self._ended(rank) if process.poll() is not None else self._late(rank))
        self.port = free_port()  # only now, because others may take it before it is used
        for process in self._processes:
            _say(process, b"%d\n" % self.port)
        threading.Thread(target=self._watch, name="swe-ranks", daemon=True).start()

    def died(self, within: float) -> str | None:
        """Return which process ended before its time, as a sentence; None if none did.

        Args:
            within: Seconds to wait for an end.
        """
        if self._dead is None and self._processes and not self._over.is_set():
            self._death.wait(within)
        return None if self._dead is None else self._ended(self._dead)

    def check(self) -> None:
        """Raise an error if one ended before its time. Nothing else tells a process that waits for rows.

        Raises:
            SweError: One did.
        """
        died = self.died(0.0)
        if died is not None:
            raise SweError(f"{died}; resume with --resume")

    def finish(self) -> None:
        """Wait until all have ended, as they do after the training."""
        self._over.set()
        until = time.monotonic() + _END
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """End them."""
        self._over.set()
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()

    def _watch(self) -> None:
        """Notice the end of a process. If this process then waits for it for ever, end the training."""
        while not self._over.wait(0.2):
            # One that has ended well may be faster than rank 0, which saves the model.
            ended = [rank for rank, one in enumerate(self._processes, 1) if one.poll() not in (None, 0)]
            if not ended:
                continue
            self._dead = ended[0]
            self._death.set()
            if not self._over.wait(_HANGS):
                logger.error("%s; resume with --resume", self._ended(ended[0]))
                for process in self._processes:
                    process.kill()
                os._exit(1)  # no exception reaches a thread that waits in NCCL
            return

    def _log(self, rank: int) -> Path:
        return self._job.directory / f"trainer-{rank}.log"

    def _ended(self, rank: int) -> str:
        log, code = self._log(rank), self._processes[rank - 1].poll()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        said = f": {lines[-1].strip()[:300]}" if lines else ""
        return f"trainer process {rank} {how}{said}; its log is {str(log)!r}"

    def _late(self, rank: int) -> str:
        return f"trainer process {rank} was not ready in {_START:.0f} s; its log is {str(self._log(rank))!r}"


def _is_ready(process: subprocess.Popen[bytes], until: float) -> bool:
    """Wait for `READY`; return whether it came in time."""
    said, left = cast("IO[bytes]", process.stdout), max(0.0, until - time.monotonic())
    if not select.select([said], [], [], left)[0]:
        return False
    ready = os.read(said.fileno(), len(READY)) == READY
    if not ready:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_NOTICED)
    return ready


def _say(process: subprocess.Popen[bytes], message: bytes) -> None:
    with suppress(BrokenPipeError):  # its end is noticed elsewhere
        given = cast("IO[bytes]", process.stdin)
        given.write(message)
        given.flush()


def _end_with_rank_0() -> None:
    os.read(sys.stdin.fileno(), 1)  # not through a buffer, whose lock would disturb the end of this process
    os._exit(1)  # no exception reaches a thread that waits in a collective operation


@contextmanager
def _in_group(rank: int, processes: int, port: int) -> Iterator[None]:
    """Be in the process group, with the variables that accelerate reads."""
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl" if cuda else "gloo", timeout=_WAIT)
        try:
            yield
        except BaseException:  # also Ctrl-C
            # Leaving NCCL waits for the others, which wait for this process.
            (distributed_c10d._abort_process_group if cuda else torch.distributed.destroy_process_group)()
            raise
        torch.distributed.destroy_process_group()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
