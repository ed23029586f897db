"""`swe-core drift`: replay recorded conversations against a tokenizer and template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from swe_core.cli.options import RunPath
from swe_core.errors import ConfigError, UsageError
from swe_core.system.plural import counted

if TYPE_CHECKING:
    from swe_core.drift.measure import Difference, Drift

_FORMATS = ("run", "openai", "responses", "anthropic")
_SHOWN = 40
"""Conversations in the table; the total counts all."""


@click.command()
@click.argument("paths", metavar="TRACE|RUN...", nargs=-1, required=True, type=RunPath(or_file=True))
@click.option(
    "--tokenizer",
    metavar="DIR|NAME",
    required=True,
    help="Directory with the model's tokenizer, or its name on the Hub.",
)
@click.option("--renderer", metavar="NAME", default="auto", help="As engine.vllm.renderer. [default: auto]")
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Chat template in place of the tokenizer's own.",
)
@click.option(
    "--template-kwarg",
    "kwargs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the template, such as enable_thinking=false. Repeatable.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(_FORMATS),
    help="Format of the files. [default: by their content]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def drift(
    paths: tuple[Path, ...],
    tokenizer: str,
    renderer: str,
    chat_template: Path | None,
    kwargs: tuple[str, ...],
    format_: str | None,
    as_json: bool,
) -> None:
    """Replay recorded conversations against a tokenizer and template, without a model.

    The table compares two ways to make prompts: ours, which extend the sampled ids where the format allows
    it, and prompts that are rendered anew from the messages. It counts training rows, the turns that leave
    their row, and the sampled tokens that no row holds as they were sampled.
    """
    if missing := [name for name in ("renderers", "transformers") if find_spec(name) is None]:
        raise ConfigError(f"swe-core drift needs {' and '.join(missing)}: pip install 'swe-core[vllm]'")
    from swe_core.drift.measure import measure, total
    from swe_core.drift.readers import read
    from swe_core.drift.template import load

    recorded = [one for path in paths for one in read(path, format_)]
    made, template = load(tokenizer, renderer, chat_template, dict(map(_pair, kwargs)))
    found = [measure(one, made, template) for one in recorded]
    if as_json:
        known = {
            "renderer": made.name,
            "total": _as_dict(total(found)),
            "conversations": list(map(_as_dict, found)),
        }
        click.echo(orjson.dumps(known, option=orjson.OPT_INDENT_2))
    else:
        _print(made.name, found, total(found))


def _pair(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"--template-kwarg {text!r}: expected KEY=VALUE, such as enable_thinking=false")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


def _as_dict(one: Drift) -> dict[str, Any]:
    sides = {
        name: {**asdict(side), "causes": side.causes}
        for name, side in (("ours", one.ours), ("anew", one.anew))
    }
    return {**asdict(one), **sides}


def _print(renderer: str, found: Sequence[Drift], whole: Drift) -> None:
    from rich.table import Table
    from rich.text import Text

    from swe_core.system.printable import one_line
    from swe_core.system.safe_console import SafeConsole

    console = SafeConsole(highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in (
        "conversation",
        "turns",
        "tokens",
        "rows",
        "forks",
        "rows anew",
        "broken anew",
        "lost anew",
    ):
        table.add_column(title, justify="left" if title in ("conversation", "forks") else "right")
    for one in [*found[:_SHOWN], *([whole] if len(found) > 1 else [])]:
        forks = ", ".join(f"{cause} {count}" for cause, count in one.ours.causes.items())
        cells = [one_line(one.name, 60), one.turns, one.sampled, one.ours.rows, forks or "none"]
        table.add_row(*map(str, [*cells, one.anew.rows, one.anew.broken, one.anew.lost]))
    console.print(f"Prompts of {renderer}", markup=False)
    console.print(table)
    if len(found) > _SHOWN:
        console.print(f"… and {len(found) - _SHOWN} more; --json has all", markup=False)
    first = next(((one.name, one.difference) for one in found if one.difference is not None), None)
    if first is not None:
        console.print(Text(_difference(*first)), soft_wrap=True)
    lost = f"{whole.anew.lost} of {counted(whole.sampled, 'token')}"
    console.print(
        f"Rendered anew, {lost} are not trained as they were sampled; with our prompts {whole.ours.lost}.",
        markup=False,
    )
    if whole.exact < whole.turns:
        console.print(
            f"{whole.turns - whole.exact} of {counted(whole.turns, 'reply', 'replies')} without sampled ids "
            "in the record: what the format prints stands for them.",
            markup=False,
        )
    for one in found:
        if one.refused is not None:
            text = f"{one.name}: {counted(one.skipped, 'turn was', 'turns were')} left out: {one.refused}"
            console.print(one_line(text, 500), style="yellow", markup=False, soft_wrap=True)


def _difference(name: str, one: Difference) -> str:
    from swe_core.system.printable import one_line

    return (
        f"First difference, in {one_line(name, 60)}: the prompt of turn {one.turn} differs in message "
        f"{one.message} ({one.role})\n"
        f"  sampled:       {one_line(repr(one.before), 200)}\n"
        f"  rendered anew: {one_line(repr(one.after), 200)}"
    )
