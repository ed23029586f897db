"""Results of the checks: a line of JSON each, written at once, and a table at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

LINES, TEXT = "checks.jsonl", "checks.md"
"""Names of the logs in their directory."""
Status = Literal["passed", "failed", "skipped"]


class Failed(Exception):
    """The check failed; the message is the reason."""


class Skipped(Exception):
    """This machine cannot run the check; the message is the reason."""


@dataclass(frozen=True)
class Result:
    """What became of a check.

    Args:
        reason: Why it failed or was skipped; None if it passed.
        seconds: Wall time.
        figures: What was measured, by name.
    """

    check: str
    status: Status
    reason: str | None
    seconds: float
    figures: Mapping[str, Any]


class Log:
    """The two log files.

    Args:
        directory: Is created.
        about: What the logs begin with: machine, versions, date.
    """

    def __init__(self, directory: Path, about: Mapping[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lines, self._text = directory / LINES, directory / TEXT
        self._about = about
        self._results: list[Result] = []
        self._lines.write_text(json.dumps(about) + "\n")

    def add(self, result: Result) -> None:
        """Append a result to the lines."""
        self._results.append(result)
        with self._lines.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")

    @property
    def failed(self) -> bool:
        """Return whether a check failed, or none passed."""
        states = [result.status for result in self._results]
        return "failed" in states or "passed" not in states

    def close(self) -> str:
        """Write the table, and return it."""
        text = table(self._about, self._results)
        self._text.write_text(text)
        return text


def table(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the results in Markdown, for docs/internals/gpu.md."""
    lines = [f"- {name}: {_shown(value)}" for name, value in about.items()]
    lines += ["", "| check | result | seconds | figures, or the reason |", "|---|---|---|---|"]
    for one in results:
        figures = "; ".join(f"{name} {_shown(value)}" for name, value in one.figures.items())
        said = "; ".join(filter(None, [one.reason, figures])).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {one.check} | {one.status} | {one.seconds:.0f} | {said} |")
    counted = [
        f"{sum(one.status == state for one in results)} {state}" for state in ("passed", "failed", "skipped")
    ]
    return "\n".join([*lines, "", ", ".join(counted), ""])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return str(value)
