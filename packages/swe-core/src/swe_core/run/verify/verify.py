"""The driver of `tasks verify`: a task is graded with its gold patch, with nothing and with every cheat."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar, cast

import anyio

from swe_core.api import contracts
from swe_core.api.contracts import grade_patch, opened
from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.limits import Limits
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.errors import GraderError, ImageNotFound, SandboxError, SweError, sentence
from swe_core.plugins.manager import PluginSet
from swe_core.run.components import resolve_component
from swe_core.run.plan import check_sandbox_supported, sandbox_spec
from swe_core.run.settings import Settings
from swe_core.run.verify.apply_cheat import RECIPE_TIMEOUT, make_patch
from swe_core.run.verify.cache import VerifyCache, versions
from swe_core.run.verify.recipe import Cheat
from swe_core.run.verify.report import Check, TaskVerdict, Verdict
from swe_core.sandboxing.repository.patch import PatchUnavailable, as_patch
from swe_core.sandboxing.repository.prepare import prepare_repository
from swe_core.system.event_loop import until_signalled
from swe_core.system.plural import counted

UNRELATED = b"""diff --git a/swe-core-verify.txt b/swe-core-verify.txt
new file mode 100644
index 0000000000000000000000000000000000000000..9daeafb9864cf43055ae93beb0afd6c7d144bfa4
--- /dev/null
+++ b/swe-core-verify.txt
@@ -0,0 +1 @@
+test
"""
"""A patch that changes nothing that matters: a grader may refuse an empty one without a test run, and whether
the tests fail at the base is what is asked."""

_ERROR = re.compile(rb"^E  +(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Methods:
    """How tasks are verified.

    Args:
        provider: Opens the sandboxes.
        grader: The grader whose verdicts are proved.
        spec: What a sandbox of a task is asked of, without assets and without network.
        limits: Budgets of the phases, as in a run.
        cheats: The cheats to try.
        repeat: How often the gold patch and a change that has nothing to do with it are graded.
        sandbox: The name of the sandbox provider.
        grader_name: The grader's name.
        facts: What else decides a verdict, for the cache: the settings of the two.
    """

    provider: SandboxProvider
    grader: Grader
    spec: Callable[[Task], SandboxSpec]
    limits: Limits
    cheats: Sequence[Cheat]
    repeat: int
    sandbox: str
    grader_name: str
    facts: dict[str, Any]


def methods_of(settings: Settings, plugins: PluginSet, cheats: Sequence[Cheat], repeat: int) -> Methods:
    """The methods that the settings choose.

    Raises:
        UsageError: The sandbox, the grader or a setting of theirs is wrong, or no sandbox would be opened.
    """
    sandbox = resolve_component(settings, plugins, "sandbox", settings.run.sandbox)
    grader = resolve_component(settings, plugins, "grader", settings.run.grader)

    def spec(task: Task) -> SandboxSpec:
        return sandbox_spec(task, settings).for_grading()

    provider = cast(SandboxProvider, sandbox.create())
    check_sandbox_supported(provider, settings, agents=False)
    return Methods(
        provider=provider,
        grader=cast(Grader, grader.create()),
        spec=spec,
        limits=settings.limits,
        cheats=cheats,
        repeat=repeat,
        sandbox=sandbox.name,
        grader_name=grader.name,
        facts={
            "sandbox_settings": sandbox.config.model_dump(mode="json"),
            "grader_settings": grader.config.model_dump(mode="json"),
            "resources": settings.resources.model_dump(mode="json"),
        },
    )


async def verify_until_signalled(
    tasks: Sequence[Task],
    methods: Methods,
    concurrency: int,
    cache: VerifyCache | None,
    done: Callable[[TaskVerdict, bool], None],
) -> bool:
    """`verify_tasks`, ended by `ending_signals`; sandboxes that a killed run left behind are removed first.

    Returns:
        Whether a signal ended it.
    """
    await contracts.reap(methods.provider)
    verify = partial(verify_tasks, concurrency=concurrency, cache=cache, done=done)
    return await until_signalled(verify, tasks, methods)


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a task's name and image stood for when it was verified."""

    image_id: str | None = None
    base_tree: str | None = None
    unchecked: str = ""


async def verify_tasks(
    tasks: Sequence[Task],
    methods: Methods,
    *,
    concurrency: int,
    cache: VerifyCache | None,
    done: Callable[[TaskVerdict, bool], None],
) -> None:
    """Verify `tasks` concurrently; they start in order.

    Args:
        concurrency: Maximum concurrent sandboxes of all tasks.
        cache: Verdicts of earlier calls; None caches nothing.
        done: Called with each verdict at once, and whether it comes from the cache. An exception of it
            ends everything, as on cancellation.
    """
    waiting = iter(tasks)
    sandboxes = anyio.CapacityLimiter(concurrency)

    async def work(waiting: Iterator[Task]) -> None:
        for task in waiting:
            one = _OneTask(task, methods, sandboxes, cache)
            done(*await one.verdict())

    await _all_of([partial(work, waiting) for _ in range(min(concurrency, len(tasks)))])


