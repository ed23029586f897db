"""The grader "swe": what it opens, in which order, and what it asks the reference for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from swe_core.api.blame import is_unclear
from swe_core.api.grader import Grade, Graded, Hashes
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.builtin.swe.graded_tree import (
    GradedTree,
    PatchDoesNotApply,
    References,
    changed_files,
    prepare_tree,
)
from swe_core.builtin.swe.run_tests import TestRun, run_tests
from swe_core.builtin.swe.verdict import PASSED, Discrepancy, TestOutcome, read
from swe_core.errors import GraderError, SandboxError, sentence
from swe_core.sandboxing.repository.patch import as_patch, check_alive
from swe_core.sandboxing.repository.prepare import prepare_repository

GIT_TIMEOUT = 300.0
"""Seconds for each of git's two parts: preparing the fresh repository, and writing the graded state."""
HASH_TIMEOUT = 300.0
"""Seconds for comparing the task's own files after a run, which code under test may want to last."""


@dataclass(frozen=True, slots=True)
class _Tested:
    """One patch in one sandbox."""

    tree: GradedTree
    unchecked: str  # as in `Base`
    image_id: str | None
    done: tuple[TestRun, TestOutcome] | None  # None where the tree is the base: no test needs to run


@dataclass(slots=True)
class _Progress:
    """How far a run has come.

    Attributes:
        image_id: `Sandbox.image_id` of its sandbox, once that is open.
        has_patch: Whether its sandbox has the patch, so that the patch may be the cause of a failure.
    """

    image_id: str | None = None
    has_patch: bool = False


class _PatchFailed(Exception):
    """The patch is the cause of a failure of its grading sandbox. The message is for the grade."""


@dataclass(slots=True)
class _ReferenceRun:
    """What a run of a task's reference said, asked for once."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    reading: TestOutcome | None = None
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _BaseRun:
    """The FAIL_TO_PASS tests that do not pass at the base of a task; None until a run of it has ended."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    failing: frozenset[str] | None = None
    tries: int = 0


