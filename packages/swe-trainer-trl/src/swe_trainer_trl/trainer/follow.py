"""Another trainer process: python -m swe_trainer_trl.trainer.follow RANK, with a job at its input.

It computes what rank 0 asks for. It writes neither records nor checkpoints, except for its part of the state
that transformers saves for each process.
"""

from __future__ import annotations

import os
import pickle
import sys

READY = os.dup(sys.stdout.fileno())
"""The pipe to rank 0. Nobody reads it later, so all other output goes to the log, also that of imports."""
os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

from swe_core.errors import SweError, sentence  # noqa: E402 (see `READY`)
from swe_trainer_trl.trainer.ranks import RankJob, joining  # noqa: E402 (see `READY`)
from swe_trainer_trl.trainer.train import follow  # noqa: E402 (see `READY`)


def main() -> int:
    """Take part in the training of rank 0; return the exit code."""
    rank = int(sys.argv[1])
    job: RankJob = pickle.load(sys.stdin.buffer)  # from the parent process
    try:
        with joining(rank, job.processes, READY):
            follow(job)
    except SweError as error:
        print(sentence(error), file=sys.stderr)  # noqa: T201 (the log of this process)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
