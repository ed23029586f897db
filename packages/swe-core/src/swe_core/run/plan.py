"""From settings and plugins to a plan: which components, with which settings, on which tasks."""

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
from swe_core.plugins.builtins import DEFAULTS, KNOWN_DISTRIBUTIONS, RECORDED_ENGINE
from swe_core.plugins.manager import HOOKS, PluginSet
from swe_core.run.components import ResolvedComponent, default_component, resolve_component
from swe_core.run.settings import Settings
from swe_core.run.task_selection import selection
from swe_core.system.urls import base_url


@dataclass(frozen=True, slots=True)
class BlackBoxPlan:
    """Black-box mode: the provider's URL and model, and the key that the user hands to the agent."""

    url: str
    model: str
    key: SecretStr


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that can start: every choice made and checked, nothing opened yet."""

    settings: Settings
    tasks: Sequence[Task]
    agent: AgentSpec
    sandbox: ResolvedComponent
    grader: ResolvedComponent
    worker: ResolvedComponent
    model_side: ResolvedComponent | BlackBoxPlan | None
    """The engine behind the gate, or black-box mode; None for an agent that makes no LLM calls."""


def plan_run(settings: Settings, plugins: PluginSet) -> Plan:
    """Choose the components and read the tasks.

    Raises:
        UsageError: A choice, a setting or a task row is wrong, or the sandboxes would all be refused.
    """
    _refuse_unknown_tables(settings, plugins)
    run = settings.run
    wanted = selection(settings, plugins)
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
            _black_box(settings) if black_box else _engine(settings, plugins, wanted.source, preferred)
        )
    sandbox = resolve_component(
        settings, plugins, "sandbox", run.sandbox, default=default_component("sandbox", worker)
    )
    check_sandbox_supported(cast(SandboxProvider, sandbox.create()), settings)
    return Plan(
        settings=settings,
        tasks=wanted.tasks(),
        agent=agent,
        sandbox=sandbox,
        grader=grader_of(settings, plugins),
        worker=worker,
        model_side=model_side,
    )


def grader_of(settings: Settings, plugins: PluginSet) -> ResolvedComponent:
    """The grader of a run with these settings, which its worker may have a word on.

    Raises:
        UsageError: The choice or a setting is wrong.
    """
    worker = resolve_component(settings, plugins, "worker", settings.run.worker).registered.component
    default, preset = worker.defaults.get("grader"), worker.settings.get("grader")
    return resolve_component(settings, plugins, "grader", settings.run.grader, default=default, preset=preset)


def sandbox_spec(task: Task, settings: Settings) -> SandboxSpec:
    """What a rollout of `task` asks of the provider, without the agent's assets: they are not built yet."""
    resources = settings.resources.model_dump()
    return SandboxSpec(image=task.image, repository=task.repository, workdir=task.workdir, **resources)


_LEAST_GRADE, _TIMES_GOLD = 60.0, 5.0


def limits_of(settings: Settings) -> Callable[[Task], Limits]:
    """The time budgets of a task. Where `--verified` knows how long the tests take with the gold patch, a
    test run may take five times as long, and a minute at least: a patch whose tests hang should not hold its
    place for all of `limits.grade`.

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
    """Refuse sandboxes once that every rollout would find refused; see `SelectiveProvider`.

    Args:
        agents: Whether agents run, too, and not only tests, which have no network.

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


def _engine(
    settings: Settings, plugins: PluginSet, source: TaskSource, preferred: str | None
) -> ResolvedComponent:
    run = settings.run
    recording = run.recording
    default = preferred or DEFAULTS["engine"]
    if preferred is None and run.engine_url is None and (recording or source.recording):
        default = RECORDED_ENGINE
    registered = plugins.choose("engine", run.engine, default)
    if registered is not None and registered.name == RECORDED_ENGINE and recording is None:
        own = settings.engine.get(RECORDED_ENGINE, {})
        recording = None if "file" in own else source.recording
        if recording is None and "file" not in own:
            raise ConfigError(
                f"the engine {RECORDED_ENGINE!r} needs a recording and these tasks bring none: "
                "pass --recording FILE"
            )
    shared = {
        "url": ("--engine-url", run.engine_url),
        "model": ("--model", run.model),
        "file": ("--recording", recording),
    }
    return resolve_component(settings, plugins, "engine", run.engine, shared, default)


def _black_box(settings: Settings) -> BlackBoxPlan:
    run = settings.run
    if settings.resources.network != "full":
        raise ConfigError(
            "--mode black-box needs --network full: the agent calls the provider itself, from inside its "
            "sandbox, and then reaches everything else too"
        )
    if not run.engine_url or not run.model or not run.agent_key_env:
        raise ConfigError(
            "--mode black-box needs --engine-url URL, --model NAME and --agent-key-env VARIABLE, "
            "the variable whose key is handed to the agent"
        )
    if run.record or run.recording or run.engine:
        raise ConfigError(
            "--mode black-box has no engine: leave out --engine, --record and --recording, "
            "the host does not see the agent's calls"
        )
    kept = settings.budget.model_dump(exclude={"grace"}, exclude_none=True)
    if kept:
        raise ConfigError(
            f"--mode black-box cannot keep budget.{next(iter(kept))}: the host sees no calls; "
            "leave it out, limits.agent bounds the agent's time"
        )
    key = os.environ.get(run.agent_key_env)
    if not key:
        raise ConfigError(f"--agent-key-env: the variable {run.agent_key_env!r} is not set or empty")
    return BlackBoxPlan(base_url(run.engine_url), run.model, SecretStr(key))


def _refuse_unknown_tables(settings: Settings, plugins: PluginSet) -> None:
    """A mistyped `[sandbox.dokcer]` would be ignored in silence. Plugins that are not loaded may be named."""
    for role in HOOKS:
        offered = {registered.name for registered in plugins.components(role)}
        for name in getattr(settings, role):
            if name in offered or name in KNOWN_DISTRIBUTIONS:
                continue
            close = difflib.get_close_matches(name, sorted(offered), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(offered))}"
            raise ConfigError(f"settings for an unknown {role} {name!r}; {hint}")
