"""SafeConsole: print tables and texts without control characters of foreign text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from swe_core.system.printable import printable

UNWRAPPED = 10_000
"""Columns where the output is no terminal: its reader wraps lines, if anyone does."""


class SafeConsole(Console):
    """A console that prints only `printable` text. Its own colours stay.

    Args:
        options: As for `rich.console.Console`. The width is that of the terminal, or of COLUMNS. Other output
            is not wrapped.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not (self.is_terminal or options.get("width") or "COLUMNS" in os.environ):
            self.width = UNWRAPPED

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `rich.console.Console.render`, which renders all output."""
        for segment in super().render(renderable, options):
            if not segment.control:
                line = segment.text.replace("\r", " ")  # the layout is done: add no line
                segment = segment._replace(text=printable(line))
            yield segment
