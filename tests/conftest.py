"""Shared by the tests across packages: running the program as its users do."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.cli.report import report
from swe_core.testing.serving.start import FRUGAL
from swe_core.testing.vllm import ScriptedVLLM

from .warm import PROGRAM, TRAINING, Warm

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


Command = Callable[..., Done]
SweCore = Callable[..., Done]
Scripted = Callable[..., ScriptedVLLM]


@pytest.fixture(scope="session")
def local_sandbox() -> None:
    """A machine on which local sandboxes isolate; elsewhere the test is skipped with the remedy."""
    obstacle = why_not(find_bwrap())
    if obstacle is not None:
        pytest.skip(obstacle)


DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])


@pytest.fixture(params=["local", DOCKER])
def sandbox(request: pytest.FixtureRequest) -> str:
    """Each sandbox by its name, where this machine has it."""
    request.getfixturevalue({"local": "local_sandbox", "docker": "docker_image"}[request.param])
    return str(request.param)


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Runs the program in processes of their own that have it imported."""
    with Warm(PROGRAM) as warm:
        yield warm


@pytest.fixture(scope="session")
def warm_trainer() -> Iterator[Warm]:
    """The same with TRL; what libraries read of the environment at their import is `FRUGAL`."""
    with Warm(TRAINING, FRUGAL) as warm:
        yield warm


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory for TMPDIR, with a short name: unix sockets lie below it."""
    path = Path(tempfile.mkdtemp(prefix="swe-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def command(warm: Warm, scratch: Path) -> Command:
    """Run `swe-core ARGS` in a process of its own; nothing of it may be left after."""

    def run(*args: str, env: dict[str, str] | None = None, timeout: float = 500) -> Done:
        with warm.start(args, {"TMPDIR": str(scratch), **(env or {})}) as program:
            stdout, stderr = program.communicate(timeout)
        assert "Traceback" not in stderr, stderr
        assert leftovers(scratch, program.pid) == []
        return Done(program.wait(), stdout, stderr, Path())

    return run


@pytest.fixture
def swe_core(tmp_path: Path, command: Command) -> SweCore:
    """Run `swe-core run ARGS` so, into a new run directory."""

    def run(*args: str, **more: Any) -> Done:
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return replace(command("run", *args, "--out", str(out), **more), out=out)

    return run


def reported(out: Path, *args: str) -> str:
    """What `swe-core report` prints of a run."""
    done = CliRunner().invoke(report, [str(out), *args], catch_exceptions=False)
    return done.stdout


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
