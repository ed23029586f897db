"""Wheels: pinned wheels from the Python package index. `pip download` fetches them; nothing of them runs."""

from __future__ import annotations

from dataclasses import dataclass

from swe_core.bundles.recipe import Content, Part
from swe_core.errors import AgentError


@dataclass(frozen=True, slots=True)
class Wheels(Part):
    """Pinned wheels, unpacked, with compiled modules.

    `python -m swe_core.bundles pin pypi:NAME==VERSION --python 3.12` prints the lock.

    Args:
        lock: Lines `name==version --hash=sha256:...` as pip takes them: everything that is needed, for
            nothing follows dependencies. A line may have hashes of wheels for several machines.
        python: The version that the bundle's `Python` has.
        into: Their folder in the bundle. The bundle's `bin/python3` finds `site-packages` by itself.
        drop: Patterns (`fnmatch`) of paths in `into` to leave out, such as `*/tests/*`.
    """

    lock: str
    python: str = "3.12"
    into: str = "site-packages"
    drop: tuple[str, ...] = ()

    def resolve(self, agent: str) -> Content:
        raise AgentError("wheels: to come")
