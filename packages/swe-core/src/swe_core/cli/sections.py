"""SectionedCommand: a command whose help lists its options under headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


class SectionedCommand(click.Command):
    """A command whose help lists its options under headings. It imports no library for that.

    Args:
        sections: Heading → names of the options' parameters, in the order of the help. Options in no section
            come last: those of plugins and `--help`.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        left = {param: param.get_help_record(ctx) for param in self.get_params(ctx)}
        by_name = {param.name: param for param in left if isinstance(param, click.Option)}
        for heading, names in self.sections.items():
            found = [left.pop(by_name[name]) for name in names if name in by_name]
            self._write(formatter, heading, found)
        self._write(formatter, "Other options", list(left.values()))

    @staticmethod
    def _write(
        formatter: click.HelpFormatter, heading: str, records: Sequence[tuple[str, str] | None]
    ) -> None:
        rows = [record for record in records if record is not None]
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)
