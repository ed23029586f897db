"""What plugins return: each mistake is one sentence that names what was called, and the remedy."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from swe_core.api import agent_contract, contracts
from swe_core.api.agent import AgentContext, AgentExit, AgentSpec, HostTool
from swe_core.api.component import Component, Config
from swe_core.api.engine import ChatRequest, Completion, EngineSession
from swe_core.api.grader import Graded
from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import (
    AgentError,
    ConfigError,
    EngineError,
    EngineProtocolError,
    GraderError,
    PluginError,
    SandboxError,
    SweError,
    TaskError,
)
from swe_testing.records import make_task

Call = Callable[[], Any]
EMPTY: dict[str, str] = {}
WHO = "the agent 'mine' of the plugin 'my'"
SPEC, ONE = SandboxSpec(), make_task("one")
CONTEXT = AgentContext(make_task(), "p", "http://127.0.0.1:9/v1", "k", "m", "/testbed")
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "assets": (),
    "auxiliary": (ChatRequest({}, []),),
    "summary": (ChatRequest({}, []),),
    "parse_event": ("line",),
    "failure": (AgentExit(0, None, ""),),
}
WANTED = (ONE, b"", None, SPEC, 1.0)
ASKED = (ChatRequest({}, []), EngineSession("r", "t", 0, "a"), None)


class Mine(AgentSpec):
    name = "mine"

    def command(self, ctx: AgentContext) -> list[str]:
        return ["mine"]


class Wrong(BaseModel):
    pass


class Unprintable(int):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


async def value(given: Any = None) -> Any:
    return given


async def many() -> AsyncIterator[object]:
    yield ONE


def failing(*_: object) -> Iterator[object]:
    yield EMPTY["url"]


@asynccontextmanager
async def opening(spec: SandboxSpec) -> AsyncIterator[object]:
    yield "a sandbox"


TOOL = HostTool("tool", "", Config, value)


def field(**wrong: Any) -> Call:
    """The check of a component with that field."""
    return lambda: contracts.check_component(Component(**{"name": "a", "create": Mine, **wrong}))


def made(role: str, create: Any) -> Call:
    return lambda: contracts.create(Component("mine", create), Config(), role, WHO)


def tasks(give: Call) -> Call:
    return lambda: contracts.tasks_of(SimpleNamespace(tasks=give), "own")


def returned(method: str, value: object) -> Call:
    """What the contract makes of the value that an agent's method returns."""
    agent, arguments = Mine(), ARGUMENTS.get(method, (CONTEXT,))
    setattr(agent, method, lambda *_: value)
    return lambda: getattr(agent_contract, method)(agent, *arguments)


def called(check: Callable[..., Any], method: str, give: Call, *arguments: Any) -> Call:
    """The same for a plugin of another role."""
    return lambda: check(SimpleNamespace(**{method: lambda *_: give()}), *arguments)


async def opened(provider: Any) -> None:
    async with contracts.opened(provider, SPEC):
        raise AssertionError("it is open")


def agent_with(**wrong: Any) -> Callable[[Config], AgentSpec]:
    return lambda _: type("Mine", (Mine,), wrong)()


