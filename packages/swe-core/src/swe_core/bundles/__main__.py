"""Print the pins of a part, to paste into a recipe.

python -m swe_core.bundles pin npm:NAME@VERSION
python -m swe_core.bundles pin pypi:NAME==VERSION --python 3.12 > lock.txt
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from swe_core.bundles.pins import MACHINES, npm_pins, wheel_lock
from swe_core.errors import SweError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m swe_core.bundles")
    pin = parser.add_subparsers(required=True, metavar="pin").add_parser(
        "pin", help="print the pins of a part"
    )
    pin.add_argument("packages", nargs="+", metavar="npm:NAME@VERSION | pypi:NAME==VERSION")
    pin.add_argument("--keep", nargs="+", default=[], help="npm: the paths to keep; default: all")
    pin.add_argument("--executable", nargs="+", default=[], help="npm: the files that are programs")
    pin.add_argument("--python", nargs="+", default=["3.12"], help="PyPI: versions of Python; default: 3.12")
    pin.add_argument("--machine", nargs="+", default=MACHINES, help="PyPI: architectures; default: all")
    pin.add_argument("--without", nargs="+", default=[], help="PyPI: packages to leave out")
    given = parser.parse_args(arguments)
    wheels = [each.removeprefix("pypi:") for each in given.packages if each.startswith("pypi:")]
    npm = [each.removeprefix("npm:") for each in given.packages if each.startswith("npm:")]
    if len(wheels) + len(npm) < len(given.packages):
        parser.error("expected npm:NAME@VERSION or pypi:NAME==VERSION")
    try:
        for spec in npm:
            sys.stdout.write(npm_pins(spec, given.keep, given.executable))
        if wheels:
            sys.stdout.write(wheel_lock(wheels, given.python, given.machine, given.without))
    except SweError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
