"""Python: a CPython that runs in any Linux image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swe_core.bundles.recipe import Content, Part
from swe_core.errors import AgentError


@dataclass(frozen=True, slots=True)
class Python(Part):
    """The program `bin/python3`, with its own loader, libraries and standard library.

    It finds the bundle's `site-packages` by itself. Start it with `-I`, since the image may set PYTHONPATH.

    Args:
        version: Its version, such as "3.12".
        configured: The user's choice, from the setting `python` of the agent.
    """

    version: str = "3.12"
    configured: Path | None = None

    def resolve(self, agent: str) -> Content:
        raise AgentError("python: to come")
