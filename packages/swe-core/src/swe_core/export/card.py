"""The data card beside an export: what it is, which runs it is from, and how to open it."""

from __future__ import annotations

from collections.abc import Mapping

from swe_core.export.choice import Choice
from swe_core.export.formats import Format, format_named
from swe_core.export.writer import Reason
from swe_core.hub.card import LICENCE, overview, plain
from swe_core.system.plural import counted

README = "README.md"
MARK = "<!-- swe-core export -->"
"""Tells an export from a folder of another kind."""


def card(choice: Choice, rows: int, left_out: Mapping[Reason, int], folder: str) -> str:
    """Return the README of an export.

    Args:
        choice: What was exported; all of it was read.
        rows: Number of rows, conversations or other units.
        left_out: What is not in it → how often, each more than 0 times.
        folder: Name of its folder.
    """
    form = format_named(choice.format)
    runs = [run.description() for run in choice.runs]
    fields = [["field" if form.train else "name", "meaning"], ["---", "---"]]
    fields += [[", ".join(f"`{one}`" for one in key.split(", ")), text] for key, text in form.fields.items()]
    versions = dict(pair for run in runs for pair in sorted(run.versions.items()))
    parts = [
        f"{_metadata(form)}{MARK}",
        f"# {form.title}",
        f"{form.count(rows)} in the format {choice.format}.",
        *overview(runs),
        *_selected(choice),
        "Made with " + ", ".join(f"{plain(package)} {plain(one)}" for package, one in versions.items()) + ".",
        *(_left_out(left_out) if left_out else ()),
        "## Fields" if form.train else "## Content",
        "\n".join("| " + " | ".join(row) + " |" for row in fields),
        "## Open it",
        f"```{form.language}\n{form.load.format(folder=folder)}\n```",
    ]
    return "\n\n".join(parts) + LICENCE


def _selected(choice: Choice) -> list[str]:
    """Return what was selected: a share of resolved rollouts is no result where the others are left out."""
    chosen = [] if choice.outcomes is None else [f"the outcome {' or '.join(choice.outcomes)}"]
    if choice.tasks:
        chosen.append(f"one of {counted(len(choice.tasks), 'chosen task')}")
    if not chosen:
        return []
    return [f"**Selected:** only rollouts with {' and '.join(chosen)} are here."]


def _left_out(left_out: Mapping[Reason, int]) -> list[str]:
    return ["Left out:", "\n".join(f"- {why.of(count)}" for why, count in left_out.items())]


def _metadata(form: Format) -> str:
    split = (
        ""
        if form.train is None
        else f"configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {form.train}\n"
    )
    return (
        f"---\npretty_name: {form.title} of coding agents\ntags:\n- agent-rollouts\n"
        f"- software-engineering\n- swe-core\n{split}---\n\n"
    )
