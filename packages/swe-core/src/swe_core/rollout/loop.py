"""THE loop: one rollout, top to bottom.

    open a sandbox → prepare it (cut its history, record the base) → run the agent and answer its calls
    → export the patch → close the sandbox → grade the patch in a fresh sandbox

A bad rollout is data: the loop classifies each failure by the boundary that it crossed, and records it. After
a failure of the sandbox it tries again, if the request allows that; with the patch on disk, only the grading.
Only cancellation leaves the loop as an exception, after the rollout is recorded as cancelled.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime

import anyio

from swe_core.api.blame import is_policys
from swe_core.api.contracts import grade_patch
from swe_core.api.grader import Grade
from swe_core.api.records import Outcome
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import GraderError, SandboxBroken, SandboxError, boundary_of, raised_as, sentence
from swe_core.rollout.agent_run import run_agent
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import RolloutFolder
from swe_core.rollout.state import RolloutState
from swe_core.rollout.task_environment import opens_too_slowly
from swe_core.sandboxing.repository.patch import PatchUnavailable, export_change
from swe_core.sandboxing.repository.prepare import prepare_repository
from swe_core.system.detached import is_stray_cancellation

logger = logging.getLogger(__name__)


async def run_rollout(
    request: RolloutRequest,
    context: RunContext,
    folder: RolloutFolder,
    observer: Observer,
    done: Callable[[FinishedRollout], object],
    cancelled_as: Callable[[], str | None],
) -> None:
    """Run one rollout and call `done` with it exactly once, however it ends.

    Args:
        cancelled_as: Returns the worker's reason for a cancellation, None without one.

    Raises:
        OSError: The folder cannot be written, so the record would be incomplete.

    Apart from that, only the cancellation of its own task leaves it.
    """
    state = RolloutState(request, observer, context.redactor, context.provider)
    started_at, started = datetime.now(UTC), time.monotonic()
    observer.started(request)
    outcome: Outcome = "cancelled"
    try:
        ended = await _try(request, context, folder, state)
        while state.failure is not None and state.may_try_again:
            given_up = state.give_up_try(state.failure)
            what = "it" if given_up.folder else "its grading"
            logger.warning("%s: %s; %s is run again", request.id, given_up.failure.message, what)
            if given_up.folder is not None:
                folder.archive_attempt(given_up.folder)
            ended = await _try(request, context, folder, state)
        outcome = ended
    finally:
        folder.close()
        state.cancelled_as = cancelled_as()
        record = state.record(outcome, started_at, time.monotonic() - started)
        done(FinishedRollout(record, state.chains if record.reward is not None else ()))
        for gate in state.gates:  # only now: files written until here may contain their tokens
            context.redactor.discard(gate.token)


async def _try(
    request: RolloutRequest, context: RunContext, folder: RolloutFolder, state: RolloutState
) -> Outcome:
    """Take the rollout from its current state to an outcome."""
    try:
        if not state.collected:
            await _collect_patch(request, context, folder, state)
        if state.no_patch:  # the policy caused it, so it is a verdict and not an error
            grade = Grade(resolved=False, reason=context.redactor.text(state.no_patch))
        else:
            grade = await _grade(request, context, folder, state)
        folder.put("grade.json", grade.model_dump_json(indent=2).encode() + b"\n")
        state.grade = grade
    except Exception as error:  # the boundary that records: a bad rollout is data
        if folder.failure is not None:  # such as a full disk: not the rollout's fault, so it can run again
            raise folder.failure from error
        state.fail(error, state.boundary)
        return "error"
    except anyio.get_cancelled_exc_class():
        if not is_stray_cancellation():
            raise
        state.fail(RuntimeError("it ended as cancelled although no one cancelled it"), state.boundary)
        return "error"
    return "resolved" if grade.resolved else "unresolved"


async def _collect_patch(
    request: RolloutRequest, context: RunContext, folder: RolloutFolder, state: RolloutState
) -> None:
    """Run the agent in a sandbox of its own and export its patch; the sandbox is closed on return.

    `swe_core.api.blame` decides whether a failure is the policy's, which ends in a verdict.
    """
    limits = request.limits
    agent_failure: Exception | None = None
    with anyio.CancelScope() as opening:
        async with AsyncExitStack() as stack:
            with state.phase("open"):
                environment = await context.environments.of(
                    request.task, state.opens["agent"], request.spec, limits
                )
                opening.deadline = anyio.current_time() + limits.open
                sandbox = await stack.enter_async_context(state.opens["agent"].open(request.spec))
            opening.deadline = math.inf  # bounds only the opening, although the scope encloses the rest
            with state.phase("prepare"), _budget("prepare", limits.prepare, SandboxError):
                base = await prepare_repository(sandbox, request.task, hide=True)
            with state.phase("agent"):
                try:
                    await run_agent(
                        request, context, sandbox, folder, state.observer, state.agent, environment
                    )
                except Exception as error:  # raised once the agent's work is saved
                    state.boundary = boundary_of(error, "agent")
                    agent_failure = error
            answered, boundary = state.agent.answered, state.boundary
            if (
                agent_failure is not None
                and folder.failure is None
                and is_policys(agent_failure, "agent", answered=answered)
            ):
                state.agent_failure, agent_failure = sentence(agent_failure), None
            try:
                with state.phase("export"):
                    with raised_as(SandboxError):  # no process of the agent may change files from here on
                        await sandbox.kill_all()
                    change = await export_change(sandbox, base, timeout=limits.prepare)
                    state.patch, state.notes = change.patch, change.notes
                folder.put_patch(state.patch)
                state.collected = agent_failure is None
            except Exception as error:  # the first failure of a rollout counts
                if agent_failure is None:
                    inside = isinstance(error, PatchUnavailable | SandboxBroken)
                    if not (inside or is_policys(error, "sandbox", answered=answered)):
                        raise
                    state.no_patch, state.collected = sentence(error), True
            if agent_failure is not None:
                state.boundary = boundary
                raise agent_failure
            state.boundary = "sandbox"  # closing it may fail
    if opening.cancelled_caught:
        raise opens_too_slowly(limits.open)


async def _grade(
    request: RolloutRequest, context: RunContext, folder: RolloutFolder, state: RolloutState
) -> Grade:
    limits = request.limits
    spec = request.spec.for_grading()
    with state.phase("grade"), _budget("grade", limits.verdict, GraderError):
        graded = await grade_patch(
            context.grader, request.task, state.patch, state.opens["grade"], spec, limits.grade
        )
    folder.put("test.log", graded.log)
    return graded.grade


@contextmanager
def _budget(name: str, seconds: float, kind: type[Exception]) -> Iterator[None]:
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise kind(f"the phase {name!r} did not end within its budget of {seconds:g} s (limits.{name})")
