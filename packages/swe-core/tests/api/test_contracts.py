"""What plugins return: each mistake is one sentence that names what was called, and the remedy.

The mistakes are deliberate; `type: ignore` is beside those that mypy would find.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from swe_core.api import agent_contract, contracts
from swe_core.api.agent import AgentContext, AgentExit, AgentSpec, HostTool
from swe_core.api.component import Component, Config
from swe_core.api.engine import ChatRequest, Completion, Engine, EngineSession
from swe_core.api.grader import Grade, Graded
from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import (
    AgentError,
    ConfigError,
    EngineError,
    GraderError,
    PluginError,
    SandboxError,
    TaskError,
)
from swe_testing.records import make_task

EMPTY: dict[str, str] = {}
WHO = "the agent 'mine' of the plugin 'my'"


class Mine(AgentSpec):
    name = "mine"

    def command(self, ctx: AgentContext) -> list[str]:
        return ["mine"]


class Answering(Engine):
    model = "m"

    async def complete(self, *args: object) -> Completion:
        return Completion({"role": "assistant", "content": "hello"})


class Wrong(BaseModel):
    pass


async def later(config: Config) -> None: ...


class Unprintable(int):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


# components


@pytest.mark.parametrize(
    ("component", "says"),
    [
        (Component(3, lambda config: 1), "has the name 3, expected letters"),  # type: ignore[arg-type]
        (Component("my agent", lambda config: 1), "has the name 'my agent', expected letters"),
        (Component("a", "b"), "'a' has 'b' as create, expected a function"),  # type: ignore[arg-type]
        (Component("a", later), "'a' has a create that is 'async def', expected a plain function"),
        (Component("a", Mine, Wrong), "the class Wrong as config, expected a subclass of swe_core.Config"),  # type: ignore[arg-type]
        (Component("a", Mine, Config, None), "'a' has None as summary, expected a text"),  # type: ignore[arg-type]
        (Component("a", Mine, defaults=["vllm"]), "has ['vllm'] as defaults, expected a dict"),  # type: ignore[arg-type]
    ],
)
def test_field_of_a_component_with_a_wrong_type_is_named(component: Component[Any], says: str) -> None:
    with pytest.raises(PluginError, match=re.escape(says)):
        contracts.check_component(component)


class Provider:
    def open(self, spec: SandboxSpec) -> object:
        return None

    def notes(self) -> object:
        return ()

    async def list(self) -> object:
        return ()


class Source:
    def tasks(self) -> Iterator[object]:
        yield from ()


def missing_name(config: Config) -> AgentSpec:
    class Nameless(AgentSpec):
        def command(self, ctx: AgentContext) -> list[str]:
            return ["true"]

    return Nameless()


def dialect(config: Config) -> AgentSpec:
    mine = Mine()
    mine.dialect = "openai"  # type: ignore[assignment]
    return mine


def recorded(config: Config) -> object:
    source = Source()
    source.recording = "replies.jsonl"  # type: ignore[attr-defined]
    return source


async def coroutine() -> None: ...


def broken(config: Config) -> object:
    raise RuntimeError("no such luck")


@pytest.mark.parametrize(
    ("role", "create", "says"),
    [
        ("agent", lambda config: None, "returned None, expected an AgentSpec: return it"),
        ("agent", lambda config: Mine, "returned the class Mine, expected an object: call the class, Mine("),
        ("agent", lambda config: Wrong(), "an object of the class Wrong, expected an AgentSpec, whose class"),
        ("agent", lambda config: coroutine(), "returned a coroutine, expected an AgentSpec"),
        ("agent", missing_name, "whose name is None, expected a text: write name = 'mine' in its class"),
        ("agent", dialect, "whose dialect is 'openai', expected one of 'chat', 'responses', 'messages', "),
        ("agent", broken, "cannot be created: RuntimeError: no such luck (test_contracts.py, line "),
        ("agent", lambda: Mine(), "its create takes other arguments than the settings alone, expected a "),
        ("agent", AgentSpec, "its create takes other arguments"),
        ("engine", lambda config: Provider(), "an object of the class Provider, expected an Engine, whose "),
        ("sandbox", lambda config: Provider(), "with open(), notes(), list(), reap(); it lacks reap()"),
        ("tasks", lambda config: Source(), "without recording, expected the Path of recorded replies, or "),
        ("tasks", recorded, "whose recording is 'replies.jsonl', expected the Path"),
        ("worker", lambda config: Provider(), "expected a worker: an object with 'async def run(self, runn"),
    ],
)  # fmt: skip
def test_object_that_does_not_fill_its_role_is_named(role: str, create: Any, says: str) -> None:
    with pytest.raises(PluginError) as raised:
        contracts.create(Component("mine", create), Config(), role, WHO)
    assert str(raised.value).startswith(WHO)
    assert says in str(raised.value)


def test_error_that_a_plugin_raises_on_purpose_is_unchanged() -> None:
    def create(config: Config) -> object:
        raise ConfigError("set my key")

    with pytest.raises(ConfigError, match=r"^set my key$"):
        contracts.create(Component("mine", create), Config(), "agent", WHO)


def test_shown_values_are_short_and_the_same_in_each_run() -> None:
    assert contracts.shown(["x"] * 1000).endswith("… (a list)")
    assert len(contracts.shown("x" * 1000)) < 200
    assert "0x" not in contracts.shown(Wrong())
    assert contracts.shown([Unprintable()]) == "a list"
    assert contracts.shown(name for name in EMPTY) == "a generator"


# tasks


def source(tasks: Any) -> Any:
    class Given:
        recording: Path | None = None

    Given.tasks = tasks  # type: ignore[attr-defined]
    return Given()


def failing(self: object) -> Iterator[object]:
    yield EMPTY["instance_id"]


def repeated(self: object) -> Iterator[object]:
    yield make_task("one")
    yield make_task("one")


async def asynchronous(self: object) -> AsyncIterator[object]:
    yield make_task("one")


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        (lambda self: None, "returned None from tasks(), expected Tasks: 'yield' each of them"),
        (lambda self: coroutine(), "returned a coroutine from tasks()"),
        (asynchronous, "returned an async generator from tasks()"),
        (lambda self: "one", "returned 'one' from tasks()"),
        (lambda self: make_task("one"), "returned an object of the class Task from tasks()"),
        (lambda self: [make_task("one"), {}], "gave {} as task 1 from tasks(), expected a Task: Task.mod"),
        (repeated, "gave two tasks with the id 'one'"),
        (failing, "failed in tasks(): KeyError: 'instance_id' (test_contracts.py, line "),
    ],
)  # fmt: skip
def test_tasks_of_a_source_that_are_none_are_named(tasks: Any, says: str) -> None:
    with pytest.raises(TaskError) as raised:
        contracts.tasks_of(source(tasks), "own")
    assert str(raised.value).startswith("the task source 'own' (")
    assert says in str(raised.value)


def test_tasks_of_a_source_keep_their_order() -> None:
    tasks = [make_task("b"), make_task("a")]
    assert contracts.tasks_of(source(lambda self: iter(tasks)), "own") == tasks


# the methods of an agent


ARGUMENTS: dict[str, Any] = {
    "auxiliary": ChatRequest({}, []),
    "summary": ChatRequest({}, []),
    "parse_event": "line",
    "failure": AgentExit(0, None, ""),
}
CONTEXT = AgentContext(make_task(), "p", "http://127.0.0.1:9/v1", "k", "m", "/testbed")
TOOL = HostTool("tool", "", Config, lambda arguments: coroutine())  # type: ignore[arg-type,return-value]


def returned(method: str, value: object) -> object:
    """What the contract makes of the value that an agent's method returns."""
    agent = Mine()
    setattr(agent, method, lambda *args: value)
    return getattr(agent_contract, method)(agent, ARGUMENTS.get(method, CONTEXT))


