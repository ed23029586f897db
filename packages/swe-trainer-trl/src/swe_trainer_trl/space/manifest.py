"""What both sides of a deployment know: written here, read there."""

from __future__ import annotations

from swe_core.api.records import Record

PORT = 7860
"""Where a Space is asked."""
KEY = "SWE_SPACE_KEY"
"""The secret that opens `/state`: random, another for each deployment."""
KEY_HEADER = "X-Swe-Key"
"""The header that carries it. `Authorization` carries the Hub's token to a private Space's door."""
TOKEN = "HF_TOKEN"  # noqa: S105 - a name
"""The secret that lets the Space pause itself, and read and write what is private on the Hub."""


class Manifest(Record):
    """`deployment.json`.

    Args:
        config: The settings file, in the working directory of the run.
        sets: As `--set`, each one.
        secrets: Variables whose values nothing may show.
    """

    config: str
    sets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
