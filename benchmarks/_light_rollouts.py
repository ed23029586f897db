"""A one-file plugin of rollouts that cost next to nothing, so that what drives them can be measured.

    agent `talk`       asks the model `calls` times, `pause` seconds apart, with the task's prompt
    sandbox `here`     none: the agent is a coroutine of the rollouts' process, the repository is not there
    grader `coin`      resolved or not, at random
    tasks `statements` a JSON list of problem statements

The agent's HTTP is written by hand: it is on the side that is measured, but no part of it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from swe_core import AgentContext, AgentSpec, Component, hookimpl
from swe_core.api.component import Config
from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.sandbox import (
    HOME_DIR,
    Process,
    Sandbox,
    SandboxEntry,
    SandboxProvider,
    SandboxSpec,
    Stream,
)
from swe_core.api.task import Task, TaskSource

_TALK = "talk"
_COMMIT = "0" * 40


class TalkConfig(Config):
    """How much the agent talks."""

    calls: int = 1
    pause: float = 0.0


class Talk(AgentSpec):
    """Asks, and takes no notice of the answers."""

    name = _TALK

    def __init__(self, config: TalkConfig) -> None:
        self._config = config

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return [_TALK, ctx.base_url, ctx.api_key, str(self._config.calls), str(self._config.pause)]

    def stdin(self, ctx: AgentContext) -> bytes:
        messages = [{"role": "user", "content": ctx.prompt}]
        return json.dumps({"model": ctx.model, "messages": messages}).encode()


class _Said(Process):
    """A command that has ended well."""

    def __init__(self, stdout: bytes) -> None:
        self._stdout = stdout

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        if self._stdout:
            yield "stdout", self._stdout

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None:
        """It has ended."""


class _Talking(Process):
    """The agent, which talks while its output is read."""

    def __init__(self, url: str, key: str, calls: int, pause: float, body: bytes) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self._calls, self._pause = calls, pause
        head = (
            f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._code = 0

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            for number in range(self._calls):
                if number:
                    await asyncio.sleep(self._pause)
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                (length,) = (int(line[15:]) for line in lines if line.startswith(b"content-length:"))
                body = await reader.readexactly(length)
                if b" 200 " not in lines[0]:
                    self._code = 1
                    yield "stderr", body
                    return
        finally:
            writer.close()

    async def wait(self) -> int:
        return self._code

    async def kill(self) -> None:
        """It talks only while it is listened to."""


class _Here(Sandbox):
    """Says to the scripts that record a base and export a patch what they want to hear."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.id = "here"
        self.spec = spec

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        if argv[0] == _TALK:
            _, url, key, calls, pause = argv
            return _Talking(url, key, int(calls), float(pause), stdin or b"")
        if argv[-2:] == [self.spec.workdir, HOME_DIR]:
            return _Said(f"{_COMMIT}\n{_COMMIT}\n{self.spec.workdir}\n/store\n/objects\n".encode())
        return _Said(b"")  # nothing was changed

    async def kill_all(self) -> None:
        """Nothing runs."""

    @asynccontextmanager
    async def reach(self, endpoint: str) -> AsyncIterator[str]:
        yield endpoint


class Here:
    """Opens what is no sandbox."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        yield _Here(spec)

    def notes(self) -> Sequence[str]:
        return ()

    async def list(self) -> Sequence[SandboxEntry]:
        return ()

    async def reap(self) -> int:
        return 0


class Coin:
    """A verdict at random."""

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        return Graded(grade=Grade(resolved=random.random() < 0.5))


class StatementsConfig(Config):
    """Where they are."""

    file: Path


class Statements:
    """Tasks of which nothing but the statement counts."""

    recording: Path | None = None

    def __init__(self, config: StatementsConfig) -> None:
        self._file = config.file

    def tasks(self) -> Iterator[Task]:
        for number, statement in enumerate(json.loads(self._file.read_bytes())):
            yield Task(
                instance_id=f"statement-{number}",
                repo="none",
                base_commit=_COMMIT,
                problem_statement=statement,
                patch="",
                test_patch="",
                fail_to_pass=("test",),
                pass_to_pass=(),
                test_command="true",
            )


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component(_TALK, Talk, TalkConfig)]


@hookimpl
def swe_sandboxes() -> Iterable[Component[SandboxProvider]]:
    return [Component("here", lambda config: Here())]


@hookimpl
def swe_graders() -> Iterable[Component[Grader]]:
    return [Component("coin", lambda config: Coin())]


@hookimpl
def swe_tasks() -> Iterable[Component[TaskSource]]:
    return [Component("statements", Statements, StatementsConfig)]