@pytest.mark.parametrize(
    ("method", "value", "says"),
    [
        ("command", "pi --help", "returned 'pi --help' from command(), expected a list of texts such as "
         "['pi', '--help']"),
        ("command", None, "returned None from command(), expected a list of texts such as ['my-agent', "),
        ("command", [], "returned [] from command()"),
        ("command", ["pi", 1], "returned 1 as item 1 from command()"),
        ("env", ["A=b"], "returned a list from env(), expected a dict"),
        ("env", {"PORT": 8080}, "returned an int for 'PORT' from env(), expected texts"),
        ("files", {"config.json": b""}, "returned the path 'config.json' from files(), expected an absolute"),
        ("files", {"/c": "{}"}, "returned a str for '/c' from files(), expected bytes: write .encode()"),
        ("files", [("/c", b"")], "from files(), expected a dict"),
        ("stdin", "prompt", "returned 'prompt' from stdin(), expected bytes or None: write .encode()"),
        ("tools", TOOL, "an object of the class HostTool from tools(), expected a list of HostTools"),
        ("tools", [len], "returned the function len as item 0 from tools()"),
        ("auxiliary", True, "returned True from auxiliary(), expected a text or None"),
        ("summary", "yes", "returned 'yes' from summary(), expected True or False"),
        ("parse_event", None, "returned None from parse_event(), expected a list such as [AgentEvent("),
        ("parse_event", ["text"], "returned 'text' as item 0 from parse_event()"),
        ("failure", 1, "returned 1 from failure(), expected a text or None"),
    ],
)  # fmt: skip
def test_value_of_an_agents_method_with_a_wrong_type_is_named(method: str, value: object, says: str) -> None:
    with pytest.raises(AgentError) as raised:
        returned(method, value)
    assert str(raised.value).startswith("the agent 'mine' (")
    assert says in str(raised.value)


