"""A port for a server that is told where to listen, and listens there some time later."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path

from swe_core.errors import SweError

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_TRIES = 100


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody has now.

    Not one that the kernel itself gives away: between this call and the server's start, which may take a
    minute, each connection that anybody on this machine opens takes one of those. Where the kernel gives all
    ports away, one of its own is returned.

    Raises:
        SweError: There is none.
    """
    for port in [*(_outside() for _ in range(_TRIES)), 0]:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise SweError("no port of 127.0.0.1 is free: end what holds them all")


def _outside() -> int:
    """Some port below those that the kernel gives away; 0, which asks the kernel, where there are none."""
    try:
        lowest = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return _LOWEST + secrets.randbelow(lowest - _LOWEST) if lowest > _LOWEST else 0
