"""What plugins return, compared with the contracts of their roles.

Each error is one sentence: what was called, what it returned, what was expected, and the remedy. The checks
run per component, rollout, LLM call or line of output, never per token. Those of an agent are in
`agent_contract`.
"""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast, get_args

from swe_core.api.agent import AgentSpec, DialectName
from swe_core.api.component import Component, Config
from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession
from swe_core.api.executor import Executor
from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.api.task import Task, TaskSource
from swe_core.api.worker import RolloutRunner, RolloutWorker
from swe_core.errors import (
    EngineError,
    EngineProtocolError,
    GraderError,
    PluginError,
    SandboxError,
    SweError,
    TaskError,
    sentence,
)

FILE_PLUGIN = "swe_plugin_"
"""Prefix of the module name of a plugin from a file."""

_LONGEST = 120
_NOT_PLUGINS = (str(Path(__file__).parents[1]) + os.sep, os.path.dirname(os.__file__) + os.sep)
"""Folders whose code is no plugin's: this package and the standard library."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def shown(value: object) -> str:
    """Return a value that a plugin returned, short enough for a sentence. Close it if it is a coroutine."""
    if inspect.iscoroutine(value):
        value.close()  # it is never awaited, and Python would warn
        return "a coroutine"
    if inspect.isasyncgen(value):
        return "an async generator"
    if inspect.isgenerator(value):
        return "a generator"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', '?')}"
    kind = type(value)
    if kind.__module__ != "builtins":  # its text may be long, or differ from run to run
        return f"an object of the class {kind.__name__}"
    try:
        text = repr(value)
    except Exception:  # an object inside may fail even at this
        return f"a {kind.__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… (a {kind.__name__})"


def class_of(value: object) -> str:
    """Return where the class of a plugin's object is defined, such as `my_agent.MyAgent`."""
    kind = type(value)
    return f"{kind.__module__.removeprefix(FILE_PLUGIN)}.{kind.__qualname__}"


def failed(error: Exception | SystemExit) -> str:
    """Return the text of an error of a plugin, with the line of the plugin that raised it."""
    if isinstance(error, SweError):
        return sentence(error)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" in frame.filename or not frame.filename.startswith(("<", *_NOT_PLUGINS))
    ]
    if not frames:
        return sentence(error)
    file = frames[0].filename  # the plugin's; later frames may be of libraries
    line = [frame.lineno for frame in frames if frame.filename == file][-1]
    return f"{sentence(error)} ({Path(file).name}, line {line})"


@contextmanager
def calling(kind: type[SweError], who: str, method: str, but: type[Exception] = SweError) -> Iterator[None]:
    """Raise errors of a plugin's method as `kind`, with a sentence that names the method.

    Args:
        but: Errors that the method may raise, beside any `SweError`.

    Raises:
        SweError: The method raised it.
        kind: The method raised any other exception.
    """
    try:
        yield
    except (SweError, but):
        raise
    except (Exception, SystemExit) as error:  # plugin code may raise anything
        raise kind(f"{who} failed in {method}(): {failed(error)}") from error


# components


def check_component(component: Component[Any]) -> None:
    """Check the fields of a component.

    Raises:
        PluginError: A field has another type than its declaration, or `create` is `async def`.
    """
    name, config = component.name, component.config
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PluginError(
            f"a Component has the name {shown(name)}, expected letters, digits, '-' and '_', such as 'mine'"
        )
    what = f"the Component {name!r} has"
    if not callable(component.create):
        raise PluginError(
            f"{what} {shown(component.create)} as create, expected a function of the settings, such as "
            "lambda config: Mine()"
        )
    if inspect.iscoroutinefunction(component.create):
        raise PluginError(f"{what} a create that is 'async def', expected a plain function")
    if not (isinstance(config, type) and issubclass(config, Config)):
        raise PluginError(
            f"{what} {shown(config)} as config, expected a subclass of swe_core.Config, not an object of it"
        )
    if not isinstance(component.summary, str):
        raise PluginError(f"{what} {shown(component.summary)} as summary, expected a text")
    for field in ("defaults", "settings"):
        if not isinstance(getattr(component, field), Mapping):
            raise PluginError(f"{what} {shown(getattr(component, field))} as {field}, expected a dict")


_NEEDED: Mapping[str, tuple[str, Sequence[str]]] = {
    "sandbox": ("a SandboxProvider", ("open", "notes", "list", "reap")),
    "grader": ("a Grader", ("grade",)),
    "tasks": ("a TaskSource", ("tasks",)),
}
"""Role → its contract, and the methods of the contract. The other roles have classes to extend."""


