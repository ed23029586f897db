"""Shared by the tests across packages: running the program as its users do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from swe_core.api.task import Task
from swe_core.builtin.demo.source import DemoSource
from swe_core.cli.report import report
from swe_testing.serving.start import FRUGAL
from swe_testing.vllm import ScriptedVLLM

from .warm import PROGRAM, TRAINING, Program, Warm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .evaluations import Evaluation


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

    def report(self) -> dict[str, Any]:
        """What `swe-core report` says of the run."""
        said: dict[str, Any] = json.loads(reported(self.out, "--json"))
        return said


Command = Callable[..., Done]
SweCore = Callable[..., Done]
Scripted = Callable[..., ScriptedVLLM]
TASK = "demo__memofn-1"


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
def server_home() -> Iterator[Path]:
    """A directory for a vLLM server of the test's own, with a short name: it holds unix sockets."""
    with tempfile.TemporaryDirectory(prefix="swe-", dir="/tmp") as path:
        yield Path(path)


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
def make_evaluation(tmp_path: Path, scratch: Path, warm: Warm) -> Callable[..., Evaluation]:
    """Make `Evaluation`s; the first argument is a name that is unique within the test."""
    from .evaluations import make

    return lambda name="one", *args, **more: make(tmp_path / name, scratch, warm, *args, **more)


@pytest.fixture
def swe_core(tmp_path: Path, command: Command) -> SweCore:
    """Run `swe-core run ARGS` so, into a new run directory."""

    def run(*args: str, **more: Any) -> Done:
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return replace(command("run", *args, "--out", str(out), **more), out=out)

    return run


def reported(out: Path, *args: str) -> str:
    """What `swe-core report` prints of a run."""
    return CliRunner().invoke(report, [str(out), *args], catch_exceptions=False).stdout


def leftovers(scratch: Path, pid: int) -> list[str]:
    """What a run left behind: host directories of sandboxes, and containers that it owned."""
    found = [str(path) for path in scratch.rglob("*") if path.parent != scratch]
    listed = ["docker", "ps", "-a", "--format", '{{.ID}} {{.Label "swe-core.owner"}}']
    if shutil.which("docker"):
        containers = subprocess.run(listed, capture_output=True, text=True, check=False).stdout
        found += [line for line in containers.splitlines() if f"/{pid}/" in line]
    return found


def processes_of(scratch: Path) -> list[str]:
    """The command lines of the processes that have the name of this directory in their environment or among
    their arguments, as all have that a run started with it for scratch files."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is another user's, or ends
            words = (directory / "cmdline").read_bytes()
            if os.fsencode(scratch) in words + (directory / "environ").read_bytes():
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def wait_for(
    happened: Callable[[], object],
    alive: Program | subprocess.Popen[Any] | None = None,
    say: Callable[[], object] = lambda: "it does not happen",
) -> None:
    """Wait for what no event tells. A program that must be `alive` till then ends the wait, if it ends, with
    what there is to `say`."""
    deadline = time.monotonic() + 400
    while not happened():
        assert alive is None or alive.poll() is None, say()
        assert time.monotonic() < deadline, say()
        time.sleep(0.005)


def wait_for_the_end(scratch: Path) -> None:
    """Of all that a run with this directory started; what was killed is there a moment longer."""
    wait_for(lambda: not processes_of(scratch), say=lambda: processes_of(scratch))


@pytest.fixture(scope="session")
def task() -> Task:
    """The demo task that most tests use, `TASK`."""
    return next(task for task in DemoSource().tasks() if task.instance_id == TASK)


def fix(task: Task) -> str:
    """A command that applies the gold patch."""
    return f"git apply - <<'END_OF_PATCH'\n{task.patch}END_OF_PATCH"


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
