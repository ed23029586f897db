"""Run a server until another process exits: python -m swe_core.system.server_guard PID COMMAND...

The server ends with process PID, even if that is killed. The guard must lead a process group of its own
(`start_new_session=True`). At the end it kills the whole group, including itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

GRACE = 10.0
"""Seconds that a server has to clean up after SIGTERM."""


def main() -> None:
    """Wait until the server or process PID exits or SIGTERM arrives, then end the server."""
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.exit("usage: python -m swe_core.system.server_guard PID COMMAND...")
    if os.getpgrp() != os.getpid():  # it would kill the processes of its parent
        sys.exit("the guard must lead a process group of its own: start it in a new session")
    terminated = os.eventfd(0)  # an exception could leave a starting server without a guard
    signal.signal(signal.SIGTERM, lambda *_: os.eventfd_write(terminated, 1))
    try:
        watched = os.pidfd_open(int(sys.argv[1]))
    except ProcessLookupError:
        sys.exit(f"process {sys.argv[1]} has exited, so {sys.argv[2]!r} is not started")
    try:
        server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.exit(f"{sys.argv[2]!r} cannot be started: {error.strerror}")
    try:
        select.select([terminated, watched, os.pidfd_open(server.pid)], [], [])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE)
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
