"""Shared by the tests across packages: running the program as its users do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.testing.vllm import ScriptedVLLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
Scripted = Callable[..., ScriptedVLLM]


@pytest.fixture(scope="session")
def local_sandbox() -> None:
    """A machine on which local sandboxes isolate; elsewhere the test is skipped with the remedy."""
    obstacle = why_not(find_bwrap())
    if obstacle is not None:
        pytest.skip(obstacle)


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def sandbox(request: pytest.FixtureRequest) -> str:
    """Each sandbox by its name, where this machine has it."""
    request.getfixturevalue({"local": "local_sandbox", "docker": "docker_image"}[request.param])
    return str(request.param)


@pytest.fixture
def swe_core(tmp_path: Path) -> Iterator[SweCore]:
    """Run `swe-core run ARGS` in a process of its own, as its users do; nothing of it may be left after."""
    scratch = Path(tempfile.mkdtemp(prefix="swe-", dir="/tmp"))  # short: unix sockets lie below it

    def run(*args: str, env: dict[str, str] | None = None, timeout: float = 500) -> Done:
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "swe-core"), "run", *args, "--out", str(out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch), **(env or {})},
        )
        with process:
            stdout, stderr = process.communicate(timeout=timeout)
        assert "Traceback" not in stderr, stderr
        assert leftovers(scratch, process.pid) == []
        return Done(process.returncode, stdout, stderr, out)

    yield run
    shutil.rmtree(scratch)


def leftovers(scratch: Path, pid: int) -> list[str]:
    """What a run left behind: host directories of sandboxes, and containers that it owned."""
    found = [str(path) for path in scratch.rglob("*") if path.parent != scratch]
    listed = ["docker", "ps", "-a", "--format", '{{.ID}} {{.Label "swe-core.owner"}}']
    if shutil.which("docker"):
        containers = subprocess.run(listed, capture_output=True, text=True, check=False).stdout
        found += [line for line in containers.splitlines() if f"/{pid}/" in line]
    return found


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerBase:
    """The tiny model's."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def scripted(tiny_model: Path, tokenizer: PreTrainedTokenizerBase) -> Scripted:
    """Makes a scripted vLLM from replies; text in them is as the tiny model's tokenizer has it."""
    return partial(
        ScriptedVLLM,
        encode=partial(tokenizer.encode, add_special_tokens=False),
        stop_id=tokenizer.eos_token_id,
        root=str(tiny_model),
    )
