"""Shared by the tests across packages: running the program as its users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Done:
    """One finished run of the program."""

    code: int
    stdout: str
    stderr: str
    out: Path

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        path = self.out / "rollouts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def only(self) -> dict[str, Any]:
        (rollout,) = self.rollouts
        return rollout


SweCore = Callable[..., Done]


@pytest.fixture
def swe_core(tmp_path: Path) -> SweCore:
    """Run `swe-core run ARGS` in a process of its own, as its users do."""

    def run(*args: str, env: dict[str, str] | None = None, timeout: float = 120) -> Done:
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        command = [str(Path(sys.executable).parent / "swe-core"), "run", *args, "--out", str(out)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr, out)

    return run
