"""Another trainer process: python -m swe_trainer_trl.trainer.follow RANK PORT, with a job at its input.

It computes what rank 0 asks for. It writes neither records nor checkpoints, except for its part of the state
that transformers saves for each process.
"""

from __future__ import annotations

import pickle
import sys

from swe_core.errors import SweError, sentence
from swe_trainer_trl.trainer.ranks import RankJob, joining
from swe_trainer_trl.trainer.train import follow


def main() -> int:
    """Take part in the training of rank 0; return the exit code."""
    rank, port = int(sys.argv[1]), int(sys.argv[2])
    job: RankJob = pickle.load(sys.stdin.buffer)  # from the parent process
    try:
        with joining(rank, job.processes, port):
            follow(job)
    except SweError as error:
        print(sentence(error), file=sys.stderr)  # noqa: T201 (the log of this process)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
