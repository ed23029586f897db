"""The MCP tools of a session."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from pydantic import ValidationError

from swe_core.errors import SweError, sentence
from swe_openenv.models import SweAction

if TYPE_CHECKING:
    from swe_openenv.server.environment import SweEnvironment


def tools_of(environment: SweEnvironment) -> FastMCP[Any]:
    """Return the tools: those of an agent in the sandbox where the client is the agent, else `run_rollout`.

    No tool of the sandbox tells a grade: an agent could learn from it. The client gets it from a step.
    """
    tools: FastMCP[Any] = FastMCP("swe")
    _describe(environment, tools)
    (_add_sandbox_tools if environment.interactive else _add_rollout_tool)(environment, tools)
    return tools


def _describe(environment: SweEnvironment, tools: FastMCP[Any]) -> None:
    episodes = environment.episodes

    @tools.tool()
    async def list_tasks(start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """List the tasks of a slice: id, index, repository and problem statement."""
        return environment.get_task_range(episodes.split, start, stop)

    @tools.tool()
    async def capabilities() -> dict[str, Any]:
        """Tell what this server runs."""
        first, engine = episodes.runner.requests[0], episodes.runner.engine
        return {
            "interactive": environment.interactive,
            "agent": "client" if environment.interactive else first.agent,
            "model": first.model,
            "engine": first.engine,
            "sampling": engine.sampling if engine is not None else None,
            "sandbox": first.sandbox,
            "split": episodes.split,
            "tasks": len(episodes.tasks),
            "concurrency": episodes.runner.concurrency,
        }


def _add_rollout_tool(environment: SweEnvironment, tools: FastMCP[Any]) -> None:
    @tools.tool()
    async def run_rollout(
        task_id: str | None = None,
        index: int | None = None,
        seed: int | None = None,
        episode_id: str | None = None,
    ) -> dict[str, Any]:
        """Run the server's agent on a task, grade its patch, and return the verdict."""
        with _said():
            episode = environment.choose(seed, episode_id, None, index, task_id)
            await environment.episodes.run_agent(episode)
            observation: dict[str, Any] = environment.observe(episode).model_dump(mode="json")
            return observation


def _add_sandbox_tools(environment: SweEnvironment, tools: FastMCP[Any]) -> None:
    async def act(**fields: Any) -> dict[str, Any]:
        with _said():
            return dict(await environment.use_sandbox(environment.current, SweAction(**fields)))

    @tools.tool(name="exec")
    async def exec_(command: str, timeout_s: float = 120.0) -> dict[str, Any]:
        """Run a shell command in the repository."""
        return await act(type="exec", command=command, timeout_s=timeout_s)

    @tools.tool()
    async def read(path: str) -> str:
        """Return a text file."""
        return str((await act(type="read", path=path))["output"])

    @tools.tool()
    async def write(path: str, content: str) -> str:
        """Create or replace a text file."""
        await act(type="write", path=path, content=content)
        return f"wrote {path}"

    @tools.tool()
    async def submit() -> str:
        """End the work; the repository is graded as it is."""
        with _said():
            await environment.episodes.submit(environment.current)
        return "submitted"


@contextmanager
def _said() -> Iterator[None]:
    """Pass on our sentences. FastMCP hides what it does not know."""
    try:
        yield
    except ValidationError as error:
        raise ToolError(error.errors()[0]["msg"], log_level=logging.DEBUG) from error
    except SweError as error:
        raise ToolError(sentence(error), log_level=logging.DEBUG) from error
