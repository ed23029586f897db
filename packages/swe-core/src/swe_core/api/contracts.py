"""What plugins return, compared with the contracts of their roles.

Each error is one sentence: what was called, what it returned, and what was expected. The checks run per
component, rollout, LLM call or line of output, never per token. Those of an agent are in `agent_contract`.
"""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, InstanceOf, StrictInt, StrictStr, TypeAdapter, ValidationError

from swe_core.api.agent import AgentSpec, DialectName
from swe_core.api.component import Component, Config
from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession
from swe_core.api.executor import Executor
from swe_core.api.grader import Graded, Grader
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

T = TypeVar("T")

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

_NAMED = TypeAdapter[Any](Annotated[StrictStr, Field(min_length=1)])
_MAPPING = TypeAdapter[Any](Mapping[Any, Any])
_FIELDS: Mapping[str, tuple[TypeAdapter[Any], str]] = {
    "create": (TypeAdapter(Callable[..., Any]), "a function of the settings, such as lambda config: Mine()"),
    "config": (TypeAdapter(type[Config]), "a subclass of swe_core.Config, not an object of it"),
    "summary": (TypeAdapter(StrictStr), "a text"),
    "defaults": (_MAPPING, "a dict"),
    "settings": (_MAPPING, "a dict"),
}
_CLASSES: Mapping[str, type] = {"agent": AgentSpec, "engine": Engine, "executor": Executor}
_METHODS: Mapping[str, Sequence[str]] = {
    "sandbox": ("open", "notes", "list", "reap"),
    "grader": ("grade",),
    "tasks": ("tasks",),
}
"""Role → the methods of its contract, where that is no class to extend."""
_ATTRIBUTES: Mapping[str, Mapping[str, tuple[TypeAdapter[Any], str]]] = {
    "agent": {
        "name": (_NAMED, "a text"),
        "dialect": (
            TypeAdapter(DialectName | None),
            f"one of {', '.join(map(repr, get_args(DialectName)))}, or None",
        ),
    },
    "engine": {"model": (_NAMED, "a text")},
    "tasks": {"recording": (TypeAdapter(InstanceOf[Path] | None), "the Path of recorded replies, or None")},
}


def check_component(component: Component[Any]) -> None:
    """Check the fields of a component.

    Raises:
        PluginError: A field has another type than its declaration, or `create` is `async def`.
    """
    name = component.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PluginError(
            f"a Component has the name {shown(name)}, expected letters, digits, '-' and '_', such as 'mine'"
        )
    for field, (of, expected) in _FIELDS.items():
        value = getattr(component, field)
        if not _is(value, of):
            raise PluginError(f"the Component {name!r} has {shown(value)} as {field}, expected {expected}")
    if inspect.iscoroutinefunction(component.create):
        raise PluginError(
            f"the Component {name!r} has a create that is 'async def', expected a plain function"
        )


def create(component: Component[Any], config: Config, role: str, who: str) -> Any:
    """Create a component's object, and compare it with the contract of the role.

    Args:
        who: The component in a sentence, such as "the agent 'mine' of the plugin 'my'".

    Raises:
        SweError: `create` raised it.
        PluginError: `create` raised any other exception, or the object does not fill the role.
    """
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
    if role in _CLASSES:
        if not isinstance(created, _CLASSES[role]):
            return f"expected an object whose class extends swe_core.{_CLASSES[role].__name__}"
    elif role == "worker":
        if not (_has(created, "run") or _has(created, "launch")):
            return "expected an object with 'async def run(self, runner)', or a Launcher"
    elif missing := [name for name in _METHODS[role] if not _has(created, name)]:
        return f"expected an object with {_listed(_METHODS[role])}; it lacks {_listed(missing)}"
    for name, (of, expected) in _ATTRIBUTES.get(role, {}).items():
        if not hasattr(created, name):
            return f"without {name}, expected {expected}"
        if not _is(value := getattr(created, name), of):
            return f"whose {name} is {shown(value)}, expected {expected}"
    return ""


def _has(created: object, name: str) -> bool:
    return not isinstance(created, type) and callable(getattr(created, name, None))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{name}()" for name in names)


# what a run calls once

_NOTES = TypeAdapter(list[StrictStr])
_COUNT = TypeAdapter[int | None](StrictInt | None)
_TASKS = TypeAdapter(list[InstanceOf[Task]])


def notes_of(plugin: SandboxProvider | Engine) -> list[str]:
    """Return the notes of a sandbox provider or an engine. Errors are `PluginError`s."""
    who = class_of(plugin)
    with calling(PluginError, who, "notes"):
        return checked(plugin.notes(), _NOTES, PluginError, who, "notes", "a list of sentences")


