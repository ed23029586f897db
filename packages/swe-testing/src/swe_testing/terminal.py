"""A terminal for programs that behave differently on one."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def pseudo_terminal() -> Iterator[tuple[int, bytearray]]:
    """Yield the descriptor of a terminal for a program's standard streams, and the text shown on it.

    The text is complete once the program has ended and the context is left.
    """
    shown = bytearray()
    ours, theirs = pty.openpty()

    def read() -> None:
        with suppress(OSError):  # Linux: the other end of the terminal was closed
            while data := os.read(ours, 65536):
                shown.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, shown
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
