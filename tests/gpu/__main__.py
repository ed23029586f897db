"""python -m tests.gpu [--cpu] [--only CHECK] [--out DIR]

Runs every check, also after one that failed, and ends with a table. The exit code is 0 if none failed. A
check that the machine cannot run, for it has one GPU, is skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import cards, checks
from .report import Failed, Log, Result, Skipped, Status
from .run import Bench

ROOT = Path(__file__).parents[2]
_CPU = 6
"""How much longer a check may take on a CPU."""
_LONE = "it needs {} GPUs, and this machine has {}"


def run(check: checks.Check, bench: Bench) -> Result:
    """Run one check. An error of any kind is a failed check."""
    begin = time.monotonic()
    figures: dict[str, Any] = {}
    status: Status = "passed"
    reason: str | None = None
    try:
        if check.gpus > len(bench.gpus):
            raise Skipped(_LONE.format(check.gpus, len(bench.gpus)))
        figures = dict(check.run(bench, check.seconds * (1 if bench.gpus else _CPU)))
    except Skipped as why:
        status, reason = "skipped", str(why)
    except Failed as why:
        status, reason = "failed", str(why)
    except Exception as error:  # the other checks go on
        traceback.print_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:300] or place.line
        status, reason = "failed", f"{type(error).__name__} in {place.name}, line {place.lineno}: {said}"
    return Result(check.name, status, reason, round(time.monotonic() - begin, 1), figures)


def visible() -> tuple[str, ...]:
    """Return the names of the GPUs in CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = cards.count()
    names = [str(number) for number in range(count)] if named is None else named.split(",")
    return tuple(name.strip() for name in names[:count])


def about(gpus: Sequence[str]) -> dict[str, Any]:
    """Return what the log begins with."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or None,
        "GPUs": len(gpus),
        "processors": os.cpu_count(),
        "Python": platform.python_version(),
        "proves": "training on CUDA" if gpus else "nothing of CUDA: the checks themselves, on a CPU",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [check.name for check in checks.CHECKS]
    parser.add_argument("--cpu", action="store_true", help="try the checks themselves on a CPU (--help: all)")
    parser.add_argument("--only", action="append", choices=names, metavar="CHECK", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu", help="default: runs/gpu")
    options = parser.parse_args(arguments)
    gpus = () if options.cpu else visible()
    if not options.cpu and not gpus:
        print(cards.NONE, file=sys.stderr)
        return 1
    out = options.out.absolute()
    scratch = out / "work"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    log, bench = Log(out, about(gpus)), Bench(gpus, scratch)
    try:
        for check in checks.CHECKS:
            if options.only and check.name not in options.only:
                continue
            print(f"{check.name}: {check.what} …", flush=True)
            result = run(check, bench)
            log.add(result)
            print(
                f"  {result.status} in {result.seconds:.0f} s{f': {result.reason}' if result.reason else ''}"
            )
    finally:
        print("\n" + log.close())
        print(f"Logs: {out}; runs: {scratch}")
    return 1 if log.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
