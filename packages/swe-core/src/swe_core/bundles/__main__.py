"""Print the pins of a part: `python -m swe_core.bundles pin npm:NAME@VERSION`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from swe_core.bundles.npm import fetch, sha256_of, unpack
from swe_core.errors import SweError
from swe_core.system.seal import contents_of, digest_of

_FOR = "pin"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m swe_core.bundles")
    pin = parser.add_subparsers(required=True).add_parser("pin", help="print the pins of a part")
    pin.add_argument("package", help="npm:NAME@VERSION")
    pin.add_argument("--keep", nargs="*", default=[], help="paths of an npm package to keep; default: all")
    pin.add_argument("--executable", nargs="*", default=[], help="files of an npm package that are programs")
    given = parser.parse_args()
    try:
        print(_npm(given.package.removeprefix("npm:"), given.keep, given.executable))  # noqa: T201
    except SweError as error:
        sys.exit(f"error: {error}")


def _npm(spec: str, keep: list[str], executable: list[str]) -> str:
    name, _, version = spec.rpartition("@")
    with tempfile.TemporaryDirectory() as scratch:
        tarball = fetch(spec, Path(scratch), _FOR)
        sha256 = sha256_of(tarball)
        tree = digest_of(contents_of(unpack(tarball, Path(scratch), keep, executable, _FOR)))
    lines = [f'name="{name}"', f'version="{version}"', f'sha256="{sha256}"', f'tree="{tree}"']
    lines += [
        f"{key}={tuple(value)!r}" for key, value in (("keep", keep), ("executable", executable)) if value
    ]
    return "NpmPackage(\n" + "".join(f"    {line},\n" for line in lines) + ")"


if __name__ == "__main__":
    main()
