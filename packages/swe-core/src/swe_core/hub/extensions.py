"""The extensions of a run that pushes to the Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swe_core.hub.options import PushOptions

if TYPE_CHECKING:
    from swe_core.hub.push import HubPush


def hub_extensions(options: PushOptions) -> tuple[HubPush, ...]:
    """Return the extensions of a run with these options: none without a data set to push to."""
    if options.to is None:
        return ()
    from swe_core.hub.push import HubPush  # with numpy, for the rows

    return (HubPush(options),)
