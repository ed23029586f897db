"""Choose a port for a server that starts later."""

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
    """Return a free TCP port of 127.0.0.1, outside the kernel's ephemeral range where possible.

    The server may start a minute later, and every new connection on this machine takes an ephemeral port.

    Raises:
        SweError: No port is free.
    """
    for port in [*(_outside() for _ in range(_TRIES)), 0]:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise SweError("no port of 127.0.0.1 is free: stop programs that listen on ports")


def _outside() -> int:
    """Return a random port below the ephemeral range; 0, any free port, if none is free there."""
    try:
        lowest = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return _LOWEST + secrets.randbelow(lowest - _LOWEST) if lowest > _LOWEST else 0
