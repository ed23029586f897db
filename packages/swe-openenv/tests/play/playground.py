"""A real OpenEnv server in a thread of the test's process: demo tasks, a shell in a sandbox, a reward."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import uvicorn
from anyio.from_thread import start_blocking_portal
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

from swe_core.api.sandbox import Sandbox, SandboxSpec
from swe_core.api.task import Task
from swe_core.builtin.demo.source import DemoSource
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import SandboxError
from swe_core.system.detached import held

RewardPlace = Literal["observation", "result", "nowhere"]
Shell = Callable[[Sandbox, str], Awaitable[Any]]


async def plain(sandbox: Sandbox, command: str) -> str:
    """Run a command as most tools do: both streams in one text."""
    done = await sandbox.exec(["bash", "-c", command])
    return (done.stdout + done.stderr).decode(errors="replace")


@dataclass
class Playground:
    """What the environments of one server share.

    Args:
        shell: Runs the commands of the tool `bash`.
        reward: Where the reward of `submit` is.
        spec: Changes the public facts of a task.
        judge: Gives the reward of a repository; None runs the task's own tests.
    """

    shell: Shell = plain
    reward: RewardPlace = "observation"
    spec: Callable[[dict[str, Any]], Any] = dict
    judge: Callable[[Sandbox], Awaitable[Any]] | None = None
    has_submit: bool = True
    ends: bool = True
    """Whether a reward ends the episode."""
    starting: Callable[[], Awaitable[None]] | None = None
    """Waited for at each reset."""
    open: set[str] = field(default_factory=set)
    """Sandboxes of open episodes."""
    resets: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Sandbox and tool of each call."""


@cache
def demo_tasks() -> tuple[Task, ...]:
    """The tasks of the demo."""
    return tuple(DemoSource().tasks())


class DemoEnvironment(MCPEnvironment):  # type: ignore[misc]  # openenv has no types
    """One episode: a private copy of a demo repository, the tools `bash` and `submit`."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, ground: Playground) -> None:
        tools = FastMCP("demo")
        self._ground = ground
        self._stack = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._reward: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task = demo_tasks()[0]

        @tools.tool()
        async def bash(command: str, login: bool = False) -> Any:
            """Run a command."""
            ground.calls.append((self._opened().id, "bash"))
            return await ground.shell(self._opened(), command)

        if ground.has_submit:

            @tools.tool()
            async def submit() -> Any:
                """End the task."""
                ground.calls.append((self._opened().id, "submit"))
                judge = ground.judge or self._judge
                reward = await judge(self._opened())
                self._reward = reward if ground.reward == "observation" else None
                return {"reward": reward} if ground.reward == "result" else {"said": "thank you"}

        super().__init__(tools)

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, split: str = "", index: int = 0
    ) -> Observation:
        self._loop = asyncio.get_running_loop()
        if self._ground.starting is not None:
            await self._ground.starting()
        self._ground.resets.append({"split": split, "index": index})
        self._task = demo_tasks()[index]
        spec = SandboxSpec(repository=self._task.repository)
        opening = held(LocalProvider().open(spec), "the sandbox", 60, SandboxError)
        self._sandbox = await self._stack.enter_async_context(opening)
        self._ground.open.add(self._sandbox.id)
        return Observation()

    def reset(self, **more: Any) -> Observation:
        raise NotImplementedError

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        seen = await super().step_async(action, timeout_s, **more)
        seen.reward, seen.done = self._reward, self._ground.ends and self._reward is not None
        return seen

    def _step_impl(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State()

    def close(self) -> None:
        if self._loop is not None and self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result()
            self._ground.open.discard(sandbox.id)
        super().close()

    def _opened(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("reset first")
        return self._sandbox

    async def _judge(self, sandbox: Sandbox) -> float:
        """Run the task's own tests."""
        await sandbox.exec(["git", "checkout", "HEAD", "--", "tests"])
        patch = self._task.test_patch.encode()
        applied = await sandbox.exec(["git", "apply", "-"], stdin=patch)
        tests = [*self._task.fail_to_pass, *self._task.pass_to_pass]
        done = await sandbox.exec(["python", "-m", "pytest", "-q", *tests])
        return 1.0 if (applied.exit_code, done.exit_code) == (0, 0) else 0.0

    def list_splits(self) -> list[str]:
        return ["train", "test"]

    def num_tasks(self, split: str) -> int:
        return len(demo_tasks()) if split == "test" else 250

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        found = [
            {"id": task.instance_id, "instruction": task.problem_statement, "patch": task.patch}
            for task in demo_tasks()
        ]
        if split != "test":
            found = [{**found[0], "id": f"many-{number}"} for number in range(250)]
        return [self._ground.spec(each) for each in found[start:stop]]


@dataclass(frozen=True)
class Played:
    """A running server."""

    url: str
    ground: Playground

    def image(self, name: str = "demo__memofn-1") -> str:
        """Return the address of a task."""
        index = [task.instance_id for task in demo_tasks()].index(name)
        return f"{self.url}/test/{index}"


@contextmanager
def playing(ground: Playground, *, most: int = 32) -> Iterator[Played]:
    """Serve OpenEnv's own app.

    Args:
        most: Episodes at once.
    """
    app = create_app(
        lambda: DemoEnvironment(ground), CallToolAction, CallToolObservation, "demo", max_concurrent_envs=most
    )
    with serving(app) as url:
        yield Played(url, ground)


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an ASGI app on a loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as listening, start_blocking_portal() as portal:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="websockets-sansio"))
        task = portal.start_task_soon(server.serve, [listening])
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            task.result()


def recording() -> Path:
    """Return the demo's recorded replies."""
    path = DemoSource.recording
    if path is None:
        raise LookupError("the demo has no recording")
    return path
