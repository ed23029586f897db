"""A cluster of three nodes, which all tests share, and runs of the program on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from swe_core.rollout.run_directory import RunDirectory

HERE = Path(__file__).parent
PLUGINS = (HERE / "ray_rollouts.py", HERE.parents[2] / "tests" / "resumed_rollouts.py")
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
PATIENCE = 90.0
"""Seconds until something that should happen has failed to."""


def wait_for(happened: Callable[[], object], alive: subprocess.Popen[str] | None = None) -> None:
    """Wait for what no event tells, while a process is alive."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert alive is None or alive.poll() is None, alive.communicate()[0]
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def ended(process: subprocess.Popen[str]) -> str:
    """What a program has said, which has to end soon."""
    try:
        return process.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"it does not end: {process.communicate()[0]}") from None


def words(pid: int | str) -> bytes:
    """The command line of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    """The process ids of the children of a process."""
    try:
        return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@dataclass
class RayCluster:
    """A cluster in a process of its own; `home` has the files of its nodes, and `raylets` are their pids."""

    process: subprocess.Popen[str]
    home: Path
    address: str
    raylets: list[int]

    def add(self, slots: int, **variables: str) -> int:
        """Add a node, and return the process id of its raylet."""
        self.raylets.append(self._do("add", slots, *map("=".join, variables.items())))
        return self.raylets[-1]

    def remove(self, raylet: int) -> None:
        """Kill a node. Its processes end."""
        actors = self.actors(raylet)
        self.raylets.remove(self._do("kill", raylet))
        wait_for(lambda: not any(words(actor) for actor in actors))

    def drain(self, raylet: int) -> None:
        """Say that a node will end."""
        self._do("drain", raylet)

    def _do(self, *words: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def actors(self, raylet: int | None = None) -> list[int]:
        """The processes of the actors of runs, on a node or on all."""
        of = self.raylets if raylet is None else [raylet]
        return [pid for one in of for pid in children(one) if words(pid).startswith(b"ray::NodeActor")]

    @property
    def spools(self) -> list[Path]:
        """What nodes keep of runs."""
        return list((self.home / "cache" / "swe-core" / "nodes").glob("*"))

    @property
    def finished(self) -> list[Path]:
        """The files of finished rollouts that nodes keep."""
        return [file for spool in self.spools for file in spool.glob("*.tar")]

    @property
    def sandboxes(self) -> list[str]:
        """Directories of sandboxes on this host, and processes in them."""
        found = [str(path) for path in (self.home / "tmp").glob("*/*")]
        return [*found, f"{self.agents} agents"] if self.agents else found

    @property
    def agents(self) -> int:
        """How many agents run in its sandboxes."""
        lines, mark = [words(path.name) for path in Path("/proc").glob("[0-9]*")], str(self.home).encode()
        return sum(line.startswith(b"python3\0-S\0-c") and mark in line for line in lines)


@dataclass
class Run:
    """One run directory, and the processes that wrote to it."""

    cluster: RayCluster
    path: Path
    options: Sequence[str] = ()
    tasks: int = 1
    env: dict[str, str] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.path / "run"

    @property
    def whole(self) -> bytes:
        """The lines of finished rollouts, without a torn one."""
        file = self.out / "rollouts.jsonl"
        data = file.read_bytes() if file.exists() else b""
        return data[: data.rfind(b"\n") + 1]

    @property
    def finished(self) -> int:
        return self.whole.count(b"\n")

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Begin the run, or resume it if it exists."""
        argv = ["--resume", str(self.out)]
        if not (self.out / "run.json").exists():
            argv = [
                *("--plugins", "ray", *(f"-p{plugin}" for plugin in PLUGINS), "--executor", "ray"),
                *("--agent", "noting", "--engine", "letters", "--grader", "digest", "--tasks", "small"),
                *("--limit", str(self.tasks), "--out", str(self.out)),
                *("--workers", "0", "--address", self.cluster.address),
                *self.options,
            ]
        command = [sys.executable, "-c", "from swe_core.cli import main; main()", "run", *argv, *args]
        env = {**os.environ, **LOOPBACK, "TMPDIR": str(self.cluster.home / "tmp"), **self.env}
        env["SWE_TEST_DIR"] = str(self.path)
        env["RAY_TMPDIR"] = str(self.cluster.home)  # where Ray falls back if it finds no node to connect to
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *args: str, code: int = 0) -> str:
        """Run to the end, which has this exit code; what it said."""
        with self.start(*args) as process:
            said = ended(process)
        assert process.returncode == code, said
        assert "Traceback" not in said, said
        return said

    def is_complete(self, attempts: int) -> None:
        """Each rollout finished exactly once and has its records; nothing is left."""
        directory = RunDirectory.open(self.out)
        rollouts = [json.loads(line) for line in self.whole.splitlines()]
        expected = sorted(f"small-{task}-{n}" for task in range(self.tasks) for n in range(attempts))
        assert sorted(rollout["id"] for rollout in rollouts) == expected
        assert sorted(path.name for path in (self.out / "rollouts").iterdir()) == expected
        for rollout in rollouts:
            assert rollout["outcome"] in ("resolved", "unresolved"), rollout
            assert len(list(directory.turns(rollout["id"]))) == 1
            (row,) = directory.chains(rollout["id"])
            assert bytes(row.input_ids[2:].tolist()).decode() == rollout["id"]
        assert self.cluster.spools == []
        assert self.cluster.sandboxes == []


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory with a short name: it holds unix sockets."""
    with tempfile.TemporaryDirectory(prefix="swe-", dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory for TMPDIR."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="session")
def cluster(local_sandbox: None) -> Iterator[RayCluster]:
    """A head without slots and three nodes with two each."""
    with short_directory() as home:
        (home / "tmp").mkdir()
        places = {"TMPDIR": home / "tmp", "XDG_CACHE_HOME": home / "cache", "RAY_TMPDIR": home}
        offline = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
        env = {**os.environ, **offline, **{name: str(place) for name, place in places.items()}}
        command = [sys.executable, str(HERE / "cluster_process.py"), "2", "2", "2"]
        pipe = subprocess.PIPE
        with (
            (home / "log").open("w") as log,
            subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=log, text=True) as process,
        ):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (home / "log").read_text()
            yield RayCluster(process, home, **json.loads(line))
            process.communicate()


@pytest.fixture
def make_run(cluster: RayCluster, tmp_path: Path) -> Callable[..., Run]:
    """Makes runs that did not begin yet."""

    def make(*options: str, name: str = "one", tasks: int = 1) -> Run:
        repo = tmp_path / name / "repo"
        repo.mkdir(parents=True)
        (repo / "a.txt").write_text("a\n")
        script = "git init -q; git add .; git -c user.name=a -c user.email=a@example.org commit -q -m 1"
        subprocess.run(["sh", "-euc", script], cwd=repo, check=True)
        return Run(cluster, tmp_path / name, options, tasks)

    return make