def create(component: Component[Any], config: Config, role: str, who: str) -> Any:
    """Create a component's object, and compare it with the contract of the role.

    Args:
        who: The component in a sentence, such as "the agent 'mine' of the plugin 'my'".

    Raises:
        SweError: `create` raised it.
        PluginError: `create` raised any other exception, or the object does not fill the role.
    """
    try:
        inspect.signature(component.create).bind(config)
    except TypeError:
        raise PluginError(
            f"{who} cannot be created: its create takes other arguments than the settings alone, expected a "
            "function such as lambda config: Mine()"
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    try:
        created = component.create(config)
        problem = unfit(created, role)  # which may call the object's properties
    except SweError:
        raise
    except Exception as error:  # plugin code may raise anything
        raise PluginError(f"{who} cannot be created: {failed(error)}") from error
    if problem:
        raise PluginError(f"{who}: its create returned {shown(created)}, {problem}")
    return created


def unfit(created: object, role: str) -> str:
    """Return why an object does not fill a role, for a sentence that begins with it; empty if it does."""
    if role == "agent":
        return _no_instance(created, AgentSpec, "an AgentSpec") or _unfit_agent(cast(AgentSpec, created))
    if role == "engine":
        return _no_instance(created, Engine, "an Engine") or _unnamed(created, "model")
    if role == "executor":
        return _no_instance(created, Executor, "an Executor")
    if role == "worker":
        if _has(created, "run") or _has(created, "launch"):
            return ""
        return _instead(created, "a worker: an object with 'async def run(self, runner)', or a Launcher")
    contract, methods = _NEEDED[role]
    missing = [name for name in methods if not _has(created, name)]
    if missing:
        return _instead(
            created, f"{contract}: an object with {_listed(methods)}; it lacks {_listed(missing)}"
        )
    if role == "tasks":
        return _unfit_source(created)
    return ""


def _unfit_source(source: object) -> str:
    recording: object = getattr(source, "recording", "")
    if isinstance(recording, Path | None):
        return ""
    found = f"whose recording is {shown(recording)}" if hasattr(source, "recording") else "without recording"
    return f"{found}, expected the Path of recorded replies, or None: write recording = None in its class"


def _no_instance(created: object, contract: type, name: str) -> str:
    if isinstance(created, contract):
        return ""
    extend = "" if created is None else f", whose class extends swe_core.{contract.__name__}"
    return _instead(created, f"{name}{extend}", contract)


def _instead(created: object, expected: str, contract: type | None = None) -> str:
    """Return what was expected instead of an object, with the remedy for the likeliest mistakes."""
    if created is None:
        return f"expected {expected.partition(':')[0]}: return it"
    if isinstance(created, type) and (contract is None or issubclass(created, contract)):
        return f"expected an object: call the class, {created.__name__}(…)"
    return f"expected {expected}"


def _has(created: object, name: str) -> bool:
    return not isinstance(created, type) and callable(getattr(created, name, None))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{name}()" for name in names)


def _unfit_agent(agent: AgentSpec) -> str:
    if problem := _unnamed(agent, "name"):
        return problem
    if agent.dialect is not None and agent.dialect not in get_args(DialectName):
        dialects = ", ".join(repr(dialect) for dialect in get_args(DialectName))
        return f"whose dialect is {shown(agent.dialect)}, expected one of {dialects}, or None"
    return ""


def _unnamed(created: object, attribute: str) -> str:
    name: object = getattr(created, attribute, None)
    if isinstance(name, str) and name:
        return ""
    return f"whose {attribute} is {shown(name)}, expected a text: write {attribute} = 'mine' in its class"


# what a run calls once


def notes_of(plugin: SandboxProvider | Engine) -> list[str]:
    """Return the notes of a sandbox provider or an engine.

    Raises:
        PluginError: `notes()` raised another exception than a `SweError`, or returned something else.
    """
    who = class_of(plugin)
    with calling(PluginError, who, "notes"):
        return check_values(who, "notes", plugin.notes(), PluginError, str, "a list of sentences, such as []")


async def reap(provider: SandboxProvider) -> int:
    """Destroy the sandboxes of runs that have ended; see `SandboxProvider.reap`.

    Raises:
        SandboxError: `reap()` raised another exception than a `SweError`, or returned something else.
    """
    who = f"the sandbox provider {class_of(provider)}"
    with calling(SandboxError, who, "reap"):
        given: object = provider.reap()
        count = await _awaited(given, SandboxError, who, "reap", "a number")
    if isinstance(count, int | None):
        return count or 0
    raise SandboxError(
        f"{who} returned {shown(count)} from reap(), expected the number of sandboxes, such as 0"
    )


async def check(engine: Engine) -> None:
    """Check that an engine can serve a run; see `Engine.check`.

    Raises:
        EngineError: `check()` raised another exception than a `SweError`, or is not 'async def'.
    """
    who = f"the engine {class_of(engine)}"
    with calling(EngineError, who, "check"):
        given: object = engine.check()
        await _awaited(given, EngineError, who, "check", "")


async def run_worker(worker: RolloutWorker, runner: RolloutRunner) -> None:
    """Let a worker drive a run; see `RolloutWorker.run`.

    Raises:
        PluginError: `run()` is not 'async def'.
        Exception: `run()` raised it.
    """
    given: object = worker.run(runner)
    await _awaited(given, PluginError, f"the worker {class_of(worker)}", "run", "")


def tasks_of(source: TaskSource, name: str) -> list[Task]:
    """Return the tasks of a source.

    Raises:
        TaskError: `tasks()` raised another exception than a `SweError`, returned no tasks, or repeats an id.
        SweError: `tasks()` raised it.
    """
    who = f"the task source {name!r} ({class_of(source)})"
    with calling(TaskError, who, "tasks"):
        found: object = source.tasks()
        if isinstance(found, str | bytes | Mapping | Task) or not isinstance(found, Iterable):
            raise TaskError(
                f"{who} returned {shown(found)} from tasks(), expected Tasks: 'yield' each of them in a "
                "plain function, or return a list"
            )
        tasks: list[Task] = []
        ids: set[str] = set()
        for place, task in enumerate(found):
            if not isinstance(task, Task):
                remedy = "Task.model_validate(row) makes one" if isinstance(task, Mapping) else "yield Tasks"
                raise TaskError(
                    f"{who} gave {shown(task)} as task {place} from tasks(), expected a Task: {remedy}"
                )
            if task.instance_id in ids:
                raise TaskError(
                    f"{who} gave two tasks with the id {task.instance_id!r} from tasks(), expected unique "
                    "ids: rename or leave out one"
                )
            ids.add(task.instance_id)
            tasks.append(task)
    return tasks


# what runs for each rollout


@asynccontextmanager
async def opened(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """Open a sandbox; see `SandboxProvider.open`.

    Raises:
        SandboxError: `open` returned no async context manager, or that yields no sandbox.
    """
    who = f"the sandbox provider {class_of(provider)}"
    context: object = provider.open(spec)
    inner: object = getattr(context, "gen", None)
    if inspect.iscoroutine(inner):  # of @asynccontextmanager above a function without 'yield'
        context = inner
    if not isinstance(context, AbstractAsyncContextManager):
        raise SandboxError(
            f"{who} returned {shown(context)} from open(), expected an async context manager: write "
            "@asynccontextmanager above 'async def open', and 'yield' the sandbox"
        )
    async with context as sandbox:
        if not isinstance(sandbox, Sandbox):
            raise SandboxError(
                f"{who} gave {shown(sandbox)} from open(), expected a Sandbox: 'yield' an object whose class "
                "extends swe_core.Sandbox"
            )
        yield sandbox


async def grade_patch(
    grader: Grader, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
) -> Graded:
    """Grade a patch; see `Grader.grade`.

    Raises:
        GraderError: `grade` raised another exception than a `SweError`, or returned something else.
    """
    who = f"the grader {class_of(grader)}"
    with calling(GraderError, who, "grade"):
        given: object = grader.grade(task, patch, provider, spec, timeout)
        graded = await _awaited(given, GraderError, who, "grade", "a Graded")
    if isinstance(graded, Graded):
        return graded
    remedy = (
        "return Graded(grade=…)" if isinstance(graded, Grade) else "return Graded(grade=Grade(resolved=…))"
    )
    raise GraderError(f"{who} returned {shown(graded)} from grade(), expected a Graded: {remedy}")


async def complete(
    engine: Engine, request: ChatRequest, session: EngineSession, emit: Emit | None
) -> Completion:
    """Answer a request; see `Engine.complete`.

    Raises:
        EngineError: `complete` raised another exception than a `SweError`.
        EngineProtocolError: It returned something else.
    """
    who = f"the engine {class_of(engine)}"
    with calling(EngineError, who, "complete"):
        given: object = engine.complete(request, session, emit)
        completion = await _awaited(given, EngineProtocolError, who, "complete", "a Completion")
    if not isinstance(completion, Completion):
        raise EngineProtocolError(
            f"{who} returned {shown(completion)} from complete(), expected a Completion: return "
            "Completion({'role': 'assistant', 'content': text})"
        )
    if not isinstance(completion.message, dict):
        raise EngineProtocolError(
            f"{who} returned a Completion with the message {shown(completion.message)} from complete(), "
            "expected a dict such as {'role': 'assistant', 'content': text}"
        )
    return completion


async def _awaited(given: object, kind: type[SweError], who: str, method: str, expected: str) -> object:
    if not inspect.isawaitable(given):
        asked = f"{expected} from an async function" if expected else "an async function"
        raise kind(
            f"{who} returned {shown(given)} from {method}(), expected {asked}: write 'async def {method}'"
        )
    return await given


def check_values(
    who: str, method: str, given: object, kind: type[SweError], of: type, expected: str
) -> list[Any]:
    """Return the values that a plugin's method returned.

    Args:
        of: Type of each value.
        expected: What the method should return, with an example.

    Raises:
        SweError: They are no iterable of such values. It is a `kind`.
    """
    if isinstance(given, (str, bytes, Mapping, of)) or not isinstance(given, Iterable):
        raise kind(f"{who} returned {shown(given)} from {method}(), expected {expected}")
    values = list(given)
    for place, value in enumerate(values):
        if not isinstance(value, of):
            raise kind(f"{who} returned {shown(value)} as item {place} from {method}(), expected {expected}")
    return values
