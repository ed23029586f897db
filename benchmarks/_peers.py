"""Other people's proxies, each in a virtual environment of its own that is made on first use and kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from swe_core.errors import SweError

_INSTALL_SECONDS = 600.0


@dataclass(frozen=True)
class Peer:
    """A package at one version.

    Args:
        requirement: Requirement for pip, with the version.
    """

    name: str
    requirement: str

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self._folder / "bin" / "python"

    @property
    def _folder(self) -> Path:
        version = self.requirement.rpartition("==")[2]
        return platformdirs.user_cache_path("swe-core") / "benchmarks" / "peers" / f"{self.name}-{version}"

    def install(self) -> None:
        """Make its environment where it is missing.

        Raises:
            SweError: It cannot be installed, say because the machine is offline; the message is pip's own.
        """
        done = self._folder / "installed.json"
        if done.exists():
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        print(f"installing {self.requirement} into {self._folder}", file=sys.stderr)
        for command in (
            [sys.executable, "-m", "venv", str(self._folder)],
            [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "-q", self.requirement],
        ):
            self._run(command)
        done.write_text(json.dumps(self.requirement))

    def _run(self, command: list[str]) -> None:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SweError(f"{self.requirement} cannot be installed: {error}") from None
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = said[0].removeprefix("ERROR: ") if said else f"exit code {done.returncode}"
            raise SweError(f"{self.requirement} cannot be installed: {reason}")


VERIFIERS = Peer("verifiers", "verifiers==0.4.0")
OPENENV = Peer("openenv", "openenv==0.10.0")
LITELLM = Peer("litellm", "litellm[proxy]==1.106.2")
