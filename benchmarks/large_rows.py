"""The memory that long rows take in the trainer's process, beyond model and libraries.

    python benchmarks/large_rows.py [--rows N,N] [--tokens N,N] [--parts pack,step]

One micro-batch of a tiny model on the CPU, whose rows share a prompt of a quarter of their ids. Measured is
the peak of the process beyond what it had before (VmHWM), each case in a process of its own: one row of each
number of ids, and each number of rows of the most ids.

    pack    the rows, from the journal to the tensors of TRL's collator
    step    a whole optimizer step, with attention, loss and `trained.jsonl`

A ratio is how much more memory the largest case takes than the smallest, divided by how many more ids it has:
1 where memory grows with the ids, and more where it grows faster. A CPU's attention is torch's; a GPU has
another kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _common import Report, Target, give_up, ratio, shown
from _proxies import HERE
from rich.table import Table

from swe_core.errors import SweError, sentence
from swe_testing.serving.start import FRUGAL
from swe_testing.serving.tiny_model import make_tiny_model

PARTS = ("pack", "step")
LINEAR = 1.5
SECONDS = 3600.0


def measure(model: Path, part: str, rows: int, tokens: int) -> dict[str, float]:
    """What `_large_rows_case.py` measures.

    Raises:
        SweError: The process failed.
    """
    command = [sys.executable, str(HERE / "_large_rows_case.py"), str(model), str(rows), str(tokens), part]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **FRUGAL},  # a compiler would take memory of its own
    )
    if done.returncode:
        raise SweError(f"{part} of {rows} rows of {tokens} ids failed: {done.stderr.strip()[-300:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def numbers(text: str) -> list[int]:
    """Numbers with commas between them, sorted."""
    return sorted(int(word) for word in text.split(","))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8], metavar="N,N")
    parser.add_argument("--tokens", type=numbers, default=[4096, 8192, 16384, 32768], metavar="N,N")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS, metavar="PART,PART")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="swe-bench-") as folder:
            report, table = compared(make_tiny_model(Path(folder)), given.parts, given.rows, given.tokens)
    except (SweError, ImportError) as error:
        give_up(sentence(error))
    report.show(table)


def compared(
    model: Path, parts: Sequence[str], rows: Sequence[int], tokens: Sequence[int]
) -> tuple[Report, Table]:
    """Measure every case."""
    report, most = Report("large_rows", 1), tokens[-1]
    table = Table(title="Peak memory of a micro-batch")
    for title in ("part", "rows", "ids of a row", "peak", "bytes an id", "wall"):
        table.add_column(title, justify="left" if title == "part" else "right")
    for part in parts:
        of_tokens = [(1, size) for size in tokens]
        of_rows = [(number, most) for number in rows]
        peaks = {}
        for number, size in dict.fromkeys([*of_tokens, *of_rows]):
            found = measure(model, part, number, size)
            peak = peaks[number, size] = round(found["peak_mb"], 1)
            each = f"{peak * 2**20 / number / size:,.0f}"
            wall = shown(found["seconds"])
            table.add_row(part, str(number), f"{size:,}", shown(peak, "MB"), each, wall)
            report.medians[f"{part}_{number}x{size}_mb"] = peak
        for what, cases in (("ids", of_tokens), ("rows", of_rows)):
            (few, small), (many, large) = cases[0], cases[-1]
            grown = ratio(peaks[many, large], peaks[few, small])
            figure = None if grown is None else round(grown * few * small / many / large, 2)
            report.ratios[f"{part}_by_{what}"] = figure
            report.targets.append(Target(f"{part}: growth by {what}, 1 is linear", figure, LINEAR, "x"))
    return report, table


if __name__ == "__main__":
    main()
