"""Run a server for as long as another process lives: python -m swe_core.system.server_guard PID COMMAND...

Whatever ends process PID, a kill included, the server does not outlive it. The keeper must lead a process
group of its own (start it with `start_new_session=True`), all of which it ends with the server, itself
included.
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
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.exit("usage: python -m swe_core.system.server_guard PID COMMAND...")
    if os.getpgrp() != os.getpid():  # it would end the processes of who started it
        sys.exit("the keeper must lead a process group of its own: start it in a new session")
    told = os.eventfd(0)  # and no exception, which could leave a server that starts just now to nobody
    signal.signal(signal.SIGTERM, lambda *_: os.eventfd_write(told, 1))
    try:
        watched = os.pidfd_open(int(sys.argv[1]))
    except ProcessLookupError:
        sys.exit(f"process {sys.argv[1]} has ended, so {sys.argv[2]!r} is not started")
    try:
        server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.exit(f"{sys.argv[2]!r} cannot be started: {error.strerror}")
    try:
        select.select([told, watched, os.pidfd_open(server.pid)], [], [])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE)
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
