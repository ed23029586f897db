"""What tables and texts are printed with."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from swe_core.system.printable import printable


class SafeConsole(Console):
    """A console that prints nothing but what is `printable`, whatever tasks, agents and models put into what
    it is given. What colours its text is its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `rich.console.Console.render`, through which all goes."""
        for segment in super().render(renderable, options):
            if not segment.control:
                line = segment.text.replace("\r", " ")  # it is laid out already, and gets no more lines
                segment = segment._replace(text=printable(line))
            yield segment
