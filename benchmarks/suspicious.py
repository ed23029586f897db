"""Suspicious code: how often honest changes are marked, over releases of popular packages.

    python benchmarks/suspicious.py [--packages N]

Each pair is two releases of a package that follow each other, whose wheels pip downloads. What the later one
adds is looked at as a patch would be: the whole of it, and each changed file by itself.

    releases    pairs of which something is marked
    files       changed files of which something is marked

Needs PyPI, so `make bench` leaves it out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

from _common import Report, Target, give_up
from rich.table import Table

from swe_core.builtin.swe.suspicious import added

RELEASES_LIMIT, FILES_LIMIT = 0.07, 0.006
PAIRS = """
requests 2.31.0 2.32.3      flask 3.0.2 3.0.3           django 5.0.6 5.0.7          moto 5.0.10 5.0.11
dask 2024.6.0 2024.6.1      pydantic 2.7.1 2.7.2        hydra-core 1.3.1 1.3.2      dvc 3.50.0 3.50.1
click 8.1.6 8.1.7           jinja2 3.1.3 3.1.4          attrs 23.1.0 23.2.0         rich 13.7.0 13.7.1
httpx 0.26.0 0.27.0         fastapi 0.110.0 0.110.1     starlette 0.36.3 0.37.0     sympy 1.12 1.12.1
scrapy 2.11.1 2.11.2        celery 5.3.5 5.3.6          black 24.4.0 24.4.1         hypothesis 6.100.0 6.100.1
pytest 8.1.1 8.1.2          networkx 3.2 3.2.1          tornado 6.4 6.4.1           mypy 1.10.0 1.10.1
bokeh 3.4.0 3.4.1           werkzeug 3.0.1 3.0.2        sphinx 7.3.6 7.3.7          aiohttp 3.9.3 3.9.4
trio 0.24.0 0.25.0          xarray 2024.5.0 2024.6.0
"""


def sources(package: str, version: str) -> dict[str, bytes] | None:
    """The Python files of a wheel, tests left out; None where pip does not get it."""
    with tempfile.TemporaryDirectory() as directory:
        command = ["pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", directory]
        done = subprocess.run([sys.executable, "-m", *command, f"{package}=={version}"], capture_output=True)
        wheels = list(Path(directory).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            return None
        with zipfile.ZipFile(wheels[0]) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".py") and "/tests/" not in name]
            return {name: wheel.read(name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = PAIRS.split()
    pairs = [tuple(words[at : at + 3]) for at in range(0, len(words), 3)]
    parser.add_argument("--packages", type=int, default=len(pairs))
    options = parser.parse_args()
    table = Table(title="What releases add")
    for column in ("package", "from", "to", "files", "marked", "what"):
        table.add_column(column)
    releases, files, missing = Counter[bool](), Counter[bool](), []
    for package, old, new in pairs[: options.packages]:
        before, after = sources(package, old), sources(package, new)
        if before is None or after is None:
            missing.append(package)
            continue
        changed = [name for name in {*before, *after} if before.get(name) != after.get(name)]
        found = added(*({name: side[name] for name in changed if name in side} for side in (before, after)))
        alone = [
            bool(added(*({name: side[name]} if name in side else {} for side in (before, after))))
            for name in changed
        ]
        releases[bool(found)] += 1
        files.update(alone)
        what = ", ".join(sorted({one.name for one in found}))
        table.add_row(package, old, new, str(len(changed)), str(sum(alone)), what)
    if not releases:
        give_up("pip gets none of the packages")
    shares = {"releases": releases[True] / releases.total(), "files": files[True] / max(1, files.total())}
    Report(
        benchmark="suspicious",
        runs=1,
        medians={f"{name}_share": share for name, share in shares.items()},
        ratios={},
        targets=[
            Target("share of releases that are marked", shares["releases"], RELEASES_LIMIT, ""),
            Target("share of changed files that are marked", shares["files"], FILES_LIMIT, ""),
        ],
        notes=[
            f"{releases[True]} of {releases.total()} releases, {files[True]} of {files.total()} files",
            *([f"pip did not get {', '.join(missing)}"] if missing else []),
        ],
    ).show(table)


if __name__ == "__main__":
    main()
