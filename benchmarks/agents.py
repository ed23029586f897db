"""How long until each agent's first LLM call: in our sandbox from its bundle, and its own start.

    python benchmarks/agents.py [--runs N] [--agent NAME]...

In the sandbox `local`, the interval begins when the sandbox is open and ends when the first LLM request has
been read by the interception server, as in `first_request`. The agent's own start is that of the same command
on this host, from the same bundle, with the same files, prompt and repository, without a sandbox: from the
start of the process to its first request. The two take turns. The agent's replies are one recorded sentence.

An agent should need at most one second, or 0.2 s more than its own start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from _common import Report, Target, give_up, median, run, shown
from rich.table import Table

from swe_core.api.agent import AgentContext, AgentSpec
from swe_core.api.engine import EngineSession
from swe_core.api.records import Turn
from swe_core.builtin.demo.source import DemoSource
from swe_core.errors import SweError, sentence
from swe_core.interception.server import InterceptionServer
from swe_core.rollout.agent_run import build_prompt
from swe_core.run.components import load_plugins, resolve_component
from swe_core.run.settings import RunOptions, Settings
from swe_core.run.trial import ScriptedModel

TASK = "demo__memofn-1"
REPLY = {"task_id": TASK, "replies": [{"message": {"role": "assistant", "content": "Nothing to do."}}]}
MORE, ENOUGH = 0.2, 1.0
SETTINGS = {"claude-code": {"accept_license": True}}
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HostContext(AgentContext):
    """What an agent on the bare host is given: its bundle is where it was built."""

    bundle: Path = Path()

    def asset(self, name: str) -> str:
        return str(self.bundle)


@dataclass
class Agent:
    """One agent, and its seconds of each round."""

    name: str
    spec: AgentSpec
    sandboxed: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    problem: str | None = None

    def measure(self, recording: Path) -> None:
        """One rollout, and one start on the host; the first problem is kept and ends this agent."""
        if self.problem is None:
            try:
                self.sandboxed.append(self._sandboxed(recording))
                self.own.append(asyncio.run(self._own()))
            except SweError as error:
                self.problem = f"{self.name} is skipped: {sentence(error)}"

    def _sandboxed(self, recording: Path) -> float:
        settings = SETTINGS.get(self.name, {})
        sets = [f"agent.{self.name}.{key}={json.dumps(value)}" for key, value in settings.items()]
        args = ["--sandbox", "local", "--task", TASK, "--recording", str(recording), "--agent", self.name]
        with run([*args, *(part for one in sets for part in ("--set", one))]) as records:
            rollout, *_ = records.rollouts()
            turns = records.path / "rollouts" / rollout.id / "turns.jsonl"
            if rollout.phases.open is None or not turns.exists():
                raise SweError(rollout.failure.message if rollout.failure else "no LLM request arrived")
            first = Turn.model_validate_json(turns.read_bytes().splitlines()[0])
        return (first.started_at - rollout.started_at).total_seconds() - rollout.phases.open

    async def _own(self) -> float:
        (asset,) = self.spec.assets()
        scratch = Path(tempfile.mkdtemp(prefix="swe-bench-"))
        task = next(task for task in DemoSource().tasks() if task.instance_id == TASK)
        model = ScriptedModel()
        try:
            async with InterceptionServer() as server:
                session = EngineSession("own", "task", 0, self.name)
                async with server.session(model, session, lambda turn: None) as gate:
                    ctx = HostContext(
                        task=task,
                        prompt=build_prompt(task),
                        base_url=server.url + gate.path,
                        api_key=gate.token,
                        model="policy",
                        workdir=str(scratch / "work"),
                        home=str(scratch / "home"),
                        bundle=asset.path,
                    )
                    prepare(self.spec, ctx)
                    env = {"PATH": os.environ["PATH"], "HOME": str(scratch), **self.spec.env(ctx)}
                    started = time.perf_counter()
                    process = await asyncio.create_subprocess_exec(
                        *self.spec.command(ctx),
                        cwd=ctx.workdir,
                        env=env,
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.DEVNULL,
                        stderr=asyncio.subprocess.DEVNULL,
                    )
                    asking = asyncio.create_task(process.communicate(self.spec.stdin(ctx)))
                    try:
                        async with asyncio.timeout(_SECONDS):
                            await gate.called.wait()
                    except TimeoutError:
                        raise SweError(f"on the host it made no LLM call within {_SECONDS:g} s") from None
                    finally:
                        seconds = time.perf_counter() - started
                        if process.returncode is None:
                            process.kill()
                        await asking
                    return seconds
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def prepare(spec: AgentSpec, ctx: AgentContext) -> None:
    """Copy the repository, and write the agent's files."""
    shutil.copytree(str(ctx.task.repository), ctx.workdir, symlinks=True)
    for path, content in spec.files(ctx).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)


def agents(names: list[str]) -> list[Agent]:
    """The agents of this name; of none, all that come as bundles.

    Raises:
        SweError: There is no such agent.
    """
    settings = Settings(agent=SETTINGS)
    plugins = load_plugins(RunOptions())
    offered = [one.name for one in plugins.components("agent")]
    found = []
    for name in names or offered:
        if not names and name in ("mini", "oracle", "nop", "acp"):
            continue
        spec = resolve_component(settings, plugins, "agent", name).create()
        found.append(Agent(name, spec))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="rounds; default: 5")
    parser.add_argument("--agent", action="append", default=[], help="default: all that come as bundles")
    options = parser.parse_args()
    report = Report("agents", options.runs)
    try:
        measured = agents(options.agent)
    except SweError as error:
        give_up(sentence(error))
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        recording = Path(scratch, "recording.jsonl")
        recording.write_text(json.dumps(REPLY))
        for _ in range(options.runs):
            for agent in measured:
                agent.measure(recording)
    report.notes += [agent.problem for agent in measured if agent.problem is not None]
    table = Table(title=f"Seconds to the first LLM request, medians of {options.runs} rounds")
    for title in ("agent", "in a sandbox", "on the host"):
        table.add_column(title, justify="left" if title == "agent" else "right")
    for agent in measured:
        first, own = median(agent.sandboxed), median(agent.own)
        report.medians[agent.name] = {"sandboxed": first, "own": own}
        limit = ENOUGH if own is None else max(ENOUGH, own + MORE)
        report.targets.append(Target(f"{agent.name}: first request", first, round(limit, 3)))
        table.add_row(agent.name, shown(first), shown(own))
    if not any(agent.sandboxed for agent in measured):
        give_up("; ".join(report.notes) or "there is no agent to measure")
    report.show(table)


if __name__ == "__main__":
    main()