def test_value_of_an_agents_method_is_returned() -> None:
    for method, value, expected in (
        ("command", ("pi", "--help"), ["pi", "--help"]),
        ("env", {}, {}),
        ("files", {"/c": b"{}"}, {"/c": b"{}"}),
        ("stdin", None, None),
        ("tools", (TOOL,), [TOOL]),
        ("auxiliary", "title", "title"),
        ("summary", True, True),
        ("parse_event", (), []),
        ("failure", None, None),
    ):
        assert returned(method, value) == expected


def test_single_asset_is_named() -> None:
    mine = Mine()
    mine.assets = lambda: "bundle"  # type: ignore[assignment,method-assign,return-value]
    with pytest.raises(AgentError, match=r"returned 'bundle' from assets\(\), expected a list of Assets"):
        agent_contract.assets(mine)


def test_failing_method_of_an_agent_is_named_with_its_line() -> None:
    class Failing(Mine):
        def command(self, ctx: AgentContext) -> list[str]:
            return [EMPTY["program"]]

    says = r"'mine' \(.*Failing\) failed in command\(\): KeyError: 'program' \(test_contracts\.py, line \d+\)"
    with pytest.raises(AgentError, match=says):
        agent_contract.command(Failing(), CONTEXT)


# what runs for each rollout


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (True, "returned True from grade(), expected a Graded from an async function: write 'async def gr"),
        (coroutine, "returned None from grade(), expected a Graded: return Graded(grade=Grade(resolved="),
        (Grade(resolved=True), "an object of the class Grade from grade(), expected a Graded: return Gra"),
    ],
)  # fmt: skip
async def test_grader_that_gives_no_grade_is_named(given: Any, says: str) -> None:
    async def grading() -> object:
        return given

    class Given:
        def grade(self, *args: object) -> object:
            return grading() if isinstance(given, Grade) else given() if callable(given) else given

    with pytest.raises(GraderError) as raised:
        await contracts.grade_patch(Given(), make_task(), b"", Provider(), SandboxSpec(), 1.0)  # type: ignore[arg-type]
    assert says in str(raised.value)


