"""Names of a run in trackio."""

from __future__ import annotations

import itertools
import os

from swe_core.trackers.options import TrackOptions

PROJECT = "swe-core"
"""Project of runs that name none."""

_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Variables with which trackio logs to another machine."""


def is_local(options: TrackOptions) -> bool:
    """Return whether trackio stores the run on this machine."""
    return options.space is None and not any(os.environ.get(name) for name in _ELSEWHERE)


def free_name(options: TrackOptions, name: str) -> str:
    """Return `name`, or `name-2` and so on if the project on this machine has a run of that name."""
    if not is_local(options):
        return name
    import trackio

    try:
        taken = {run.name for run in trackio.Api().runs(options.project or PROJECT)}
    except ValueError:  # there is no such project yet
        return name
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)