class _OneTask:
    """The verification of one task."""

    def __init__(
        self, task: Task, methods: Methods, sandboxes: anyio.CapacityLimiter, cache: VerifyCache | None
    ) -> None:
        self._task = task
        self._methods = methods
        self._sandboxes = sandboxes
        self._cache = cache
        self._checks: list[Check] = []
        self._identity = _Identity()
        self._started_at, self._started = datetime.now(UTC), time.monotonic()

    async def verdict(self) -> tuple[TaskVerdict, bool]:
        """The verdict, and whether it was known."""
        try:
            self._identity = await self._identify()
            if self._cache and (known := self._cache.get(self._facts())):
                return known, True
            verdict, reason = await self._decide()
        except ImageNotFound as error:
            return self._record("missing_image", sentence(error)), False
        except Exception as error:  # the boundary that records: a bad task is data
            return self._record("error", sentence(error)), False
        record = self._record(verdict, reason)
        if self._cache:
            self._cache.put(self._facts(), record)
        return record, False

    async def _identify(self) -> _Identity:
        methods, limits = self._methods, self._methods.limits
        async with self._sandboxes:
            with _budget("opening and preparing its sandbox", limits.open + limits.prepare, SandboxError):
                async with opened(methods.provider, methods.spec(self._task)) as sandbox:
                    base = await prepare_repository(sandbox, self._task, hide=False, timeout=limits.prepare)
                    return _Identity(sandbox.image_id, base.tree, base.unchecked)

    async def _decide(self) -> tuple[Verdict, str]:
        if not self._task.patch.strip():
            return "broken_gold", "the row has no gold patch: nothing shows that it can be resolved"
        gold = await self._repeated("gold", as_patch(self._task.patch))
        if contradiction := _contradiction("the gold patch", gold):
            return "flaky", contradiction
        if not gold[0].grade.resolved:
            said = f"the gold patch does not resolve it: {gold[0].grade.reason}"
            return "broken_gold", "; ".join((said, *_explained(gold[0])))
        empty, _ = await self._check("empty", b"")
        self._checks.append(empty)
        unrelated = await self._repeated("unrelated", UNRELATED)
        if contradiction := _contradiction("a change that has nothing to do with it", unrelated, tests=False):
            return "flaky", contradiction
        if empty.resolved or unrelated[0].grade.resolved:
            return "unbroken", "it is resolved without a fix: its tests pass at the base"
        if empty.reward or unrelated[0].grade.reward:
            return "unbroken", "a change that has nothing to do with it earns a reward"
        tried = await _all_of([partial(self._try, cheat) for cheat in self._methods.cheats])
        self._checks += tried
        if paid := [check.name for check in tried if check.reward]:
            earn = "resolve it" if all(check.resolved for check in tried if check.reward) else "earn a reward"
            return "cheatable", f"patches that fix nothing {earn}: {', '.join(paid)}"
        return "usable", ""

    async def _repeated(self, name: str, patch: bytes) -> list[Graded]:
        """Grade `patch` as often as asked for, or until two verdicts differ."""
        found: list[Graded] = []
        for _ in range(self._methods.repeat):
            check, graded = await self._check(name, patch)
            self._checks.append(check)
            found.append(graded)
            if graded.grade.resolved != found[0].grade.resolved:
                break
        return found

    async def _try(self, cheat: Cheat) -> Check:
        """Make the patch of `cheat` and grade it."""
        started = time.monotonic()
        try:
            patch = await self._made(cheat)
        except PatchUnavailable as error:  # as for an agent: nothing to grade, and nothing is paid
            return Check(
                name=cheat.name,
                resolved=False,
                reason=sentence(error),
                seconds=time.monotonic() - started,
            )
        if patch is None:
            return Check(name=cheat.name, resolved=None, reason="the task gives it nothing to attack")
        check, _ = await self._check(cheat.name, patch)
        return check

    async def _made(self, cheat: Cheat) -> bytes | None:
        methods, limits = self._methods, self._methods.limits
        allowed = limits.open + 2 * limits.prepare + RECIPE_TIMEOUT
        async with self._sandboxes:
            with _budget(f"making the patch of {cheat.name!r}", allowed, SandboxError):
                async with opened(methods.provider, methods.spec(self._task)) as sandbox:
                    base = await prepare_repository(sandbox, self._task, hide=True, timeout=limits.prepare)
                    return await make_patch(sandbox, base, self._task, cheat, timeout=limits.prepare)

    async def _check(self, name: str, patch: bytes) -> tuple[Check, Graded]:
        methods, limits = self._methods, self._methods.limits
        async with self._sandboxes:
            started = time.monotonic()
            with _budget(f"grading the patch {name!r}", limits.verdict, GraderError):
                graded = await grade_patch(
                    methods.grader,
                    self._task,
                    patch,
                    methods.provider,
                    methods.spec(self._task),
                    limits.grade,
                )
        grade = graded.grade
        stolen = grade.reward > 0 and name not in ("gold", "empty", "unrelated")
        check = Check(
            name=name,
            resolved=grade.resolved,
            reward=grade.reward,
            reason=grade.reason or _named_by_no_test(grade),
            tampering=tuple(sorted({found.kind for found in grade.tampering})),
            patch_bytes=len(patch),
            patch=patch.decode(errors="replace") if stolen else None,
            seconds=time.monotonic() - started,
            test_seconds=grade.test_seconds,
        )
        return check, graded

    def _facts(self) -> dict[str, Any]:
        """All that decides the verdict."""
        return {
            **self._methods.facts,
            "task": self._task.digest,
            "image": self._identity.image_id,
            "tree": self._identity.base_tree,
            "sandbox": self._methods.sandbox,
            "grader": self._methods.grader_name,
            "repeat": self._methods.repeat,
            "cheats": [cheat.name for cheat in self._methods.cheats],
            "limits": self._methods.limits.model_dump(),
            "versions": dict(versions()),
        }

    def _record(self, verdict: Verdict, reason: str) -> TaskVerdict:
        return TaskVerdict(
            task_id=self._task.instance_id,
            verdict=verdict,
            reason=reason,
            digest=self._task.digest,
            image=self._task.image,
            image_id=self._identity.image_id,
            base_tree=self._identity.base_tree,
            unchecked=self._identity.unchecked,
            sandbox=self._methods.sandbox,
            grader=self._methods.grader_name,
            versions=dict(versions()),
            repeat=self._methods.repeat,
            checks=tuple(self._checks),
            started_at=self._started_at,
            seconds=time.monotonic() - self._started,
        )


