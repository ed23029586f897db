"""THE loop: one rollout, top to bottom.

    open a sandbox → prepare it (cut its history, record the base) → run the agent, its calls answered here
    → export the patch → close the sandbox → grade the patch in a fresh one

A bad rollout is data: whatever fails is classified by the boundary it crossed and becomes the record. Where
that was the sandbox, and it was asked for, it is run again; where the patch is safe already, its grading is.
Only cancellation leaves the loop as an exception, after the rollout was recorded as cancelled.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime

import anyio

from swe_core.api.grader import Grade, Graded
from swe_core.api.records import Outcome
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import GraderError, SandboxBroken, SandboxError, boundary_of, raised_as, sentence
from swe_core.rollout.agent_run import run_agent
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import RolloutFolder
from swe_core.rollout.state import RolloutState
from swe_core.sandboxing.repository.patch import PatchUnavailable, export_patch
from swe_core.sandboxing.repository.prepare import prepare_repository
from swe_core.system.detached import nobody_cancelled

logger = logging.getLogger(__name__)


async def run_rollout(
    request: RolloutRequest,
    parts: RunContext,
    folder: RolloutFolder,
    observer: Observer,
    done: Callable[[FinishedRollout], None],
    cancelled_as: Callable[[], str | None],
) -> None:
    """Run one rollout and hand its record to `done`, exactly once, whatever happens.

    Args:
        cancelled_as: Asked when it was cancelled: the worker's reason, None where it had none.

    Raises:
        OSError: Its folder cannot be written, so that its record would not be whole.

    Besides it raises nothing but the cancellation of the task it runs in.
    """
    notes = RolloutState(request, observer, parts.redactor, parts.provider)
    started_at, started = datetime.now(UTC), time.monotonic()
    observer.started(request)
    outcome: Outcome = "cancelled"
    try:
        ended = await _try(request, parts, folder, notes)
        while notes.failure is not None and notes.may_try_again:
            given_up = notes.give_up_try(notes.failure)
            what = "it" if given_up.folder else "its grading"
            logger.warning("%s: %s; %s is run again", request.id, given_up.failure.message, what)
            if given_up.folder is not None:
                folder.archive_attempt(given_up.folder)
            ended = await _try(request, parts, folder, notes)
        outcome = ended
    finally:
        folder.close()
        notes.cancelled_as = cancelled_as()
        record = notes.record(outcome, started_at, time.monotonic() - started)
        done(FinishedRollout(record, notes.chains if record.reward is not None else ()))
        for gate in notes.gates:  # only now: until here their tokens may be in what is written
            parts.redactor.discard(gate.token)


async def _try(
    request: RolloutRequest, parts: RunContext, folder: RolloutFolder, notes: RolloutState
) -> Outcome:
    """From wherever the rollout is to its outcome."""
    try:
        try:
            if not notes.collected:
                await _collect_patch(request, parts, folder, notes)
            grade = await _grade(request, parts, folder, notes)
        except PatchUnavailable as error:  # the policy's own deed, so a verdict and not an error
            grade = Grade(resolved=False, reason=sentence(error))
        folder.put("grade.json", grade.model_dump_json(indent=2).encode() + b"\n")
        notes.grade = grade
    except Exception as error:  # the boundary that records: a bad rollout is data
        if folder.failure is not None:  # say, a full disk: no fault of the rollout, and it can be run again
            raise folder.failure from error
        notes.fail(error, notes.boundary)
        return "error"
    except anyio.get_cancelled_exc_class():
        if not nobody_cancelled():
            raise
        notes.fail(RuntimeError("it ended as if it had been cancelled, which nobody did"), notes.boundary)
        return "error"
    return "resolved" if grade.resolved else "unresolved"


async def _collect_patch(
    request: RolloutRequest, parts: RunContext, folder: RolloutFolder, notes: RolloutState
) -> None:
    """From opening the agent's sandbox to the exported patch; the sandbox is closed on return."""
    limits = request.limits
    agent_failure: Exception | None = None
    with anyio.CancelScope(deadline=anyio.current_time() + limits.open) as opening:
        async with AsyncExitStack() as stack:
            with notes.phase("open"):
                sandbox = await stack.enter_async_context(notes.opens["agent"].open(request.spec))
            opening.deadline = math.inf  # only opening is bounded by this scope, which must outlive it
            with notes.phase("prepare"), _budget("prepare", limits.prepare, SandboxError):
                base = await prepare_repository(sandbox, request.task, hide=True)
            with notes.phase("agent"):
                try:
                    await run_agent(request, parts, sandbox, folder, notes.observer, notes.agent)
                except Exception as error:  # kept until what the agent did is saved
                    agent_failure = error
                    notes.boundary = boundary_of(error, "agent")
            boundary = notes.boundary
            try:
                with notes.phase("export"):
                    with raised_as(SandboxError):  # nothing that the agent left behind changes files after it
                        await sandbox.kill_all()
                    notes.patch = await export_patch(sandbox, base, timeout=limits.prepare)
                folder.put_patch(notes.patch)
                notes.collected = agent_failure is None
            except SandboxBroken as error:
                if agent_failure is None:
                    raise PatchUnavailable(sentence(error)) from None
            except Exception:  # of a rollout that failed already, the first failure counts
                if agent_failure is None:
                    raise
            if agent_failure is not None:
                notes.boundary = boundary
                raise agent_failure
            notes.boundary = "sandbox"  # which is closed now
    if opening.cancelled_caught:
        raise SandboxError(f"the sandbox did not open within its budget of {limits.open:g} s (limits.open)")


async def _grade(
    request: RolloutRequest, parts: RunContext, folder: RolloutFolder, notes: RolloutState
) -> Grade:
    limits = request.limits
    spec = request.spec.for_grading()
    with notes.phase("grade"), _budget("grade", limits.verdict, GraderError):
        graded = await parts.grader.grade(request.task, notes.patch, notes.opens["grade"], spec, limits.grade)
    if not isinstance(graded, Graded):
        raise GraderError(f"the grader returned {graded!r} instead of Graded")
    folder.put("test.log", graded.log)
    return graded.grade


@contextmanager
def _budget(name: str, seconds: float, kind: type[Exception]) -> Iterator[None]:
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise kind(f"the work of limits.{name} did not end within its budget of {seconds:g} s")
