"""Interrupts: the signals that end a training. The first one ends it in order, the second one soon."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from swe_core.system.event_loop import ending_signals

_HURRY = 3.0
"""Seconds from the second signal to the end, whatever hangs."""
_RAISE_AGAIN = 0.05
"""Seconds until an interrupt that Python has ignored is raised again."""


class Interrupts:
    """A context manager that handles `ending_signals` like Ctrl-C: each raises KeyboardInterrupt.

    This includes SIGINT itself, which a process in the background of a shell ignores by default. After the
    second signal nothing that hangs keeps the process: what it started ends with it or is killed.

    Attributes:
        count: Signals so far. A library that swallows the exception, as an import may, does not change it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._end = threading.Timer(_HURRY, _exit_now)
        self._end.daemon = True
        self._ignored = False

    def __enter__(self) -> Interrupts:
        self._signals = ending_signals()
        self._before = [signal.signal(number, self._handle) for number in self._signals]
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, *_: object) -> None:
        self._end.cancel()
        sys.unraisablehook = self._hook
        for number, handler in zip(self._signals, self._before, strict=True):
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal came: the code before may have swallowed it."""
        if self.count:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._ignored:
            self._ignored = False
        else:
            self.count += 1
            if self.count == 2:
                self._end.start()
        raise KeyboardInterrupt

    def _unraisable(self, unraisable: Any) -> None:
        """Raise a KeyboardInterrupt again that came where Python cannot raise it, such as in a destructor."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._hook(unraisable)
            return
        self._ignored = True
        again = threading.Timer(_RAISE_AGAIN, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()


def _exit_now() -> None:
    server = sys.modules.get("swe_trainer_trl.server.vllm_server")
    if server is not None and hasattr(server, "kill_servers"):  # it may be imported just now
        server.kill_servers()
    os.write(2, b"swe-core: interrupted\n")
    os._exit(130)
