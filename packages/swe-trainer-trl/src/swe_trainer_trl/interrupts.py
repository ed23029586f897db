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
    second signal nothing that hangs keeps the process: what it started ends with it or is killed. A thread
    counts the signals, because the main thread may be in a library that runs no Python.

    Attributes:
        count: Signals so far. A library that swallows the exception, as an import may, does not change it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._end = threading.Timer(_HURRY, _exit_now)
        self._end.daemon = True
        self._hurrying = threading.Lock()
        self._ignored = False
        self._raised_again = 0

    def __enter__(self) -> Interrupts:
        self._signals = ending_signals()
        self._before = [signal.signal(number, self._handle) for number in self._signals]
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        read, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._woken = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(read,), name="swe-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.cancel()
        signal.set_wakeup_fd(self._woken)
        os.close(self._wake)  # which ends the thread
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
            if self.count >= 2:  # an event loop hides signals from the thread
                self._hurry()
        raise KeyboardInterrupt

    def _watch(self, read: int) -> None:
        """Count the signals, whose numbers come as bytes."""
        seen = 0
        with os.fdopen(read, "rb", buffering=0) as numbers:
            while data := numbers.read(64):
                seen += sum(number in self._signals for number in data)
                if seen - self._raised_again >= 2:
                    self._hurry()

    def _hurry(self) -> None:
        if self._hurrying.acquire(blocking=False):
            self._end.start()

    def _unraisable(self, unraisable: Any) -> None:
        """Raise a KeyboardInterrupt again that came where Python cannot raise it, such as in a destructor."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._hook(unraisable)
            return
        self._ignored = True
        self._raised_again += 1
        again = threading.Timer(_RAISE_AGAIN, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()


def _exit_now() -> None:
    server = sys.modules.get("swe_trainer_trl.server.vllm_server")
    if server is not None and hasattr(server, "kill_servers"):  # it may be imported just now
        server.kill_servers()
    os.write(2, b"swe-core: interrupted\n")
    os._exit(130)
