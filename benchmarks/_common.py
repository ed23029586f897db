"""Shared by the benchmarks: running the program as its users do, and how results are shown.

Every benchmark prints a table and, as its last line, one JSON object:

    benchmark  its name
    runs       how often each side was measured
    medians    seconds, or the unit that a name ends with (_ms, _mb, _per_s), by side; null for what was
               skipped
    ratios     one side to another, by name; null where a side was skipped
    targets    a list of {what, figure, limit, unit, at_least, met}; figure and met are null where it was
               skipped; at_least says that the figure should not be below the limit, instead of not above
    notes      sentences: what was skipped and why, and what else must be known to read the figures

A target that is missed is a figure, not a failure: the exit code is 0, and 1 only where nothing ran at all.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from rich.console import Console, RenderableType

from swe_core.errors import SweError, sentence
from swe_core.rollout.run_directory import RunDirectory

SWE_CORE = str(Path(sys.executable).with_name("swe-core"))
IMAGE = "swe-core-demo:1"
"""The demo tasks' container image."""
SANDBOXES = ("local", "docker")
_DOCKER = Path(__file__).parents[1] / "packages" / "swe-sandbox-docker" / "src" / "swe_sandbox_docker"
BUILD_IMAGE = _DOCKER / "demo_image" / "from-debs"
_RUN_SECONDS = 900.0
_WIDTH = 110
_DIGITS = {"s": 3, "ms": 2, "x": 2, "MB": 0, "/s": 0}


@dataclass(frozen=True)
class Target:
    """A figure and the limit that it should keep.

    Args:
        figure: None where it was not measured.
        unit: Of both: "s", "ms", "MB", "/s", "x" for a ratio, "" for a count.
        at_least: The figure keeps the limit where it is not below it; else where it is not above it.
    """

    what: str
    figure: float | None
    limit: float
    unit: str = "s"
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the figure keeps the limit; None where there is none."""
        if self.figure is None:
            return None
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    def __str__(self) -> str:
        verdict = {True: "[green]met[/]", False: "[red]not met[/]", None: "skipped"}[self.met]
        limit = f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}".rstrip()
        return f"{self.what}: {shown(self.figure, self.unit)}, target {limit}: {verdict}"


@dataclass
class Report:
    """What a benchmark found."""

    benchmark: str
    runs: int
    medians: dict[str, object] = field(default_factory=dict)
    ratios: dict[str, float | None] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, table: RenderableType) -> None:
        """Print the table or tables, the targets and the notes, and the JSON object as the last line."""
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
        console.print(table)
        for target in self.targets:
            console.print(str(target))
        for note in self.notes:
            console.print(f"Note: {note}", markup=False)
        targets = [{**asdict(target), "met": target.met} for target in self.targets]
        print(
            json.dumps(
                {
                    "benchmark": self.benchmark,
                    "runs": self.runs,
                    "medians": self.medians,
                    "ratios": self.ratios,
                    "targets": targets,
                    "notes": self.notes,
                }
            )
        )


def give_up(why: str) -> NoReturn:
    """End with one sentence: the benchmark cannot run at all."""
    print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr)
    raise SystemExit(1)


def median(values: Iterable[float]) -> float | None:
    """The median, to four digits after the point (0.1 ms of seconds); None of nothing."""
    known = list(values)
    return round(statistics.median(known), 4) if known else None


def ratio(over: float | None, under: float | None) -> float | None:
    """`over / under`; None where one is not known."""
    return round(over / under, 2) if over is not None and under else None


def shown(value: float | None, unit: str = "s") -> str:
    """A figure for a table."""
    if value is None:
        return "-"
    return f"{value:g}" if not unit else f"{value:.{_DIGITS[unit]}f} {unit}"


@contextmanager
def run(args: Sequence[str]) -> Iterator[RunDirectory]:
    """`swe-core run ARGS` in a process of its own, one rollout at a time; its records live in the context.

    Raises:
        SweError: It wrote no run directory; the message is its own last line.
    """
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        out = Path(scratch, "run")
        command = [SWE_CORE, "run", "--concurrency", "1", "--out", str(out), *args]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_RUN_SECONDS, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise SweError(f"swe-core run did not end within {_RUN_SECONDS:g} s") from None
        if not (out / "run.json").exists():
            said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
            raise SweError(said[-1].removeprefix("swe-core: error: "))
        yield RunDirectory.open(out)


def usable(sandboxes: Iterable[str]) -> Mapping[str, str | None]:
    """Each sandbox with the reason why it cannot be measured here, None where it can."""
    return {name: _no_docker() if name == "docker" else None for name in sandboxes}


def _no_docker() -> str | None:
    """Why containers of the demo image cannot be measured. The image is made where it is missing."""
    try:
        import docker

        from swe_sandbox_docker.address import resolve
        from swe_sandbox_docker.client import Client
    except ImportError:
        return "docker is skipped: the package swe-sandbox-docker is not installed"
    try:
        address = resolve()
        api = Client(address).api
    except SweError as error:
        return f"docker is skipped: {sentence(error)}"
    try:
        api.inspect_image(IMAGE)
    except docker.errors.ImageNotFound:
        done = subprocess.run(
            [BUILD_IMAGE, IMAGE],
            env={**os.environ, "DOCKER_HOST": address.url},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()[-1:]
            return f"docker is skipped: the image {IMAGE!r} is absent and cannot be made: {' '.join(said)}"
    finally:
        api.close()
    return None