def _explained(gold: Graded) -> Iterator[str]:
    """Why tests do not pass with the gold patch: the first error that pytest shows, and what never ran."""
    if (shown := _ERROR.search(gold.log)) is not None:
        yield f"the first error is {shown[1].decode(errors='replace').strip()[:300]!r}"
    tests = {**gold.grade.fail_to_pass, **gold.grade.pass_to_pass}
    if missing := sum(status == "MISSING" for status in tests.values()):
        yield f"{missing} of {counted(len(tests), 'test')} {'was' if missing == 1 else 'were'} not collected"


def _named_by_no_test(grade: Grade) -> str:
    names = ", ".join(map(repr, grade.phantoms[:3]))
    return f"no test is called {names}: the log has it, as the data set's parser read it" if names else ""


def _contradiction(what: str, found: Sequence[Graded], *, tests: bool = True) -> str:
    """One sentence where equal patches did not end in the same way, else nothing.

    Args:
        tests: Whether single tests that end otherwise count, too.
    """
    first, *others = (graded.grade for graded in found)
    for number, grade in enumerate(others, 2):
        if grade.resolved != first.resolved:
            bad, good = (1, number) if grade.resolved else (number, 1)
            why = first.reason if bad == 1 else grade.reason
            return f"{what} resolved it in try {good} and not in try {bad}: {why}"
        if tests and (names := _different(first, grade)):
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            return f"with {what} these tests end in different ways: {', '.join(map(repr, names[:3]))}{more}"
    return ""


def _different(first: Grade, second: Grade) -> list[str]:
    before = {**first.fail_to_pass, **first.pass_to_pass}
    after = {**second.fail_to_pass, **second.pass_to_pass}
    return [test for test, status in before.items() if after.get(test) != status]


T = TypeVar("T")


async def _all_of(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """What `jobs` return, run at once.

    Raises:
        Exception: Of the first that failed; the others were cancelled.
    """
    results: dict[int, T] = {}

    async def run(number: int, job: Callable[[], Awaitable[T]]) -> None:
        results[number] = await job()

    try:
        async with anyio.create_task_group() as group:
            for number, job in enumerate(jobs):
                group.start_soon(run, number, job)
    except ExceptionGroup as errors:  # the first one cancelled the others
        raise errors.exceptions[0] from None
    return [results[number] for number in range(len(jobs))]


@contextmanager
def _budget(what: str, seconds: float, kind: type[SweError]) -> Iterator[None]:
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise kind(f"{what} did not end within the {seconds:g} s that [limits] allows")
