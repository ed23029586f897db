"""Recipe: what a bundle consists of. Part and Content, and the part File."""

from __future__ import annotations

import hashlib
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from swe_core.errors import AgentError

T = TypeVar("T")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class Content(ABC):
    """A part of one agent's bundle on this host."""

    pinned: ClassVar[bool] = True
    """Whether `holds` knows every file. The digest of other content is recorded when it is built."""

    @property
    @abstractmethod
    def owns(self) -> Sequence[str]:
        """Return the files and folders of the bundle that belong to the part."""

    @abstractmethod
    def key(self) -> object:
        """Return JSON data that changes with the content."""

    @abstractmethod
    def place(self, staged: Path, scratch: Path) -> None:
        """Put the part into the bundle at `staged`; `scratch` is an empty folder on the same disk.

        Raises:
            AgentError: The part cannot be made, or differs from its pin.
            OSError: A file cannot be written.
        """

    def check_host(self) -> None:
        """Check that this host has the programs with which `place` works. Nothing is fetched.

        Raises:
            AgentError: One is missing.
        """
        return

    def holds(self, contents: Mapping[str, str]) -> bool:
        """Return whether the files that the part owns are as pinned.

        Args:
            contents: Path in the bundle → what is there, as `swe_core.system.seal.Seal.contents` says it.
        """
        return bool(contents)


class Part(ABC):
    """A part of a recipe."""

    @abstractmethod
    def resolve(self, agent: str) -> Content:
        """Return the content for the bundle of `agent` on this host. Messages name the agent.

        Raises:
            ConfigError: A setting of the agent is wrong.
            AgentError: The host lacks what the part is made from.
        """


@dataclass(frozen=True, slots=True)
class File(Part, Content):
    """A file with given content."""

    path: str
    content: bytes
    executable: bool = False

    def resolve(self, agent: str) -> Content:
        return self

    @property
    def owns(self) -> Sequence[str]:
        return (self.path,)

    def key(self) -> object:
        return (self.path, self._what())

    def place(self, staged: Path, scratch: Path) -> None:
        target = staged / self.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.content)
        target.chmod(0o755 if self.executable else 0o644)

    def holds(self, contents: Mapping[str, str]) -> bool:
        return contents == {self.path: self._what()}

    def _what(self) -> str:
        kind = "program" if self.executable else "file"
        return f"{kind} {hashlib.sha256(self.content).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a bundle consists of.

    Args:
        name: Name of the agent and of its asset: `/opt/swe/<name>` in a sandbox.
        parts: They own different paths. A part whose folder lies in the folder of another one follows it.
    """

    name: str
    parts: tuple[Part, ...]


def machine() -> str:
    """Return this machine's architecture in Linux's words, such as `x86_64` or `aarch64`."""
    found = platform.machine().lower()
    return _MACHINES.get(found, found)


def for_this_machine(choices: Mapping[str, T], agent: str) -> T:
    """Return the choice for this machine's architecture, such as `x86_64` or `aarch64`.

    Args:
        agent: Name of the agent whose choices they are.

    Raises:
        AgentError: There is none.
    """
    try:
        return choices[machine()]
    except KeyError:
        raise AgentError(
            f"the agent {agent!r} exists for {' and '.join(sorted(choices))} only, and this host is "
            f"{machine()!r}: run it on another host, or choose another agent"
        ) from None