WRONG: list[tuple[type[SweError], Call, str]] = [
    (PluginError, field(name=3), "has the name 3, expected letters"),
    (PluginError, field(create="b"), "'a' has 'b' as create, expected a function"),
    (PluginError, field(create=value), "'a' has a create that is 'async def', expected a plain function"),
    (PluginError, field(config=Wrong), "the class Wrong as config, expected a subclass of swe_core.Config"),
    (PluginError, field(summary=None), "'a' has None as summary, expected a text"),
    (PluginError, field(defaults=["vllm"]), "has ['vllm'] as defaults, expected a dict"),
    # objects
    (PluginError, made("agent", lambda _: None), f"{WHO}: its create returned None, expected an object "),
    (PluginError, made("agent", lambda _: Mine), "returned the class Mine, expected an object whose class"),
    (PluginError, made("agent", lambda _: value()), "returned a coroutine, expected an object"),
    (PluginError, made("agent", agent_with(name=None)), "whose name is None, expected a text"),
    (PluginError, made("agent", agent_with(dialect="openai")),
     "whose dialect is 'openai', expected one of 'chat', 'responses'"),
    (PluginError, made("agent", lambda _: EMPTY["url"]), "cannot be created: KeyError: 'url' (test_contract"),
    (PluginError, made("engine", lambda _: Wrong()), "expected an object whose class extends swe_core.En"),
    (PluginError, made("sandbox", lambda _: SimpleNamespace(open=len, notes=len, list=len)),
     "with open(), notes(), list(), reap(); it lacks reap()"),
    (PluginError, made("tasks", lambda _: SimpleNamespace(tasks=len)), "without recording, expected the P"),
    (PluginError, made("tasks", lambda _: SimpleNamespace(tasks=len, recording="x")), "recording is 'x'"),
    (PluginError, made("worker", lambda _: Wrong()), "expected an object with 'async def run(self"),
    # tasks
    (TaskError, tasks(lambda: None), "the task source 'own' (types.SimpleNamespace) returned None from tas"),
    (TaskError, tasks(value), "returned a coroutine from tasks()"),
    (TaskError, tasks(lambda: "one"), "returned 'one' from tasks()"),
    (TaskError, tasks(lambda: [ONE, {}]), "{} as item 1 from tasks(), expected Tasks"),
    (TaskError, tasks(lambda: [ONE, ONE]), "gave 2 tasks with the id 'one'"),
    (TaskError, tasks(failing), "failed in tasks(): KeyError: 'url' (test_contracts.py, line "),
    # methods of an agent
    (AgentError, returned("command", "pi --help"), "Mine) returned 'pi --help' from command(), expected a li"
     "st of texts such as ['my-agent', '--print']"),
    (AgentError, returned("command", []), "returned [] from command()"),
    (AgentError, returned("command", ["pi", 1]), "returned 1 as item 1 from command()"),
    (AgentError, returned("assets", "bundle"), "returned 'bundle' from assets(), expected a list of Assets"),
    (AgentError, returned("env", ["A=b"]), "a value of the type list from env(), expected a dict"),
    (AgentError, returned("env", {"PORT": 8080}), "value of the type int as item 'PORT' from env(), ex"),
    (AgentError, returned("files", {"/c": "{}"}), "value of the type str as item '/c' from files(), expecte"),
    (AgentError, returned("stdin", "prompt"), "returned 'prompt' from stdin(), expected bytes or None"),
    (AgentError, returned("tools", [len]), "returned the function len as item 0 from tools()"),
    (AgentError, returned("auxiliary", True), "returned True from auxiliary(), expected a text or None"),
    (AgentError, returned("summary", "yes"), "returned 'yes' from summary(), expected True or False"),
    (AgentError, returned("parse_event", None), "from parse_event(), expected a list such as [AgentEvent("),
    (AgentError, returned("failure", 1), "returned 1 from failure(), expected a text or None"),
    # what runs for each rollout
    (GraderError, called(contracts.grade_patch, "grade", lambda: True, *WANTED),
     "returned True from grade(), expected 'async def grade'"),
    (GraderError, called(contracts.grade_patch, "grade", value, *WANTED),
     "returned None from grade(), expected a Graded: return Graded(grade=Grade(…))"),
    (EngineProtocolError, called(contracts.complete, "complete", lambda: "hello", *ASKED),
     "returned 'hello' from complete(), expected 'async def co"),
    (EngineProtocolError, called(contracts.complete, "complete", lambda: value("hello"), *ASKED),
     "returned 'hello' from complete(), expected a Completion"),
    (EngineProtocolError, called(contracts.complete, "complete", lambda: value(Completion("hello")), *ASKED),  # type: ignore[arg-type]  # wrong on purpose
     "a Completion with the message 'hello' "),
    (SandboxError, called(opened, "open", many), "returned an async generator from open(), expected an async "
     "context manager: write @asynccontextmanager above 'async def open', and 'yield' the sandbox"),
    (SandboxError, called(opened, "open", asynccontextmanager(value)), "returned a coroutine from open()"),  # type: ignore[arg-type]  # wrong on purpose
    (SandboxError, called(opened, "open", lambda: opening(SPEC)), "'a sandbox' from open(), expected to "),
    # what a run calls once
    (PluginError, called(contracts.notes_of, "notes", lambda: "not isolated"),
     "returned 'not isolated' from notes(), expected a list of sentences"),
    (SandboxError, called(contracts.reap, "reap", lambda: 0), "0 from reap(), expected 'async def reap'"),
    (SandboxError, called(contracts.reap, "reap", lambda: value("3")), "expected the number of sandboxes"),
    (EngineError, called(contracts.check, "check", lambda: EMPTY["url"]), "in check(): KeyError: 'url'"),
    (PluginError, called(contracts.run_worker, "run", lambda: 1, None),
     "returned 1 from run(), expected 'async def run'"),
]  # fmt: skip


async def test_mistake_of_a_plugin_is_one_sentence() -> None:
    async def done(call: Call) -> None:
        if inspect.isawaitable(given := call()):
            await given

    for error, call, says in WRONG:
        with pytest.raises(error) as raised:
            await done(call)
        assert raised.type is error, says
        assert says in str(raised.value)


async def test_what_a_contract_asks_for_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TypeAdapter, "__init__", None)  # each call would pay for a new one, and may keep it
    for method, given, expected in (
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
        assert returned(method, given)() == expected
    two = [make_task("b"), make_task("a")]
    assert tasks(lambda: iter(two))() == two
    assert await called(contracts.reap, "reap", value)() == 0
    completion = Completion({"role": "assistant", "content": "hello"})
    assert await called(contracts.complete, "complete", lambda: value(completion), *ASKED)() is completion


async def test_error_that_a_plugin_raises_on_purpose_is_unchanged_and_another_is_named() -> None:
    async def grade(*_: object) -> Graded:
        raise error

    def create(config: Config) -> object:
        raise ConfigError("set my key")

    with pytest.raises(ConfigError, match=r"^set my key$"):
        made("agent", create)()
    grader: Any = SimpleNamespace(grade=grade)
    error: Exception = SandboxError("it died")
    with pytest.raises(SandboxError, match=r"^it died$"):
        await contracts.grade_patch(grader, *WANTED)  # type: ignore[arg-type]  # of stand-ins
    error = ValueError("no log")
    with pytest.raises(GraderError, match=r"failed in grade\(\): ValueError: no log \(test_contracts\.py"):
        await contracts.grade_patch(grader, *WANTED)  # type: ignore[arg-type]  # of stand-ins
    with pytest.raises(AgentError, match=r"mine failed in command\(\): SystemExit: no key"):
        with contracts.calling(AgentError, "mine", "command"):
            sys.exit("no key")


def test_shown_values_are_short_and_the_same_in_each_run() -> None:
    assert contracts.shown(["x"] * 1000).endswith("… (a list)")
    assert len(contracts.shown("x" * 1000)) < 200
    assert "0x" not in contracts.shown(Wrong())
    assert contracts.shown([Unprintable()]) == "a list"
    assert contracts.shown(name for name in EMPTY) == "a generator"
