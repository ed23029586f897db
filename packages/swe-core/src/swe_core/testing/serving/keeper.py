"""Run a server for as long as another process lives: python -m swe_core.testing.serving.keeper PID COMMAND...

Whatever ends the tests, a kill included, no server outlives them. The keeper must lead a process group of its
own, all of which it ends with the server.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

GRACE = 10.0
"""Seconds that a server has to clean up after itself once it is told to end."""


def main() -> None:
    """Wait for the end of the server, of process PID, or SIGTERM; whichever it is, end the server."""
    tests = os.pidfd_open(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
    try:
        select.select([tests, os.pidfd_open(server.pid)], [], [])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE)
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
