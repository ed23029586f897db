"""Make a plan from settings and plugins: components, their settings, and tasks."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import SecretStr

from swe_core.api.agent import AgentSpec
from swe_core.api.limits import Limits
from swe_core.api.sandbox import SandboxProvider, SandboxSpec, SelectiveProvider
from swe_core.api.task import Task, TaskSource
from swe_core.errors import ConfigError, PolicyRefused, sentence
from swe_core.plugins.builtins import DEFAULTS, KNOWN_DISTRIBUTIONS, RECORDED_ENGINE, REMOVED
from swe_core.plugins.manager import HOOKS, PluginSet
from swe_core.run.components import ResolvedComponent, default_component, resolve_component
from swe_core.run.settings import Settings
from swe_core.run.task_selection import selection
from swe_core.system.urls import base_url


@dataclass(frozen=True, slots=True)
class BlackBoxPlan:
    """Black-box mode: the provider's URL and model, and the key for the agent."""

    url: str
    model: str
    key: SecretStr


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is ready to start: every choice is made and checked, nothing is open."""

    settings: Settings
    tasks: Sequence[Task]
    agent: AgentSpec
    sandbox: ResolvedComponent
    grader: ResolvedComponent
    worker: ResolvedComponent
    executor: ResolvedComponent
    model_side: ResolvedComponent | BlackBoxPlan | None
    """The engine behind the interception server, or black-box mode; None for an agent without LLM calls."""


def plan_run(settings: Settings, plugins: PluginSet, *, read_tasks: bool = True) -> Plan:
    """Choose the components and read the tasks.

    Args:
        read_tasks: Whether to read the tasks. A node gets each task with its rollout.

    Raises:
        UsageError: A choice, a setting or a task row is wrong, or the provider would refuse every sandbox.
    """
    refuse_unknown_tables(settings, plugins)
    run = settings.run
    if run.agent_key_env is not None and run.mode != "black-box":
        raise ConfigError(
            "--agent-key-env is for --mode black-box, where the agent calls the provider itself: leave it "
            "out, or add --mode black-box --network full"
        )
    if run.record and run.recording and run.record.resolve() == run.recording.resolve():
        raise ConfigError("--record and --recording name the same file: record into another one")
    wanted = selection(settings, plugins)
    if run.tasks is None:  # the run directory names the source, so that a resumed run has the same
        settings = settings.model_copy(update={"run": run.model_copy(update={"tasks": wanted.name})})
    worker = resolve_component(settings, plugins, "worker", run.worker)
    agent = cast(
        AgentSpec,
        resolve_component(
            settings, plugins, "agent", run.agent, default=default_component("agent", worker)
        ).create(),
    )
    model_side: ResolvedComponent | BlackBoxPlan | None = None
    if agent.dialect is not None:
        black_box = run.mode == "black-box"
        preferred = worker.registered.component.defaults.get("engine")
        model_side = (
            _black_box(settings, plugins)
            if black_box
            else engine_of(settings, plugins, wanted.source, preferred)
        )
        if isinstance(model_side, ResolvedComponent):
            settings = with_filled_in(settings, model_side)
    sandbox = resolve_component(
        settings, plugins, "sandbox", run.sandbox, default=default_component("sandbox", worker)
    )
    check_sandbox_supported(cast(SandboxProvider, sandbox.create()), settings)
    return Plan(
        settings=settings,
        tasks=wanted.tasks() if read_tasks else (),
        agent=agent,
        sandbox=sandbox,
        grader=grader_of(settings, plugins),
        worker=worker,
        executor=executor_of(settings, plugins, default_component("executor", worker)),
        model_side=model_side,
    )


def grader_of(settings: Settings, plugins: PluginSet) -> ResolvedComponent:
    """Return the grader of a run, whose default and preset settings come from its worker.

    Raises:
        UsageError: The grader or a setting is wrong.
    """
    worker = resolve_component(settings, plugins, "worker", settings.run.worker).registered.component
    default, preset = worker.defaults.get("grader"), worker.settings.get("grader")
    return resolve_component(settings, plugins, "grader", settings.run.grader, default=default, preset=preset)


def executor_of(settings: Settings, plugins: PluginSet, default: str) -> ResolvedComponent:
    """Return the executor of a run.

    Raises:
        UsageError: The executor or a setting is wrong.
    """
    run = settings.run
    shared = {"workers": ("--workers", run.workers), "address": ("--address", run.address)}
    return resolve_component(settings, plugins, "executor", run.executor, shared, default)


def sandbox_spec(task: Task, settings: Settings) -> SandboxSpec:
    """Return the spec of a rollout's sandbox, without the agent's assets, which are built later."""
    resources = settings.resources.model_dump()
    return SandboxSpec(image=task.image, repository=task.repository, workdir=task.workdir, **resources)


_LEAST_GRADE, _TIMES_GOLD = 60.0, 5.0


def limits_of(settings: Settings) -> Callable[[Task], Limits]:
    """Return a function from a task to its time limits.

    Where the `--verified` report has the duration of the tests with the gold patch, a test run may take five
    times as long, and at least a minute. A patch whose tests hang then does not use up `limits.grade`.

    Raises:
        UsageError: The report cannot be read.
    """
    from swe_core.run.verified_tasks import gold_seconds

    limits = settings.limits
    known = {} if settings.run.verified is None else gold_seconds(settings.run.verified)

    def of(task: Task) -> Limits:
        if task.instance_id not in known:
            return limits
        enough = max(_LEAST_GRADE, _TIMES_GOLD * known[task.instance_id])
        return limits.model_copy(update={"grade": min(limits.grade, enough)})

    return of


def check_sandbox_supported(provider: SandboxProvider, settings: Settings, *, agents: bool = True) -> None:
    """Ask a `SelectiveProvider` whether it can open the sandboxes of a run.

    Args:
        agents: Whether agents run. Tests alone have no network.

    Raises:
        ConfigError: The provider refuses what the settings ask for.
    """
    if not isinstance(provider, SelectiveProvider):
        return
    asked = SandboxSpec(**settings.resources.model_dump())
    for who, spec in (
        *([("agents", asked)] if agents else []),
        ("tests", asked.for_grading()),
    ):
        try:
            provider.check_supported(spec)
        except PolicyRefused as error:
            raise ConfigError(f"no sandbox for the {who}: {sentence(error)}") from error


def engine_of(
    settings: Settings, plugins: PluginSet, source: TaskSource, preferred: str | None
) -> ResolvedComponent:
    """Return the engine of a run.

    Args:
        source: The tasks, whose recording is the default where neither URL nor model is given.
        preferred: The default of the run's worker.

    Raises:
        UsageError: The engine or a setting is wrong.
    """
    run = settings.run
    recording = run.recording
    default = preferred or DEFAULTS["engine"]
    recorded = recording or (source.recording if run.model is None else None)
    if preferred is None and run.engine_url is None and recorded:
        default = RECORDED_ENGINE
    registered = plugins.choose("engine", run.engine, default)
    if registered is not None and registered.name == RECORDED_ENGINE and recording is None:
        own = settings.engine.get(RECORDED_ENGINE, {})
        recording = None if "file" in own else source.recording
        if recording is None and "file" not in own:
            raise ConfigError(
                f"the engine {RECORDED_ENGINE!r} needs a recording and these tasks have none: "
                "pass --recording FILE"
            )
    shared = {
        "url": ("--engine-url", run.engine_url),
        "model": ("--model", run.model),
        "file": ("--recording", recording),
    }
    return resolve_component(settings, plugins, "engine", run.engine, shared, default)


def with_filled_in(settings: Settings, engine: ResolvedComponent) -> Settings:
    """Return `settings` with what the engine filled in, such as a URL from the environment.

    A run records them, so that it resumes with the same endpoint wherever it is resumed.
    """
    filled = {name: getattr(engine.config, name) for name in engine.config.filled_in()}
    options = {"url": "engine_url", "model": "model"}
    run = {option: filled.pop(name) for name, option in options.items() if name in filled}
    table = {**settings.engine.get(engine.name, {}), **filled}
    return settings.model_copy(
        update={
            "run": settings.run.model_copy(update=run),
            "engine": {**settings.engine, engine.name: table} if filled else settings.engine,
        }
    )


def _black_box(settings: Settings, plugins: PluginSet) -> BlackBoxPlan:
    run = settings.run
    if settings.resources.network != "full":
        raise ConfigError(
            "--mode black-box needs --network full: the agent calls the provider from its sandbox, "
            "which can then reach every address"
        )
    if not run.engine_url or not run.model or not run.agent_key_env:
        raise ConfigError(
            "--mode black-box needs --engine-url URL, --model NAME and --agent-key-env VARIABLE, "
            "the environment variable with the agent's key"
        )
    if run.record or run.recording or run.engine or plugins.selected("engine"):
        raise ConfigError(
            "--mode black-box has no engine, because the host does not see the agent's LLM calls: "
            "leave out --engine, --record, --recording and plugins with an engine"
        )
    kept = settings.budget.model_dump(exclude={"grace"}, exclude_none=True)
    if kept:
        raise ConfigError(
            f"--mode black-box cannot keep budget.{next(iter(kept))}, because the host sees no LLM calls: "
            "leave it out; limits.agent limits the agent's time"
        )
    key = os.environ.get(run.agent_key_env)
    if not key:
        raise ConfigError(f"--agent-key-env: the variable {run.agent_key_env!r} is unset or empty: set it")
    return BlackBoxPlan(base_url(run.engine_url), run.model, SecretStr(key))


def refuse_unknown_tables(settings: Settings, plugins: PluginSet) -> None:
    """Refuse tables of unknown components, such as `[sandbox.dokcer]`, except those of unloaded plugins.

    Raises:
        ConfigError: There is one.
    """
    for role in HOOKS:
        offered = {registered.name for registered in plugins.components(role)}
        for name in getattr(settings, role):
            if name in offered or name in KNOWN_DISTRIBUTIONS:
                continue
            if name in REMOVED:
                raise ConfigError(f"the {role} {name!r} no longer exists: {REMOVED[name]}")
            close = difflib.get_close_matches(name, sorted(offered), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(offered))}"
            raise ConfigError(f"settings for an unknown {role} {name!r}; {hint}")
