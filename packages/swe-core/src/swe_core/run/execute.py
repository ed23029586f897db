"""Run a plan: open shared resources, drive the worker, close everything."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import orjson

from swe_core.api import contracts
from swe_core.api.engine import Engine
from swe_core.api.executor import Executor, ExecutorRun, MetricsAddress
from swe_core.api.records import Outcome
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.worker import RolloutWorker
from swe_core.errors import ConfigError, PluginError, RunStopped, SweError
from swe_core.plugins.manager import PluginSet
from swe_core.plugins.plugin_observer import FinishedHook
from swe_core.plugins.reward_shaper import RewardShaper
from swe_core.rollout.run_directory import FOLDERS, RunDirectory, new_run_info
from swe_core.rollout.runner import Runner
from swe_core.run.plan import BlackBoxPlan, Plan, limits_of, sandbox_spec
from swe_core.run.resume import remember
from swe_core.run.site import open_engine, open_site
from swe_core.run.vocabulary import keep_vocabulary
from swe_core.system.descriptors import raise_descriptor_limit
from swe_core.system.event_loop import settled, until_signalled
from swe_core.system.files import locked
from swe_core.system.redaction import Redactor, redaction_scope

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

SERVER_FILE = "server.json"
"""File in the run directory with the interception server's address. It exists while the run lasts."""
BLACK_BOX = "black-box"
NO_ENGINE = "none"
"""Engine names in the records of runs without an engine."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    Args:
        directory: The run directory, with every finished rollout.
        cancelled: Whether a signal interrupted the run.
        stopped: Why equal errors or a failing reward hook ended it early; None if none did.
    """

    directory: RunDirectory
    cancelled: bool
    stopped: RunStopped | None = None


class RunExtension(Protocol):
    """A task that runs beside the rollouts, such as a push to the Hub."""

    async def prepare(self) -> None:
        """Check and open what the extension needs. Called once, before the run opens anything.

        Raises:
            SweError: The extension cannot work. The run does not start.
        """
        ...

    def running(self, runner: Runner) -> AbstractAsyncContextManager[None]:
        """Return a context manager that is open while rollouts run. It may observe `runner`."""
        ...


async def execute(
    plan: Plan,
    plugins: PluginSet,
    out: Path,
    observe: Callable[[Sequence[RolloutRequest], Sequence[str]], Observer],
    worker: RolloutWorker,
    *,
    resume: bool = False,
    again: Collection[Outcome] = (),
    lock: bool = True,
    extensions: Sequence[RunExtension] = (),
) -> RunResult:
    """Run `plan` into the directory `out`, until its worker returns or one of `ending_signals` cancels it.

    Rollouts that are running then are recorded as cancelled, and so are those that run when equal errors end
    the run. The arguments are those of `open_run`.

    Args:
        worker: Drives the run: the plan's worker, or one that a `Launcher` made for this process.

    Raises:
        SweError: The run cannot start or cannot continue.
    """
    opened = open_run(
        plan, plugins, out, observe, resume=resume, again=again, lock=lock, extensions=extensions
    )
    cancelled, stopped = False, None
    async with opened as runner:
        try:
            cancelled = await until_signalled(contracts.run_worker, worker, runner)
        except RunStopped as error:  # the extensions end as after any run
            stopped = error
    return RunResult(runner.store, cancelled, stopped)


