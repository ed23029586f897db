"""What the agent `pi` needs of this machine."""

from __future__ import annotations

from swe_agents_pi.bundle import PI, find_bundle
from swe_agents_pi.node import find_node, npm_command
from swe_core.api.checks import Check, Finding
from swe_core.errors import AgentError


def node() -> Finding:
    """Whether there is a node to bundle."""
    try:
        return Finding("ok", str(find_node(None)))
    except AgentError as error:
        return Finding.missing(str(error), ": ")


def bundle() -> Finding:
    """Whether the bundle is built, or can be: what npm will say is not asked."""
    try:
        if (built := find_bundle()) is not None:
            return Finding("ok", f"{PI.spec} is built in {str(built.path)!r}")
        npm = npm_command()
    except AgentError as error:
        return Finding.missing(str(error), ": ")
    return Finding("info", f"{PI.spec} is not built: the first run fetches it with {npm[-1]}")


CHECKS = (Check("node", "--agent pi", node), Check("bundle", "--agent pi", bundle))
