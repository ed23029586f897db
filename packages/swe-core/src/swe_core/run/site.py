"""Open what the rollouts of a plan share: the engine, and the site with sandboxes, server and grader."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import anyio.to_thread

from swe_core.api import agent_contract, contracts
from swe_core.api.engine import Engine
from swe_core.api.grader import Grader
from swe_core.api.limits import Budgets
from swe_core.api.sandbox import SandboxProvider
from swe_core.errors import ConfigError
from swe_core.interception.server import InterceptionServer
from swe_core.plugins.manager import PluginSet
from swe_core.plugins.plugin_observer import TurnHooks
from swe_core.rollout.recording import RecordingEngine
from swe_core.rollout.run_context import BlackBox, RunContext
from swe_core.rollout.site import LocalSite
from swe_core.run.components import ResolvedComponent
from swe_core.run.plan import BlackBoxPlan, Plan, check_sandbox_supported
from swe_core.system.plural import counted
from swe_core.system.redaction import Redactor

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_engine(plan: Plan, redactor: Redactor) -> AsyncIterator[Engine | None]:
    """Open the engine of `plan`; None if the host answers no LLM calls.

    Raises:
        SweError: The engine cannot be opened, or cannot keep a budget.
    """
    if not isinstance(plan.model_side, ResolvedComponent):
        yield None
        return
    engine = cast(Engine, plan.model_side.create())
    if plan.settings.budget.context is not None and not engine.limits_context:
        raise ConfigError(
            f"the engine {plan.model_side.name!r} does not count prompt tokens before it generates and "
            "cannot keep budget.context: leave budget.context out, or choose --engine vllm"
        )
    if plan.settings.run.record is not None:
        engine = RecordingEngine(engine, plan.settings.run.record, redactor)
    async with engine:
        yield engine


@asynccontextmanager
async def open_site(
    plan: Plan, plugins: PluginSet, engine: Engine | None, folders: Path, redactor: Redactor
) -> AsyncIterator[LocalSite]:
    """Open all that the rollouts of `plan` share in this process, and yield what runs them.

    Sandboxes of runs that have ended are removed first.

    Args:
        engine: The open engine of the plan, which was checked.
        folders: The directory of the rollouts' folders.

    Raises:
        SweError: A part of it cannot be opened.
    """
    provider = cast(SandboxProvider, plan.sandbox.create())
    grader = cast(Grader, plan.grader.create())
    reaped = await contracts.reap(provider)
    if reaped:
        logger.warning("removed %s of runs that have ended", counted(reaped, "sandbox", "sandboxes"))
    check_sandbox_supported(provider, plan.settings)  # again: `reap` may have probed the service
    black_box = None
    async with AsyncExitStack() as stack:
        gate = None
        if isinstance(plan.model_side, BlackBoxPlan):
            key = plan.model_side.key.get_secret_value()
            redactor.add(key)
            black_box = BlackBox(plan.model_side.url, key)
        elif engine is not None:
            settings = plan.settings.server
            server = InterceptionServer(port=settings.port, max_body=settings.max_body, redactor=redactor)
            await stack.enter_async_context(server)
            redactor.add(server.token)
            gate = server, engine
        # The first call may build a bundle, which blocks.
        assets = await anyio.to_thread.run_sync(agent_contract.assets, plan.agent)
        notes = [*contracts.notes_of(provider), *_model_notes(engine, black_box, plan.settings.budget)]
        context = RunContext(plan.agent, provider, grader, gate, black_box, redactor)
        yield LocalSite(context, folders, assets, notes, [TurnHooks(plugins)])


def _model_notes(engine: Engine | None, black_box: BlackBox | None, budget: Budgets) -> Sequence[str]:
    if black_box is not None:
        return (
            "Black-box mode: the agent calls the provider with a key of its own, its sandbox reaches every "
            "address, and no LLM call is recorded.",
        )
    if engine is None:
        return ()
    asked = budget.context
    if asked is None or engine.context is None or asked <= engine.context:
        return ()
    return (
        f"budget.context is {asked}, but the model {engine.model!r} has a context of {engine.context} "
        "tokens, which is the limit: lower budget.context, or serve the model with a longer context",
    )
