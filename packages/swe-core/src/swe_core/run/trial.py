"""Run an agent once, with a script in place of the model.

The sandbox, the interception server and the agent are real. The script calls the agent's own shell tool,
whatever its name is.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swe_core.api import agent_contract
from swe_core.api.agent import AgentEvent, AgentSpec
from swe_core.api.contracts import opened
from swe_core.api.deltas import cut
from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Usage
from swe_core.api.grader import Graded
from swe_core.api.limits import Budgets, Limits
from swe_core.api.records import Budget, Ledger, Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.api.shell_call import shell_call
from swe_core.api.task import Task
from swe_core.errors import SweError
from swe_core.interception.server import InterceptionServer
from swe_core.rollout.agent_run import AgentRun, run_agent
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor

_PIECE = 16
"""Characters of a streamed piece."""
_WORKDIR = "/testbed"


@dataclass(frozen=True, slots=True)
class Run:
    """A reply that runs a command by the agent's own shell tool, with a text before it."""

    command: str
    text: str = ""


Scripted = str | Run | Completion | Exception | Callable[[ChatRequest], Completion]
"""A reply: a text that calls nothing, a command, any completion, an error, or a function of the request."""


class ScriptedModel(Engine):
    """Answers calls in the order of the script, and later ones with "Done.".

    Auxiliary calls get their purpose as text and use up no reply.

    Attributes:
        asked: The requests, auxiliary ones included.
    """

    model = "policy"

    def __init__(self, *script: Scripted) -> None:
        self._script = iter(script)
        self.asked: list[ChatRequest] = []

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        self.asked.append(request)
        completion = self.reply(request)
        if emit is not None:
            for delta in cut(completion.message, _PIECE):
                await emit(delta)
        return completion

    def reply(self, request: ChatRequest) -> Completion:
        """Return the scripted reply to a request.

        Raises:
            Exception: The script says so.
        """
        if request.auxiliary is not None:
            return text_reply(request.auxiliary)
        scripted = next(self._script, "Done.")
        if isinstance(scripted, Exception):
            raise scripted
        if isinstance(scripted, Completion):
            return scripted
        if isinstance(scripted, Run):
            return shell_reply(request, scripted)
        return text_reply(scripted) if isinstance(scripted, str) else scripted(request)


def text_reply(text: str) -> Completion:
    """Return a reply that calls nothing."""
    return Completion({"role": "assistant", "content": text}, usage=Usage(completion_tokens=1))


def shell_reply(request: ChatRequest, run: Run) -> Completion:
    """Return a reply that runs a command by the tool that the request offers.

    Raises:
        ValueError: The request offers no tool that runs commands.
    """
    found = shell_call(request.tools, run.command)
    if found is None:
        names = [tool["function"]["name"] for tool in request.tools or ()]
        raise ValueError(f"none of the offered tools runs commands: {', '.join(names) or 'there are none'}")
    function = {"name": found[0], "arguments": found[1]}
    call = {"id": f"call_{len(request.messages)}", "type": "function", "function": function}
    message = {"role": "assistant", "content": run.text or None, "tool_calls": [call]}
    return Completion(message, "tool_calls", Usage(completion_tokens=1))


@dataclass(slots=True)
class Trial:
    """What one run of an agent did.

    Args:
        turns: Its LLM calls.
        events: Its transcript.
        log: Its output.
        failure: Why it failed; None if it did not.
        exit_code: The exit code of its process; None if the host ended it.
        ended_by: The budget that ended it.
        ledger: The account of its tokens; None where the engine does not own them.
    """

    turns: list[Turn] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)
    log: str = ""
    failure: SweError | None = None
    exit_code: int | None = None
    ended_by: Budget | None = None
    ledger: Ledger | None = None

    def texts(self, kind: str) -> list[str]:
        """Return the texts of the transcript's events of one kind."""
        return [event.text for event in self.events if event.kind == kind]


class _Observer:
    """Watches nothing."""

    def started(self, request: RolloutRequest) -> None: ...

    def phase(self, rollout_id: str, phase: Phase) -> None: ...

    def turn(self, rollout_id: str, turn: Turn) -> None: ...

    def finished(self, rollout: Rollout) -> None: ...


async def run_trial(
    agent: AgentSpec,
    engine: Engine,
    provider: SandboxProvider,
    *,
    files: Mapping[str, bytes] | None = None,
    problem: str = "Create the file made.txt.",
    budget: Budgets | None = None,
    limits: Limits | None = None,
    image: str | None = None,
    before: Callable[[Sandbox], Awaitable[None]] | None = None,
    after: Callable[[Sandbox], Awaitable[None]] | None = None,
) -> Trial:
    """Run `agent` once in a sandbox whose repository has `files` and one commit.

    Args:
        engine: Answers its calls.
        provider: Opens the sandbox.
        files: Path → content.
        problem: The problem statement.
        image: The sandbox's image, for a provider that needs one.
        before: Called with the sandbox before the agent starts.
        after: Called with the sandbox once the agent has ended.

    Raises:
        SandboxError: The sandbox cannot be opened.
    """
    trial = Trial()
    with tempfile.TemporaryDirectory(prefix="swe-trial-") as scratch:
        repository = _repository(Path(scratch, "repository"), files or {})
        assets = agent_contract.assets(agent)
        spec = SandboxSpec(image=image, repository=repository, workdir=_WORKDIR, assets=assets)
        task = Task(
            instance_id="trial",
            repo="trial",
            base_commit="HEAD",
            problem_statement=problem,
            patch="",
            test_patch="",
            fail_to_pass=("test",),
            pass_to_pass=(),
            test_command="true",
            workdir=_WORKDIR,
        )
        request = RolloutRequest(
            id="trial-0",
            task=task,
            attempt=0,
            agent=agent.name,
            sandbox="trial",
            engine="script",
            model=engine.model,
            spec=spec,
            limits=limits or Limits(agent=120.0, first_call=60.0),
            budget=budget or Budgets(),
        )
        redactor, run = Redactor(), AgentRun()
        records = RunDirectory.create(Path(scratch, "run"), new_run_info({}, {}, 1, []), redactor)
        folder = records.folder(request.id)
        async with engine, InterceptionServer(redactor=redactor) as server, opened(provider, spec) as sandbox:
            context = RunContext(agent, provider, _Ungraded(), (server, engine), None, redactor)
            if before is not None:
                await before(sandbox)
            try:
                await run_agent(request, context, sandbox, folder, _Observer(), run)
            except SweError as error:
                trial.failure = error
            if after is not None:
                await after(sandbox)
        folder.close()
        trial.exit_code = run.exit_code
        if run.gate is not None:
            trial.ended_by, trial.ledger = run.gate.ended_by, run.gate.ledger()
        trial.turns, trial.events = records.turns(request.id), records.events(request.id)
        log = folder.path / "agent.log"
        trial.log = log.read_text(errors="replace") if log.exists() else ""
    return trial


def _repository(path: Path, files: Mapping[str, bytes]) -> Path:
    """Make a git repository with one commit."""
    for name, content in {"README.md": b"A repository.\n", **files}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "start"]):
        subprocess.run(["git", "-C", str(path), *command], check=True)
    return path


class _Ungraded:
    """A grader that is never asked."""

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        raise NotImplementedError("a trial is not graded")
