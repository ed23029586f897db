"""Opening a local sandbox of an image, next to one of the host's programs and to a container.

    python benchmarks/open_sandbox.py [--runs N] [--image REFERENCE]

From the call to a sandbox that has run `true`, and until it is closed. The image is on this host already, and
its files are in the page cache. One sandbox at a time.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from _common import BUILD_IMAGE, IMAGE, Report, Target, give_up, median, ratio, shown, usable
from rich.table import Table

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.builtin.local.image_tools import why_no_tools
from swe_core.builtin.local.images import Images
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import SweError, sentence
from swe_core.system.event_loop import run
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.registry import make_image

LIMIT = 0.1
Times = dict[str, list[float]]


async def opened(provider: SandboxProvider, spec: SandboxSpec, runs: int) -> Times:
    """Seconds of opening, and of all, after one sandbox that does not count."""
    times: Times = {"open": [], "all": []}
    for number in range(runs + 1):
        started = time.perf_counter()
        async with provider.open(spec) as sandbox:
            open_ = time.perf_counter() - started
            await sandbox.exec(["true"])
        if number:
            times["open"].append(open_)
            times["all"].append(time.perf_counter() - started)
    return times


def demo_image(directory: Path) -> str:
    """Make the demo's image."""
    made = subprocess.run([BUILD_IMAGE, "--tar"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if made.returncode != 0:
        give_up(made.stderr.strip())
    return make_image(directory / "layout", [Path(made.stdout.strip())])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="default: 20")
    parser.add_argument("--image", help="default: the demo's image, made of Debian packages")
    options = parser.parse_args()
    without_docker = usable(["docker"])["docker"]
    obstacle = why_no_tools()
    if obstacle is not None:
        give_up(obstacle)

    report = Report("open_sandbox", options.runs)
    measured: dict[str, Times] = {}
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        image = options.image or demo_image(Path(scratch))
        images = Images(Path(scratch, "images"))
        local = LocalProvider(images=images)
        sides: dict[str, tuple[SandboxProvider, SandboxSpec]] = {
            "image": (local, SandboxSpec(image=image)),
            "host": (local, SandboxSpec()),
            "docker": (DockerProvider(DockerConfig()), SandboxSpec(image=options.image or IMAGE)),
        }
        for side, (provider, spec) in sides.items():
            if side == "docker" and without_docker is not None:
                report.notes.append(without_docker)
                continue
            try:
                measured[side] = run(opened, provider, spec, options.runs)
            except SweError as error:
                report.notes.append(f"{side} is skipped: {sentence(error)}")
    if "image" not in measured:
        give_up("; ".join(report.notes))

    report.medians |= {
        f"{side}_{what}": median(measured[side][what]) if side in measured else None
        for side in sides
        for what in ("open", "all")
    }
    opening = {side: median(times["open"]) for side, times in measured.items()}
    for side in ("host", "docker"):
        report.ratios[f"image_to_{side}"] = ratio(opening["image"], opening.get(side))
    report.targets.append(Target("opening a sandbox of an image", opening["image"], LIMIT))
    table = Table(title=f"Local sandboxes, medians of {options.runs}")
    for column in ("", "open", "slowest", "opened, used and closed"):
        table.add_column(column, justify="right" if column else "left")
    for side, times in measured.items():
        table.add_row(side, shown(opening[side]), shown(max(times["open"])), shown(median(times["all"])))
    report.show(table)


if __name__ == "__main__":
    main()
