"""Names and the manifest that both sides of a deployment share."""

from __future__ import annotations

from swe_core.api.records import Record

PORT = 7860
"""HTTP port of a Space."""
KEY = "SWE_SPACE_KEY"
"""Secret that authorises `/state`: random for each deployment."""
KEY_HEADER = "X-Swe-Key"
"""Header with that key. `Authorization` holds the Hub's token, which a private Space requires."""
TOKEN = "HF_TOKEN"  # noqa: S105 - a name
"""Secret with which the Space pauses itself, and accesses private repositories on the Hub."""


class Manifest(Record):
    """The content of `deployment.json`.

    Args:
        config: The settings file, in the working directory of the run.
        sets: Values of `--set`.
        secrets: Variables whose values must not be shown.
    """

    config: str
    sets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