@pytest.mark.anyio
async def test_failing_grader_is_named_and_its_own_errors_are_not_changed() -> None:
    class Given:
        error: Exception = ValueError("no log")

        async def grade(self, *args: object) -> Graded:
            raise self.error

    grader: Any = Given()
    arguments: Any = (make_task(), b"", Provider(), SandboxSpec(), 1.0)
    with pytest.raises(GraderError, match=r"Given failed in grade\(\): ValueError: no log \(test_contracts"):
        await contracts.grade_patch(grader, *arguments)
    grader.error = SandboxError("it died")
    with pytest.raises(SandboxError, match=r"^it died$"):
        await contracts.grade_patch(grader, *arguments)


async def answered(given: Any) -> Completion:
    class Given(Answering):
        def complete(self, *args: object) -> Any:
            return given

    return await contracts.complete(Given(), ChatRequest({}, []), EngineSession("r", "t", 0, "a"), None)


async def value(given: Any) -> Any:
    return given


@pytest.mark.anyio
async def test_engine_that_gives_no_completion_is_named() -> None:
    for given, says in (
        ("hello", "returned 'hello' from complete(), expected a Completion from an as"),
        (value("hello"), "returned 'hello' from complete(), expected a Completion: return Co"),
        (value(Completion("hello")), "a Completion with the message 'hello' "),  # type: ignore[arg-type]
    ):
        with pytest.raises(EngineError, match=re.escape(says)):
            await answered(given)
    completion = Completion({"role": "assistant", "content": "hello"})
    assert await answered(value(completion)) is completion


@asynccontextmanager
async def opening(spec: SandboxSpec) -> AsyncIterator[object]:
    yield "a sandbox"


@asynccontextmanager  # type: ignore[arg-type]  # the mistake of the test: no 'yield'
async def unyielding(spec: SandboxSpec) -> object:
    return "a sandbox"


async def undecorated(spec: SandboxSpec) -> AsyncIterator[object]:
    yield "a sandbox"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("open_", "says"),
    [
        (undecorated, "returned an async generator from open(), expected an async context manager: write "
         "@asynccontextmanager above 'async def open', and 'yield' the sandbox"),
        (unyielding, "returned a coroutine from open()"),
        (lambda spec: None, "returned None from open()"),
        (opening, "gave 'a sandbox' from open(), expected a Sandbox"),
    ],
)  # fmt: skip
async def test_provider_that_gives_no_sandbox_is_named(open_: Any, says: str) -> None:
    provider: Any = Provider()
    provider.open = open_
    with pytest.raises(SandboxError) as raised:
        async with contracts.opened(provider, SandboxSpec()):
            raise AssertionError("it is open")
    assert says in str(raised.value)


# what a run calls once


def test_exit_of_a_plugin_is_an_error_of_its_method() -> None:
    with pytest.raises(AgentError, match=r"mine failed in command\(\): SystemExit: no key"):
        with contracts.calling(AgentError, "mine", "command"):
            sys.exit("no key")


@pytest.mark.anyio
async def test_other_values_of_providers_and_engines_are_named() -> None:
    provider: Any = Provider()
    provider.notes = lambda: "not isolated"
    with pytest.raises(PluginError, match=r"returned 'not isolated' from notes\(\), expected a list of sen"):
        contracts.notes_of(provider)
    provider.reap = lambda: 0
    with pytest.raises(SandboxError, match=r"returned 0 from reap\(\), expected a number from an async fu"):
        await contracts.reap(provider)
    provider.reap = lambda: value(None)
    assert await contracts.reap(provider) == 0
    provider.reap = lambda: value("3")
    with pytest.raises(SandboxError, match=r"returned '3' from reap\(\), expected the number of sandboxes"):
        await contracts.reap(provider)
    engine: Any = Answering()
    engine.check = lambda: EMPTY["url"]
    with pytest.raises(EngineError, match=r"failed in check\(\): KeyError: 'url'"):
        await contracts.check(engine)
    worker: Any = Provider()
    worker.run = lambda runner: 1
    with pytest.raises(PluginError, match=r"returned 1 from run\(\), expected an async function: write 'as"):
        await contracts.run_worker(worker, worker)