class SweGrader:
    """Grades by the task's own tests, each time in a fresh sandbox.

    Args:
        log_bytes: How much of a test log is kept and parsed.
        refuses: Whether a patch that adds something suspicious is unresolved.
        pays_parts: Whether a patch that fixes some FAIL_TO_PASS tests, and breaks nothing, earns their share.
    """

    def __init__(self, log_bytes: int, *, refuses: bool = False, pays_parts: bool = False) -> None:
        self._log_bytes = log_bytes
        self._refuses = refuses
        self._pays_parts = pays_parts
        self._references = References()
        self._reference_runs: dict[tuple[str, str | None], _ReferenceRun] = {}
        self._base_runs: dict[tuple[str, str | None], _BaseRun] = {}

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        """Grade `patch`; see `Grader.grade` and docs/internals/grading.md."""
        if spec != spec.for_grading():
            raise GraderError(
                "the sandbox of a grader has no network and no assets: open it from SandboxSpec.for_grading()"
            )
        hashes = Hashes(task=task.digest, patch=hashlib.sha256(patch).hexdigest())
        if not patch.strip():
            return _unresolved("the patch is empty: the agent changed nothing", hashes)
        try:
            tested = await self._test_patch(task, patch, provider, spec, timeout)
        except (PatchDoesNotApply, _PatchFailed) as error:
            return _unresolved(str(error), hashes)
        tree = tested.tree
        if tested.done is None:
            hashes = hashes.model_copy(update={"tests": tree.tests, "tree": tree.id})
            reason = "what is left of the patch once the task's own files are put back changes nothing"
            grade = Grade(
                resolved=False,
                reason=reason,
                applied_with=tree.applied_with,
                tampering=tree.tampering,
                unchecked=tested.unchecked,
                notes=tree.notes,
                hashes=hashes,
                image_id=tested.image_id,
            )
            return Graded(grade=grade)
        run, reading = tested.done
        discrepancies: list[Discrepancy] = []
        reward = 0.0
        if run.exit_code is None:
            reasons = [f"the tests did not end within {timeout:g} s and were killed"]
        else:
            asked = (
                reading.silent
                or self._may_earn(reading)
                or any(discrepancy.forged for discrepancy in reading.discrepancies)
            )
            if reading.discrepancies and asked:
                own = reading if is_gold(task, patch) else None
                reference = await self._reference(task, tested.image_id, provider, spec, timeout, own)
                discrepancies = reading.beyond(reference)
            reasons = [*reading.problems, *(discrepancy.sentence for discrepancy in discrepancies)]
            if reading.problems and tree.absent:
                reasons.insert(1, f"ids name files that the task does not have, such as {tree.absent[0]!r}")
            if reading.silent:
                reasons = [
                    f"the tests gave no results with this patch (exit code {run.exit_code}): {run.last_line}"
                ]
        refused = self._refuses and bool(tree.suspicious)
        if refused and not reasons:
            one = tree.suspicious[0]
            reasons = [
                f"the patch adds {one.name} ({one.kind}) at line {one.line} of {one.path}: "
                "grader.swe.suspicious = mark counts such patches"
            ]
        if not reasons:
            reward = 1.0
        elif self._may_earn(reading) and run.exit_code is not None and not (discrepancies or refused):
            reward = await self._share(task, reading, tested.image_id, provider, spec, timeout)
        log_hash = hashlib.sha256(run.log).hexdigest()
        grade = Grade(
            resolved=not reasons,
            reward=reward,
            reason="; ".join(reasons[:_SHOWN]),
            fail_to_pass=reading.fail_to_pass,
            pass_to_pass=reading.pass_to_pass,
            phantoms=tuple(sorted(reading.phantoms)),
            test_exit_code=run.exit_code,
            test_seconds=run.seconds,
            channel=reading.channel,
            applied_with=tree.applied_with,
            suspicious=tree.suspicious,
            tampering=(
                *tree.tampering,
                *(discrepancy.tampering for discrepancy in discrepancies if discrepancy.forged),
            ),
            unchecked=tested.unchecked,
            notes=tree.notes,
            hashes=hashes.model_copy(update={"tests": tree.tests, "tree": tree.id, "log": log_hash}),
            image_id=tested.image_id,
        )
        return Graded(grade=grade, log=run.log)

    async def _test_patch(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> _Tested:
        """Run the tests of a patch. `swe_core.api.blame` says whom a failure is laid to.

        Raises:
            PatchDoesNotApply: See `prepare_tree`.
            _PatchFailed: It fails with this patch, and not with the reference.
            GraderError: It fails for another reason, or the reference fails, too.
            SandboxError: Likewise.
        """
        for last in (False, True):
            progress = _Progress()
            try:
                tested = await self._test(task, patch, provider, spec, timeout, progress, may_be_base=False)
            except PatchDoesNotApply:
                raise
            except Exception as error:  # also what hostile names, files and logs do to a parser here
                if not progress.has_patch or is_gold(task, patch):
                    raise
                if is_unclear(error) and not last:
                    continue  # a host's fault hardly comes twice
                why = f"the patch broke its grading sandbox: {sentence(error)}"
                await self._require_reference(task, progress, provider, spec, timeout, error)
                raise _PatchFailed(why) from error
            if tested.done is not None and tested.done[0].exit_code is None and not is_gold(task, patch):
                await self._require_reference(task, progress, provider, spec, timeout, None)
            return tested
        raise AssertionError("unreachable: the last run returns or raises")

    async def _require_reference(
        self,
        task: Task,
        progress: _Progress,
        provider: SandboxProvider,
        spec: SandboxSpec,
        timeout: float,
        error: Exception | None,
    ) -> None:
        """Check that the task can be graded with its own gold patch.

        What may be the host's fault asks for a new run of it: an earlier one says nothing about now.

        Args:
            error: Why the patch could not be graded; None where its tests did not end in time.

        Raises:
            Exception: `error`, or that of the reference: it could not be graded either.
        """
        try:
            if error is not None and is_unclear(error):
                await self._read_reference(task, provider, spec, timeout)
            else:
                await self._reference(task, progress.image_id, provider, spec, timeout, None)
        except (GraderError, SandboxError) as same:
            raise error or same from None

    def _may_earn(self, reading: TestOutcome) -> bool:
        """Return whether a run may earn a reward, so that nothing may contradict it."""
        return not reading.problems or (self._pays_parts and bool(reading.fixed))

    async def _share(
        self,
        task: Task,
        reading: TestOutcome,
        image_id: str | None,
        provider: SandboxProvider,
        spec: SandboxSpec,
        timeout: float,
    ) -> float:
        """Return the share of the FAIL_TO_PASS tests that an unresolved patch fixes, in [0, 1).

        Tests of the list that pass at the base do not count, or a patch that does nothing would be paid. One
        that such a patch breaks costs all. Nor do names that no test has. Where no run of the base ends,
        nothing is paid.

        Raises:
            GraderError: The base cannot be prepared.
        """
        known = self._base_runs.setdefault((task.digest, image_id), _BaseRun())
        async with known.lock:
            if known.failing is None and known.tries < _TRIES:
                known.tries += 1
                known.failing = await self._failing(task, provider, spec, timeout)
        tests = frozenset(task.fail_to_pass) - reading.phantoms
        failing = (known.failing or frozenset()) & tests
        if not failing or not reading.fixed.union(failing).issuperset(tests):
            return 0.0
        return len(failing & reading.fixed) / len(failing)

    async def _failing(
        self, task: Task, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> frozenset[str] | None:
        """Return the FAIL_TO_PASS tests that do not pass without a patch; None if their run was killed.

        A run that ends without some of them, because a module cannot be imported, counts them as failing.
        """
        try:
            tested = await self._test(task, b"", provider, spec, timeout, _Progress(), may_be_base=True)
        except PatchDoesNotApply as error:
            raise GraderError(f"the task {task.instance_id!r} cannot be graded: {error}") from error
        if tested.done is None or _was_killed(tested.done[0].exit_code):
            return None
        ended = tested.done[1].fail_to_pass
        return frozenset(test for test in task.fail_to_pass if ended.get(test) not in PASSED)

    async def _test(
        self,
        task: Task,
        patch: bytes,
        provider: SandboxProvider,
        spec: SandboxSpec,
        timeout: float,
        progress: _Progress,
        *,
        may_be_base: bool,
    ) -> _Tested:
        async with provider.open(spec.model_copy(update={"write_protect": True})) as sandbox:
            progress.image_id = sandbox.image_id
            base = await prepare_repository(sandbox, task, hide=False, timeout=GIT_TIMEOUT)
            progress.has_patch = True
            tree = await prepare_tree(sandbox, base, task, patch, self._references, timeout=GIT_TIMEOUT)
            if tree.is_base and not may_be_base:
                return _Tested(tree, base.unchecked, sandbox.image_id, None)
            await sandbox.protect([f"{sandbox.spec.workdir}/{path}" for path in tree.decisive])
            known = {path: git_id for path, git_id in tree.own.items() if path.endswith(".py")}
            run = await run_tests(
                sandbox, task, tree.files, known, timeout=timeout, log_bytes=self._log_bytes
            )
            # In a thread: code under test may have printed what takes long to read.
            reading = await anyio.to_thread.run_sync(read, task, run)
            if run.exit_code is None:
                await check_alive(sandbox)
            elif may_be_base or self._may_earn(
                reading
            ):  # else it may have broken what this needs, to no avail
                changed = await changed_files(sandbox, tree.own, timeout=HASH_TIMEOUT)
                reading = reading.with_changed(changed)
            return _Tested(tree, base.unchecked, sandbox.image_id, (run, reading))

    async def _reference(
        self,
        task: Task,
        image_id: str | None,
        provider: SandboxProvider,
        spec: SandboxSpec,
        timeout: float,
        own: TestOutcome | None,
    ) -> TestOutcome:
        """Return what the task's own gold patch gives; the bare base where the task has none.

        Args:
            own: What a run just gave, where that was one of the gold patch.

        Raises:
            GraderError: It gives no results, so that nothing can be said about any patch.
        """
        known = self._reference_runs.setdefault((task.digest, image_id), _ReferenceRun())
        async with known.lock:
            if own is not None and not own.silent:
                known.reading = own
            if known.reading is None and len(known.errors) < _TRIES:
                try:
                    known.reading = await self._read_reference(task, provider, spec, timeout)
                except GraderError as error:
                    known.errors.append(str(error))
        if known.reading is None:
            raise GraderError(known.errors[-1])
        return known.reading

    async def _read_reference(
        self, task: Task, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> TestOutcome:
        gold = as_patch(task.patch)
        own = "with its own gold patch" if gold else "without any patch"
        what = f"the task {task.instance_id!r} cannot be graded: {own}"
        try:
            tested = await self._test(task, gold, provider, spec, timeout, _Progress(), may_be_base=True)
        except PatchDoesNotApply as error:
            raise GraderError(f"{what}, {error}") from error
        if tested.done is None or tested.done[0].exit_code is None:
            raise GraderError(f"{what}, the tests did not end within {timeout:g} s")
        run, reading = tested.done
        if reading.silent:
            raise GraderError(
                f"{what}, {task.test_command!r} printed no {task.log_parser} results "
                f"(exit code {run.exit_code}): {run.last_line}"
            )
        return reading


_SHOWN = 4
_TRIES = 2  # of a reference without results, and of a base that was killed: the machine may have been busy


def is_gold(task: Task, patch: bytes) -> bool:
    """Return whether a patch is the task's own gold patch."""
    return as_patch(patch.decode(errors="replace")) == as_patch(task.patch)


def _was_killed(exit_code: int | None) -> bool:
    """Return whether a test run ended by a limit or a signal (above 128, as a shell reports it)."""
    return exit_code is None or not 0 <= exit_code <= 128


def _unresolved(reason: str, hashes: Hashes) -> Graded:
    return Graded(grade=Grade(resolved=False, reason=reason, hashes=hashes))
