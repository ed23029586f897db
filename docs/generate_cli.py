"""Writes docs/cli.md: every command with its `--help`, as the program gives it.

python docs/generate_cli.py            # writes the page
python docs/generate_cli.py --print    # prints it
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("cli.md")
OURS = ("docker", "hf", "openenv", "pi", "trl")
"""Plugins whose options and commands the page has: those of this repository, whatever else is installed."""
WIDTH = 100
HEAD = f"""# The command line

`docs/{Path(__file__).name}` generates this page from the help texts, with all plugins of this repository
installed. [Running](running.md) explains the options; [settings](settings.md) lists what `--set` takes.

Every command takes `-h` and `--help`. An option that means the same as in an earlier command is only named.
Exit codes: 0 for success, 1 for a finding that the command's help
names, 2 for wrong input, 130 for an interrupt. An error is one sentence on standard error that begins with
`swe-core: error:`; [errors](errors.md) lists the kinds.
"""


def page() -> str:
    """The page as it should be."""
    os.environ["SWE_PLUGINS"] = ",".join(OURS)  # asked for when the commands are looked up
    from swe_core.cli import cli

    parts = [HEAD]
    for path, text in helps(cli, ("swe-core",), None):
        shown = re.sub(r"^  -h, --help .*\n?", "", text.rstrip() + "\n", flags=re.MULTILINE)
        shown = re.sub(r"^Options:\n(\n|\Z)", "", shown, flags=re.MULTILINE).rstrip()
        parts.append(f"{'#' * min(len(path) + 1, 3)} {' '.join(path)}\n\n```text\n{shown}\n```\n")
    return "\n".join(parts)


def helps(
    command: object, path: tuple[str, ...], parent: object, seen: dict[tuple[str, str], str] | None = None
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each command below `command`, itself first, with its help; `seen` has the options of earlier ones."""
    import click

    if not isinstance(command, click.Command) or not (parent is None or isinstance(parent, click.Context)):
        raise TypeError(f"{command!r} is no command")
    context = command.make_context(
        path[-1], [], parent, resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    )
    seen = {} if seen is None else seen
    repeated: dict[str, list[click.Option]] = {}
    for option in command.params:
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record is not None:
            first = seen.setdefault(record, " ".join(path))
            if first != " ".join(path):
                repeated.setdefault(first, []).append(option)
    repeated = {first: options for first, options in repeated.items() if len(options) > 1}
    with _hidden(itertools.chain(*repeated.values())):
        text = command.get_help(context)
    for first, options in repeated.items():
        names = ", ".join(option.opts[0] for option in options)
        text += "\n\n" + textwrap.fill(f"As for {first}: {names}", WIDTH, break_on_hyphens=False)
    yield path, text
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from helps(command.get_command(context, name), (*path, name), context, seen)


@contextmanager
def _hidden(options: Iterable[Any]) -> Iterator[None]:
    found = list(options)
    for option in found:
        option.hidden = True
    try:
        yield
    finally:
        for option in found:
            option.hidden = False


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
