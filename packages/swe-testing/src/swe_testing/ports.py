"""Addresses of loopback that a test holds, so that no other program can have them."""

from __future__ import annotations

import atexit
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing() -> Iterator[str]:
    """Yield `http://127.0.0.1:PORT` where connections are refused: the port is taken, and nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def held_port() -> int:
    """Return a port for a server that starts later and sets SO_REUSEPORT; it is held as long as this program.

    Until then connections are refused.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    atexit.register(held.close)  # which also keeps it
    return int(held.getsockname()[1])
