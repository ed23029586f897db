"""Bundles: what the host builds for agents, pinned, verified and cached, and sandboxes see read-only.

    Recipe("codex", parts=(NpmPackage(...), Node(), File("tools.json", b"{}")))

`ensure_bundle` builds a recipe's bundle once a host. `BundledAgent` does so for its agent.
"""

from swe_core.bundles.agent import BundledAgent, bundle_checks, loopback_env, merged
from swe_core.bundles.build import Bundle, ensure_bundle, find_bundle
from swe_core.bundles.node import Node
from swe_core.bundles.npm import NpmPackage
from swe_core.bundles.python import Python
from swe_core.bundles.recipe import File, Part, Recipe, for_this_machine
from swe_core.bundles.wheels import Wheels

__all__ = [
    "Bundle",
    "BundledAgent",
    "File",
    "Node",
    "NpmPackage",
    "Part",
    "Python",
    "Recipe",
    "Wheels",
    "bundle_checks",
    "ensure_bundle",
    "find_bundle",
    "for_this_machine",
    "loopback_env",
    "merged",
]
