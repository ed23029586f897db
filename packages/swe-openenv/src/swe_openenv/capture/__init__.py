"""A drop-in for OpenEnv's `CaptureServer`: it records the exact tokens of each call of an agent.

routes.py       HTTP: sessions, rollouts, trace entries
options.py      a request for a session, and the session's record
engines.py      URL, model and sampling to an engine, probed once
foreign.py      an engine that a client named
sessions.py     sessions in front of the gates of `swe_core.interception`
store.py        sessions on disk
shape.py        which call continues which
documents.py    recorded calls as OpenEnv's documents
server.py       all of it as a server
command.py      `swe-core openenv capture`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_openenv.capture.server import CaptureServer

__all__ = ["CaptureServer"]


def __getattr__(name: str) -> object:
    """Import the server at its first use: openenv and aiohttp take seconds."""
    if name == "CaptureServer":
        from swe_openenv.capture.server import CaptureServer

        return CaptureServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
