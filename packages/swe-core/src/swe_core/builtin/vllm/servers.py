"""Servers: selects one of several servers for each rollout."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Sequence
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
    until that server fails.

    The id of a rollout decides by rendezvous hashing, among the servers with less than an equal share of the
    rollouts.
    """

    def __init__(self, clients: Iterable[Client]) -> None:
        self._servers = [Server(client) for client in clients]

    def join(self, rollout_id: str) -> Server | None:
        """Return the server for a new rollout, if possible not a failed one; None if all are taken out.

        Call `leave` at the end of the rollout.
        """
        return _join(self._servers, rollout_id)

    def move(self, rollout_id: str, server: Server, failed: Collection[Server]) -> Server | None:
        """Return another server than `server`, which failed, and than `failed`; None without one."""
        server.avoided_until = time.monotonic() + _AVOIDED
        other = _join([other for other in self._servers if other not in failed], rollout_id)
        if other is not None:
            self.leave(server)
        return other

    def leave(self, server: Server) -> None:
        """End a rollout's use of `server`."""
        server.rollouts -= 1

    def take_out(self, url: str) -> None:
        """Give no more rollouts to the server of `url`. Those that it has keep it."""
        self._servers = [server for server in self._servers if server.client.url != url]

    def put_in(self, client: Client) -> None:
        """Give rollouts to another server, or to one that was taken out."""
        self.take_out(client.url)
        self._servers.append(Server(client))


def _join(servers: Sequence[Server], rollout_id: str) -> Server | None:
    if not servers:
        return None
    now = time.monotonic()
    fit = [server for server in servers if server.avoided_until <= now] or servers
    share = (sum(server.rollouts for server in fit) + 1) / len(fit)
    chosen = max(
        (server for server in fit if server.rollouts < share),
        key=lambda server: _rank(rollout_id, server.client.url),
    )
    chosen.rollouts += 1
    return chosen


def _rank(rollout_id: str, url: str) -> bytes:
    """Return the rank of a server for a rollout: the highest one wins (rendezvous hashing)."""
    return hashlib.blake2b(f"{rollout_id} {url}".encode(), digest_size=8).digest()
