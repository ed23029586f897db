"""How long until an agent's first LLM call arrives at the host: our bundle against `npm install`.

    python benchmarks/first_request.py [--runs N] [--npm-runs N] [--sandbox local] [--sandbox docker]

The interval begins when the sandbox is open and ends when Pi's first LLM request has been read by the
interception server. In it are all that the program does in between (recording the base of the repository,
registering the rollout, starting the relay, writing Pi's files) and Pi's own start. Opening the sandbox is
not in it and stands beside it. It is computed from a run's records: the first turn's `started_at`, minus the
rollout's `started_at`, minus `phases.open`.

The other side is the same rollout, but Pi is brought in as peers do: `npm install` inside the sandbox, with
`network=full` and an empty npm cache, and node and npm there already at no cost. The sides take turns. Pi's
reply is one recorded sentence, so that every rollout ends after its first request.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from _common import SANDBOXES, Report, Target, give_up, median, ratio, run, shown, usable
from rich.table import Table

from swe_agents_pi.bundle import PI
from swe_core.api.records import Turn
from swe_core.bundles.npm import npm_command
from swe_core.errors import SweError, sentence

TASK = "demo__memofn-1"
LIMITS = {"local": 1.0, "docker": 2.0}
OLDER_PI = "0.87.1"
"""What is installed instead where npm cannot resolve the dependencies of the version that we bundle."""
REPLY = {"task_id": TASK, "replies": [{"message": {"role": "assistant", "content": "Nothing to do."}}]}
_PLUGIN = str(Path(__file__).with_name("_npm_pi.py"))
_NPM_SECONDS = 180.0


@dataclass
class Side:
    """One way to bring Pi into one sandbox, and how long it took each time."""

    sandbox: str
    args: list[str]
    title: str
    open: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    problem: str | None = None

    def measure(self, recording: Path) -> None:
        """One rollout; the first problem is kept and ends this side."""
        if self.problem is not None:
            return
        args = ["--sandbox", self.sandbox, "--task", TASK, "--recording", str(recording), *self.args]
        try:
            with run(args) as records:
                rollout, *_ = records.rollouts()
                turns = records.path / "rollouts" / rollout.id / "turns.jsonl"
                if rollout.phases.open is None or not turns.exists():
                    raise SweError(rollout.failure.message if rollout.failure else "no LLM request arrived")
                first = Turn.model_validate_json(turns.read_bytes().splitlines()[0])
        except SweError as error:
            self.problem = f"{self.title}, {self.sandbox}, is skipped: {sentence(error)}"
            return
        self.open.append(rollout.phases.open)
        self.first.append((first.started_at - rollout.started_at).total_seconds() - rollout.phases.open)


def npm_version(notes: list[str]) -> str | None:
    """The version of Pi that npm can install here; None, with a note, where it can install none."""
    said = ""
    for version in (PI.version, OLDER_PI):
        reason = _why_not_installable(version)
        if reason is None:
            if said:
                notes.append(f"npm install is of Pi {version}, since npm cannot install {said}")
            return version
        said += f"{' nor ' if said else ''}Pi {version} here ({reason})"
    notes.append(f"npm install is skipped: npm cannot install {said}")
    return None


def _why_not_installable(version: str) -> str | None:
    """Why npm on this host finds no set of packages for this version of Pi; None where it does."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            *npm_command("pi"), "install", "--package-lock-only", "--no-audit", "--no-fund",
            "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000", f"{PI.name}@{version}",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=_NPM_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return f"npm did not end within {_NPM_SECONDS:g} s"
    lines = [line.removeprefix("npm error ") for line in done.stderr.splitlines() if "npm error" in line]
    return None if done.returncode == 0 else "; ".join(lines[:2]) or f"exit code {done.returncode}"


def registry() -> str:
    """The registry that this host's npm is set to."""
    command = [*npm_command("pi"), "config", "get", "registry"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=7, help="rollouts with our bundle, per sandbox; default: 7"
    )
    parser.add_argument("--npm-runs", type=int, default=3, help="rollouts with npm install; default: 3")
    parser.add_argument("--sandbox", action="append", choices=SANDBOXES, help="default: both")
    options = parser.parse_args()

    report = Report("first_request", options.runs)
    sandboxes = usable(options.sandbox or SANDBOXES)
    report.notes += [reason for reason in sandboxes.values() if reason is not None]
    usable_ones = [name for name, reason in sandboxes.items() if reason is None]
    npm_args = ["-p", _PLUGIN, "--agent", "pi-npm", "--network", "full"]
    version = None
    try:
        if options.npm_runs and usable_ones:
            npm_args += ["--set", f"agent.pi-npm.registry={json.dumps(registry())}"]
            version = npm_version(report.notes)
            npm_args += ["--set", f"agent.pi-npm.version={json.dumps(version)}"]
    except (SweError, subprocess.CalledProcessError) as error:
        report.notes.append(f"npm install is skipped: npm does not run: {sentence(error)}")

    sides: dict[str, Side] = {}
    for name in usable_ones:
        sides[name] = Side(name, ["--agent", "pi"], f"bundle, Pi {PI.version}")
        if version is not None:
            sides[f"{name}_npm"] = Side(name, npm_args, f"npm install, Pi {version}")
    with tempfile.TemporaryDirectory() as scratch:
        recording = Path(scratch, "reply.jsonl")
        recording.write_text(json.dumps(REPLY) + "\n")
        for number in range(max(options.runs, options.npm_runs)):
            for key, side in sides.items():
                if number < (options.npm_runs if key.endswith("_npm") else options.runs):
                    side.measure(recording)
    report.notes += [side.problem for side in sides.values() if side.problem is not None]
    if not any(side.first for side in sides.values()):
        give_up("; ".join(report.notes) or "there is nothing to measure")

    table = Table(title=f"First LLM request of Pi, medians of {options.runs} runs (npm: {options.npm_runs})")
    table.add_column("sandbox")
    table.add_column("Pi comes by")
    for column in ("open", "opened → request", "fastest", "slowest", "to the bundle"):
        table.add_column(column, justify="right")
    first: dict[str, float | None] = {}
    for name in SANDBOXES:
        for key in (name, f"{name}_npm"):
            measured = sides.get(key)
            first[key] = median(measured.first) if measured else None
            opened = median(measured.open) if measured else None
            report.medians[key] = {"open": opened, "first_request": first[key]}
            if measured is not None and measured.first:
                times = ratio(first[key], first[name])
                fastest, slowest = shown(min(measured.first)), shown(max(measured.first))
                row = (measured.sandbox, measured.title, shown(opened), shown(first[key]), fastest, slowest)
                table.add_row(*row, shown(times, "x"))
        report.ratios[f"{name}_npm_to_bundle"] = ratio(first[f"{name}_npm"], first[name])
        report.targets.append(Target(f"{name}: opened → first request", first[name], LIMITS[name]))
    report.show(table)


if __name__ == "__main__":
    main()
