"""How long `swe-core drift` takes for a session of 400 turns.

    python benchmarks/drift.py [--turns N] [--runs N]

Each turn has a reply with thinking and a call, and a result of some 500 tokens, all from the standard
library's sources. The tokenizer has Qwen3's format. Measured is the whole work of the command in this
process: reading the file, loading the tokenizer, replaying each turn with our prompts and with prompts that
are rendered anew.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import Report, Target, median, shown
from _workload import Texts, write_tokenizer
from rich.table import Table

from swe_core.drift.measure import Drift, measure
from swe_core.drift.readers import read
from swe_core.drift.template import load

TURNS, SECONDS = 400, 10.0
_RESULT = 2000
"""Characters of a tool result."""


def session(turns: int) -> list[dict[str, Any]]:
    """A conversation of so many replies."""
    texts = Texts(seed=3)
    messages: list[dict[str, Any]] = [{"role": "user", "content": texts.piece(_RESULT)}]
    for number in range(turns):
        function = {"name": "bash", "arguments": json.dumps({"command": f"sed -n {number},80p module.py"})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        thought, said = texts.piece(200).strip(), texts.piece(100).strip()
        reply = {"role": "assistant", "content": said, "reasoning_content": thought, "tool_calls": [call]}
        messages += [reply, {"role": "tool", "tool_call_id": call["id"], "content": texts.piece(_RESULT)}]
    return messages


def run(file: Path, tokenizer: Path) -> Drift:
    """The whole work of the command."""
    (recorded,) = read(file)
    renderer, template = load(str(tokenizer), "auto", None, {})
    return measure(recorded, renderer, template)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=TURNS, help=f"default: {TURNS}")
    parser.add_argument("--runs", type=int, default=3, help="default: 3")
    options = parser.parse_args()
    report = Report("drift", options.runs)
    seconds = []
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        file, tokenizer = Path(scratch, "trace.json"), Path(scratch, "tokenizer")
        write_tokenizer(tokenizer)
        file.write_text(json.dumps(session(options.turns)))
        for _ in range(options.runs):
            started = time.perf_counter()
            found = run(file, tokenizer)
            seconds.append(time.perf_counter() - started)
    report.medians = {"seconds": median(seconds), "turns": found.turns, "tokens": found.sampled}
    report.targets = [Target(f"{options.turns} turns", median(seconds), SECONDS)]
    table = Table(title=f"Drift of a session, median of {options.runs} runs")
    for title in ("turns", "sampled tokens", "seconds", "rows", "rows anew"):
        table.add_column(title, justify="right")
    rows = (str(found.ours.rows), str(found.anew.rows))
    table.add_row(str(found.turns), str(found.sampled), shown(median(seconds)), *rows)
    report.show(table)


if __name__ == "__main__":
    main()