@asynccontextmanager
async def open_run(
    plan: Plan,
    plugins: PluginSet,
    out: Path,
    observe: Callable[[Sequence[RolloutRequest], Sequence[str]], Observer],
    *,
    resume: bool = False,
    again: Collection[Outcome] = (),
    lock: bool = True,
    extensions: Sequence[RunExtension] = (),
) -> AsyncIterator[Runner]:
    """Open all that the rollouts of `plan` share, and yield the runner. Leaving closes it.

    It handles no signals, so it works in any thread.

    Args:
        observe: Makes the display from the remaining requests and the notes for the user. The engine's notes
            are among them only with `resume`; a new run writes them to its run directory.
        resume: Whether `out` is a run directory to resume. `Runner.run_all` skips its finished rollouts. A
            worker that starts rollouts itself has to skip them.
        again: With `resume`, outcomes of rollouts to run again.
        lock: Whether to lock the run directory; False where another process of this run holds the lock.
        extensions: Tasks beside the rollouts, such as a push to the Hub. The first ends last.

    Raises:
        SweError: The run cannot start or cannot continue.
    """
    raise_descriptor_limit()
    executor = cast(Executor, plan.executor.create())
    async with AsyncExitStack() as stack:
        redactor = stack.enter_context(redaction_scope())
        if resume and lock:  # first of all: another process may use the directory
            stack.enter_context(locked(out))
        for extension in extensions:
            await extension.prepare()
        engine = await stack.enter_async_context(open_engine(plan, redactor))
        if engine is not None:
            await contracts.check(engine)
            if engine.without_calls is not None and plan.agent.calls_tools:
                raise ConfigError(engine.without_calls)
        run = ExecutorRun(
            settings=plan.settings.model_dump(mode="json"),
            versions=_versions(plugins),
            directory=out,
            concurrency=plan.settings.run.concurrency,
            engine=engine,
            open_site=partial(open_site, plan, plugins, engine, out / FOLDERS, redactor),
        )
        opened: object = executor.open(run)
        if not isinstance(opened, AbstractAsyncContextManager):
            shown = contracts.shown(opened)
            raise PluginError(
                f"the executor {plan.executor.name!r} returned {shown} from open(), expected an async "
                "context manager: write @asynccontextmanager above 'async def open', and 'yield'"
            )
        await stack.enter_async_context(opened)
        shape = RewardShaper(plugins)
        notes = [redactor.text(note) for note in (*executor.notes, *shaping_notes(plugins))]
        meaning = [redactor.text(note) for note in contracts.notes_of(engine)] if engine is not None else []
        requests = _requests(plan, engine)
        if resume:
            directory = RunDirectory.resume(out, redactor, again)
            if lock:  # otherwise another process did it, whose settings are the user's
                remember(directory, plan.settings)
        else:
            directory = create_directory(plan, plugins, out, redactor, len(requests), [*notes, *meaning])
            stack.enter_context(locked(out))
        if engine is not None:
            await keep_vocabulary(engine, out)
        finished = directory.finished()
        left = [request for request in requests if request.id not in finished]
        observers = [observe(left, [*notes, *meaning] if resume else notes), FinishedHook(plugins)]
        options = plan.settings.run
        runner = Runner(
            requests, executor, engine, directory, observers, options.concurrency, options.error_limit, shape
        )
        for extension in extensions:
            await stack.enter_async_context(extension.running(runner))
        with _announced(executor.metrics, out), settled():
            if resume:
                await runner.recover(again)
            yield runner


def create_directory(
    plan: Plan,
    plugins: PluginSet,
    out: Path,
    redactor: Redactor,
    planned: int | None,
    notes: Sequence[str] = (),
) -> RunDirectory:
    """Create the run directory of `plan`.

    Args:
        planned: Number of rollouts; None where it is unknown until the run ends.
        notes: Sentences that the report shows.

    Raises:
        UsageError: `out` exists and is not empty, or cannot be written.
    """
    settings = plan.settings.model_dump(mode="json")
    tasks = {task.instance_id: task.digest for task in plan.tasks}
    info = new_run_info(_versions(plugins), settings, planned, notes, tasks)
    return RunDirectory.create(out, info, redactor)


@contextmanager
def _announced(metrics: MetricsAddress | None, out: Path) -> Iterator[None]:
    """Keep `SERVER_FILE` in `out` with the URL of the metrics, their token and this process id."""
    if metrics is None:
        yield
        return
    path = out / SERVER_FILE
    content = {"url": metrics.url, "metrics_token": metrics.token, "pid": os.getpid()}
    try:
        path.unlink(missing_ok=True)  # a killed run may have left it
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(orjson.dumps(content) + b"\n")
    except OSError as error:
        raise SweError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def shaping_notes(plugins: PluginSet) -> Sequence[str]:
    """Return the note of a run whose rewards plugins shape; none without such a plugin."""
    shaping = RewardShaper(plugins).names
    if not shaping:
        return ()
    names = ", then ".join(repr(name) for name in shaping)
    return (f"Plugins shape the rewards: {names}. Outcomes are the grader's.",)


def _requests(plan: Plan, engine: Engine | None) -> list[RolloutRequest]:
    """Return a request for every attempt at every task, task by task, without the assets of the agent."""
    limits = limits_of(plan.settings)
    if isinstance(plan.model_side, BlackBoxPlan):
        engine_name, model = BLACK_BOX, plan.model_side.model
    elif plan.model_side is None or engine is None:
        engine_name, model = NO_ENGINE, ""
    else:
        engine_name, model = plan.model_side.name, engine.model
    return [
        RolloutRequest(
            id=f"{task.instance_id}-{attempt}",
            task=task,
            attempt=attempt,
            agent=plan.agent.name,
            sandbox=plan.sandbox.name,
            engine=engine_name,
            model=model,
            spec=sandbox_spec(task, plan.settings).model_copy(
                update={"labels": {"swe-core.rollout": f"{task.instance_id}-{attempt}"}}
            ),
            limits=limits(task),
            budget=plan.settings.budget,
            sandbox_retries=plan.settings.run.sandbox_retries,
        )
        for task in plan.tasks
        for attempt in range(plan.settings.run.attempts)
    ]


def _versions(plugins: PluginSet) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for plugin in plugins.plugins.values():
        if plugin.version and not plugin.builtin:
            found[plugin.origin] = plugin.version
    found["swe-core"] = importlib.metadata.version("swe-core")
    return found