async def reap(provider: SandboxProvider) -> int:
    """Destroy the sandboxes of runs that have ended; see `SandboxProvider.reap`."""
    who, expected = f"the sandbox provider {class_of(provider)}", "the number of sandboxes, such as 0"
    with calling(SandboxError, who, "reap"):
        given = await _awaited(provider.reap(), SandboxError, who, "reap")
        return checked(given, _COUNT, SandboxError, who, "reap", expected) or 0


async def check(engine: Engine) -> None:
    """Check that an engine can serve a run; see `Engine.check`. Errors are `EngineError`s."""
    who = f"the engine {class_of(engine)}"
    with calling(EngineError, who, "check"):
        await _awaited(engine.check(), EngineError, who, "check")


async def run_worker(worker: RolloutWorker, runner: RolloutRunner) -> None:
    """Let a worker drive a run; see `RolloutWorker.run`.

    Raises:
        PluginError: `run()` is not 'async def'.
        Exception: `run()` raised it.
    """
    await _awaited(worker.run(runner), PluginError, f"the worker {class_of(worker)}", "run")


def tasks_of(source: TaskSource, name: str) -> list[Task]:
    """Return the tasks of a source, whose ids are unique. Errors are `TaskError`s."""
    who = f"the task source {name!r} ({class_of(source)})"
    with calling(TaskError, who, "tasks"):
        tasks = checked(source.tasks(), _TASKS, TaskError, who, "tasks", "Tasks")
    for task_id, count in Counter(task.instance_id for task in tasks).items():
        if count > 1:
            raise TaskError(
                f"{who} gave {count} tasks with the id {task_id!r} from tasks(), expected unique ids"
            )
    return tasks


# what runs for each rollout

_SANDBOX = TypeAdapter[Sandbox](InstanceOf[Sandbox])
_GRADED = TypeAdapter[Graded](InstanceOf[Graded])
_COMPLETION = TypeAdapter[Completion](InstanceOf[Completion])


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
        yield checked(sandbox, _SANDBOX, SandboxError, who, "open", "to yield a swe_core.Sandbox")


async def grade_patch(
    grader: Grader, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
) -> Graded:
    """Grade a patch; see `Grader.grade`. Errors are `GraderError`s."""
    who = f"the grader {class_of(grader)}"
    with calling(GraderError, who, "grade"):
        given = grader.grade(task, patch, provider, spec, timeout)
        graded = await _awaited(given, GraderError, who, "grade")
    return checked(graded, _GRADED, GraderError, who, "grade", "a Graded: return Graded(grade=Grade(…))")


async def complete(
    engine: Engine, request: ChatRequest, session: EngineSession, emit: Emit | None
) -> Completion:
    """Answer a request; see `Engine.complete`.

    Raises:
        EngineError: `complete` raised another exception than a `SweError`.
        EngineProtocolError: It returned something else.
    """
    who, expected = f"the engine {class_of(engine)}", "a Completion"
    with calling(EngineError, who, "complete"):
        given = engine.complete(request, session, emit)
        completion = await _awaited(given, EngineProtocolError, who, "complete")
    completion = checked(completion, _COMPLETION, EngineProtocolError, who, "complete", expected)
    if not isinstance(completion.message, dict):
        raise EngineProtocolError(
            f"{who} returned a Completion with the message {shown(completion.message)} from complete(), "
            "expected a dict such as {'role': 'assistant', 'content': text}"
        )
    return completion


# values


async def _awaited(given: object, error: type[SweError], who: str, method: str) -> object:
    if not inspect.isawaitable(given):
        raise error(f"{who} returned {shown(given)} from {method}(), expected 'async def {method}'")
    return await given


def _is(value: object, of: TypeAdapter[Any]) -> bool:
    try:
        of.validate_python(value)
    except ValidationError:
        return False
    return True


def checked(
    value: object,
    of: TypeAdapter[T],
    error: type[SweError],
    who: str,
    method: str,
    expected: str,
    show: Callable[[object], str] = shown,
) -> T:
    """Return what a plugin's method returned, if it is of the type `of`.

    Args:
        of: Made once, as it takes a millisecond.
        expected: What the method should return, for the sentence.
        show: Puts a value into words. The values of some methods are secrets.

    Raises:
        SweError: It is of another type. It is an `error`.
    """
    if isinstance(value, Iterator):
        value = list(value)  # pydantic would hide what a generator raises
    try:
        return of.validate_python(value)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False)[0]
        place = f" as item {first['loc'][0]!r}" if first["loc"] else ""
        raise error(
            f"{who} returned {show(first['input'])}{place} from {method}(), expected {expected}"
        ) from None
