"""The trackers of an evaluation, as extensions of its run."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from swe_core.errors import ConfigError
from swe_core.trackers.options import TrackOptions

if TYPE_CHECKING:
    from swe_core.trackers.trackio_tracker import TrackioTracker

_TRACKIO = "trackio"


def tracker_extensions(options: TrackOptions, directory: Path) -> tuple[TrackioTracker, ...]:
    """Return the extensions of an evaluation with these options: none without a tracker.

    Args:
        directory: The run directory, which need not exist yet.

    Raises:
        ConfigError: An evaluation cannot be sent to a tracker of that name.
    """
    for name in options.to:
        if name != _TRACKIO:
            close = difflib.get_close_matches(name, [_TRACKIO], n=1)
            hint = f"did you mean {_TRACKIO!r}?" if close else f"there is: {_TRACKIO}"
            raise ConfigError(f"track.to: an evaluation has no tracker {name!r}; {hint}")
    if not options.to:
        return ()
    from swe_core.trackers.trackio_tracker import TrackioTracker

    return (TrackioTracker(options, directory),)
