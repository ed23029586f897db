"""How long `swe-core --help` takes, next to importing the two libraries that it cannot do without.

    python benchmarks/startup.py [--runs N]

Both commands run in turns, so that a machine that is busy for a while slows both. Wall time is what counts;
processor time stands beside it, since it says more on a busy machine.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from _common import SWE_CORE, Report, Target, give_up, median, ratio, shown
from rich.table import Table

LIMIT = 2.5
HEAVY = ("torch", "transformers", "datasets", "docker", "huggingface_hub", "aiohttp")
IMPORTS = "python -c 'import pydantic, pluggy'"
HELP = "swe-core --help"
COMMANDS = {IMPORTS: [sys.executable, "-c", "import pydantic, pluggy"], HELP: [SWE_CORE, "--help"]}


def measure(command: list[str]) -> tuple[float, float]:
    """Run `command`; its wall time and its processor time, seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imported_heavy() -> list[str]:
    """Which of the heavy libraries `swe-core --help` imports."""
    command = [sys.executable, "-X", "importtime", SWE_CORE, "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    return [name for name in HEAVY if name in names]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="default: 20")
    runs = parser.parse_args().runs

    walls: dict[str, list[float]] = {name: [] for name in COMMANDS}
    processor: dict[str, list[float]] = {name: [] for name in COMMANDS}
    try:
        heavy = imported_heavy()
        for command in COMMANDS.values():
            measure(command)  # fills the disk cache, and writes the byte code where it is missing
        for _ in range(runs):
            for name, command in COMMANDS.items():
                wall, used = measure(command)
                walls[name].append(wall)
                processor[name].append(used)
    except (OSError, subprocess.CalledProcessError) as error:
        give_up(f"a command that is measured does not run: {error}")

    wall_of = {name: median(values) for name, values in walls.items()}
    used_of = {name: median(values) for name, values in processor.items()}
    report = Report("startup", runs)
    report.medians = {
        "imports": wall_of[IMPORTS],
        "help": wall_of[HELP],
        "imports_processor": used_of[IMPORTS],
        "help_processor": used_of[HELP],
    }
    report.ratios = {
        "help_to_imports": ratio(wall_of[HELP], wall_of[IMPORTS]),
        "help_to_imports_processor": ratio(used_of[HELP], used_of[IMPORTS]),
    }
    report.targets = [
        Target("swe-core --help to the imports, wall time", report.ratios["help_to_imports"], LIMIT, "x"),
        Target(f"imported by swe-core --help of {', '.join(HEAVY)}", len(heavy), 0, ""),
    ]
    if heavy:
        report.notes.append(f"swe-core --help imports {', '.join(heavy)}")

    table = Table(title=f"Start-up, medians of {runs} runs")
    table.add_column("command")
    for column in ("wall", "processor"):
        table.add_column(column, justify="right")
    for name in COMMANDS:
        table.add_row(name, shown(wall_of[name]), shown(used_of[name]))
    table.add_row(
        "ratio",
        shown(report.ratios["help_to_imports"], "x"),
        shown(report.ratios["help_to_imports_processor"], "x"),
    )
    report.show(table)


if __name__ == "__main__":
    main()
