"""Evaluation: a run of small rollouts that tests begin, disturb and resume."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from swe_core.rollout.run_directory import RunDirectory

from .conftest import leftovers, wait_for_the_end
from .resumed_rollouts import TASKS
from .warm import Program, Warm

PLUGIN = str(Path(__file__).with_name("resumed_rollouts.py"))
PATIENCE = 300.0
"""Seconds until something that should happen has failed to."""
RESOLVED = {"small-7", "small-6", "small-4", "small-5"}


@dataclass
class Evaluation:
    """One run directory, and the processes that wrote to it."""

    path: Path
    scratch: Path
    warm: Warm
    attempts: int = 1
    env: dict[str, str] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.path / "run"

    @property
    def ids(self) -> list[str]:
        """The rollouts of the run."""
        return sorted(f"small-{task}-{attempt}" for task in range(TASKS) for attempt in range(self.attempts))

    @property
    def whole(self) -> bytes:
        """The lines of finished rollouts, without a torn one."""
        file = self.out / "rollouts.jsonl"
        data = file.read_bytes() if file.exists() else b""
        return data[: data.rfind(b"\n") + 1]

    def start(self, *args: str) -> Program:
        """Begin the run, or resume it if it exists."""
        argv = ["--resume", str(self.out)]
        if not (self.out / "run.json").exists():
            argv = [
                "-p", PLUGIN, "--tasks", "small", "--agent", "once", "--grader", "digest", "--attempts",
                str(self.attempts), "--engine", "replay", "--recording", str(self.path / "replies.jsonl"),
                "--out", str(self.out),
            ]  # fmt: skip
        env = {"TMPDIR": str(self.scratch), "SWE_TEST_DIR": str(self.path), **self.env}
        process = self.warm.start(["run", *argv, *args], env)
        self.pids.append(process.pid)
        return process

    def run(self, *args: str, code: int = 0) -> str:
        """Run to the end, which has this exit code; what it said."""
        with self.start(*args) as process:
            said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == code, said
        assert "Traceback" not in said, said
        return said

    def nothing_is_left(self) -> None:
        """No process, no sandbox, no file that only a living run has."""
        wait_for_the_end(self.scratch)
        for pid in self.pids:
            assert leftovers(self.scratch, pid) == []
        names = {path.name for path in self.out.iterdir()}
        assert names == {"run.json", "rollouts.jsonl", "rollouts", "lock"}

    def is_complete(self) -> None:
        """Each rollout finished exactly once, with the verdict that it always has, and has its records."""
        rollouts = RunDirectory.open(self.out).rollouts()
        assert sorted(rollout.id for rollout in rollouts) == self.ids
        for rollout in rollouts:
            assert rollout.outcome == ("resolved" if rollout.task_id in RESOLVED else "unresolved")
            assert rollout.turns == 1
            folder = self.out / "rollouts" / rollout.id
            names = {file.name for file in folder.iterdir()}
            assert {"turns.jsonl", "patch.diff", "grade.json", "test.log"} <= names
            assert len(RunDirectory.open(self.out).turns(rollout.id)) == 1
        assert sorted(path.name for path in (self.out / "rollouts").iterdir()) == self.ids


def make(path: Path, scratch: Path, warm: Warm, attempts: int = 1) -> Evaluation:
    """An evaluation in the new directory `path` that did not begin yet."""
    repo = path / "repo"
    repo.mkdir(parents=True)
    (repo / "a.txt").write_text("a\n")
    script = "git init -q; git add .; git -c user.name=a -c user.email=a@example.org commit -q -m 1"
    subprocess.run(["sh", "-euc", script], cwd=repo, check=True)
    reply = {"message": {"role": "assistant", "content": "hello"}}
    lines = [json.dumps({"task_id": f"small-{n}", "replies": [reply]}) for n in range(TASKS)]
    (path / "replies.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return Evaluation(path, scratch, warm, attempts)
