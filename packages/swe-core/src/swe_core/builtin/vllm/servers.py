"""Servers: selects one of several servers for each rollout."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swe_core.builtin.vllm.client import Client

_AVOIDED = 60.0
"""Time during which a server that failed is avoided if there is another, seconds."""


@dataclass(slots=True, eq=False)
class Server:
    """One server.

    Args:
        rollouts: How many open rollouts ask it.
        avoided_until: On the monotonic clock, seconds.
    """

    client: Client
    rollouts: int = 0
    avoided_until: float = 0.0


class Servers:
    """Distributes rollouts over servers. A rollout stays on its server, whose prefix cache has its prompt,
    until that server fails."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._servers = [Server(client) for client in clients]

    def join(self) -> Server:
        """Return the server for a new rollout: the one with the fewest rollouts, if possible not a failed
        one.

        Call `leave` at the end of the rollout.
        """
        return _join(self._servers)

    def move(self, server: Server, failed: Collection[Server]) -> Server | None:
        """Return another server than `server`, which failed, and than `failed`; None without one."""
        server.avoided_until = time.monotonic() + _AVOIDED
        others = [other for other in self._servers if other not in failed]
        if not others:
            return None
        self.leave(server)
        return _join(others)

    def leave(self, server: Server) -> None:
        """End a rollout's use of `server`."""
        server.rollouts -= 1


def _join(servers: Sequence[Server]) -> Server:
    now = time.monotonic()
    chosen = min(servers, key=lambda server: (server.avoided_until > now, server.rollouts))
    chosen.rollouts += 1
    return chosen
