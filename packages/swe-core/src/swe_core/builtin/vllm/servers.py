"""Servers: which of several servers a rollout asks."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swe_core.builtin.vllm.client import Client

_AVOIDED = 60.0
"""Seconds for which a server that failed is asked only where there is no other."""


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
    """Spreads rollouts over servers. A rollout stays on one, which has its prompt in the prefix cache, until
    that one fails."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._servers = [Server(client) for client in clients]

    def join(self) -> Server:
        """The server for a new rollout: the one with the fewest, and none that failed lately where there is
        another. Leave it with `leave`."""
        return _join(self._servers)

    def move(self, server: Server, failed: Collection[Server]) -> Server | None:
        """The server for a rollout whose `server` failed: none of those that `failed`. None where there is no
        other, and the rollout stays."""
        server.avoided_until = time.monotonic() + _AVOIDED
        others = [other for other in self._servers if other not in failed]
        if not others:
            return None
        self.leave(server)
        return _join(others)

    def leave(self, server: Server) -> None:
        """A rollout asks `server` no more."""
        server.rollouts -= 1


def _join(servers: Sequence[Server]) -> Server:
    now = time.monotonic()
    chosen = min(servers, key=lambda server: (server.avoided_until > now, server.rollouts))
    chosen.rollouts += 1
    return chosen
