"""Published logs of SWE-smith: whether our parser gives the verdict of the report for every test.

    git clone https://github.com/SWE-bench/SWE-smith
    python benchmarks/published_logs.py SWE-smith

Reads each `report.json` below the directory that has a `test_output.txt` of pytest beside it. A report of an
evaluation says of each test whether it passed. A report of a validation says so before and after the change,
from two logs. Exit code 1 means that a verdict differs, or that no report was found.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swe_core.builtin.swe.parsers import log_reader, shortened, statuses

GOOD = ("PASSED", "XFAIL")
_PARSER = "pytest"
_MOVES = ("FAIL_TO_PASS", "PASS_TO_PASS", "FAIL_TO_FAIL", "PASS_TO_FAIL")


def verdicts(report: Path) -> Iterator[tuple[Path, Mapping[str, bool]]]:
    """Yield each log that a report is about, and whether each test passes in it."""
    data: dict[str, Any] = json.loads(report.read_text())
    data = data.get(report.parent.name, data)
    log, before = report.with_name("test_output.txt"), report.with_name("test_output_pre_gold.txt")
    if moves := data.get("tests_status"):
        yield (
            log,
            {test: good == "success" for kind in moves.values() for good in kind for test in kind[good]},
        )
    elif "FAIL_TO_PASS" in data and before.exists():
        # The log of the task's state, which has the bug, is `test_output.txt`.
        for side, place in ((log, 0), (before, 2)):
            yield (
                side,
                {test: move.split("_")[place] == "PASS" for move in _MOVES for test in data.get(move, ())},
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="a clone of SWE-smith")
    logs = tests = different = 0
    for report in sorted(parser.parse_args().directory.rglob("report.json")):
        for log, expected in verdicts(report) if report.with_name("test_output.txt").exists() else ():
            text = log.read_bytes()
            if b"pytest" not in text or not expected:
                continue
            found = statuses(_PARSER, log_reader(_PARSER).parse(shortened(text)), expected)
            wrong = [test for test, good in expected.items() if (found[test] in GOOD) != good]
            print(f"{log}: {len(expected)} verdicts, {len(wrong)} differ", *wrong[:3])
            logs, tests, different = logs + 1, tests + len(expected), different + len(wrong)
    print(f"{logs} logs, {tests} verdicts, {different} differ")
    return 0 if logs and not different else 1


if __name__ == "__main__":
    raise SystemExit(main())
