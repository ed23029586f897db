"""SafeConsole: print tables and texts without control characters of foreign text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from swe_core.system.printable import printable


class SafeConsole(Console):
    """A console that prints only `printable` text. Its own colours stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `rich.console.Console.render`, which renders all output."""
        for segment in super().render(renderable, options):
            if not segment.control:
                line = segment.text.replace("\r", " ")  # the layout is done: add no line
                segment = segment._replace(text=printable(line))
            yield segment
