"""Checks of what the agent `pi` needs."""

from __future__ import annotations

from swe_agents_pi.bundle import PI, find_bundle
from swe_agents_pi.node import find_node, npm_command
from swe_core.api.checks import Check, Finding
from swe_core.errors import AgentError


def node() -> Finding:
    """Check that a usable node exists."""
    try:
        return Finding("ok", str(find_node(None)))
    except AgentError as error:
        return Finding.missing(str(error), ": ")


def bundle() -> Finding:
    """Check that the bundle is built, or that npm exists to build it. This does not run npm."""
    try:
        if (built := find_bundle()) is not None:
            return Finding("ok", f"{PI.spec} is built in {str(built.path)!r}")
        npm = npm_command()
    except AgentError as error:
        return Finding.missing(str(error), ": ")
    return Finding("info", f"{PI.spec} is not built: the first run fetches it with {npm[-1]}")


CHECKS = (Check("node", "--agent pi", node), Check("bundle", "--agent pi", bundle))
