"""Writes docs/cli.md: every command with its `--help`, as the program gives it.

python docs/generate_cli.py            # writes the page
python docs/generate_cli.py --print    # prints it
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")
OURS = ("docker", "hf", "pi", "trl")
"""Plugins whose options and commands the page has: those of this repository, whatever else is installed."""
WIDTH = 100
HEAD = f"""# The command line

`docs/{Path(__file__).name}` generates this page from the help texts, with all plugins of this repository
installed. [Running](running.md) explains the options; [settings](settings.md) lists what `--set` takes.

Every command takes `-h` and `--help`. Exit codes: 0 for success, 1 for a finding that the command's help
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


def helps(command: object, path: tuple[str, ...], parent: object) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each command below `command`, itself first, with its help."""
    import click

    if not isinstance(command, click.Command) or not (parent is None or isinstance(parent, click.Context)):
        raise TypeError(f"{command!r} is no command")
    context = command.make_context(
        path[-1], [], parent, resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from helps(command.get_command(context, name), (*path, name), context)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
