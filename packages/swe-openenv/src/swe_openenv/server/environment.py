"""SweEnvironment: OpenEnv's environment over the rollouts of one run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from importlib.metadata import version
from typing import Any

from fastmcp import Client
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from swe_core.api.agent import AgentEvent
from swe_core.api.records import Rollout
from swe_core.api.sandbox import Sandbox
from swe_core.api.task import Task
from swe_core.errors import SandboxError, UsageError
from swe_core.rollout.agent_run import build_prompt
from swe_core.rollout.run_directory import FOLDERS
from swe_openenv.models import SweAction, SweObservation, SweState
from swe_openenv.server.episodes import Episode, Episodes
from swe_openenv.server.sandbox_actions import exec_command, read_file, write_file
from swe_openenv.server.tools import tools_of

MAX_RECORDED = 64 * 1024
"""Characters of one result in the transcript."""
MAX_PATCH = 1024 * 1024
"""Bytes of the largest patch that an observation carries."""
_OPTIONS = "'split' and 'index', 'task_id', or 'seed'"


class SweEnvironment(Environment):
    """One session of a client. The episodes belong to the server, not to the session.

    Args:
        interactive: Whether the client is the agent.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, episodes: Episodes, name: str, interactive: bool) -> None:
        super().__init__()
        self.episodes = episodes
        self.interactive = interactive
        self._name = name
        self._episode: Episode | None = None
        self._steps = 0
        self._over: Episode | None = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> SweObservation:
        """Call `reset_async` from another thread, as OpenEnv's web interface does."""
        return self._wait_for(self.reset_async(seed, episode_id, **kwargs))

    def step(self, action: SweAction, timeout_s: float | None = None, **kwargs: Any) -> SweObservation:
        """Call `step_async` from another thread, as OpenEnv's web interface does."""
        return self._wait_for(self.step_async(action, timeout_s, **kwargs))

    async def reset_async(
        self,
        /,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        task_id: str | None = None,
        **unknown: Any,
    ) -> SweObservation:
        """Choose an episode: the one with this id, else a new one.

        Args:
            seed: Chooses the task where neither index nor task_id does.
            episode_id: None lets the server choose; no client can come back to that episode.

        Raises:
            UsageError: An argument is unknown, or there is no such task.
        """
        if unknown:
            raise UsageError(f"reset takes no {sorted(unknown)[0]!r}: choose the task with {_OPTIONS}")
        episode = self.choose(seed, episode_id, split, index, task_id)
        if episode is not self._episode:
            self._leave()
        self._episode, self._steps = episode, 0
        self._over = episode if episode.rollout is not None else None
        return self.observe(episode, prompt=build_prompt(episode.task))

    def choose(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        task_id: str | None = None,
    ) -> Episode:
        """Return the episode with this id, else a new one; the session keeps its own.

        Raises:
            UsageError: There is no such task, or the episode is of another.
        """
        self.episodes.check_split(split)
        is_new = self.episodes.known(episode_id) is None
        # A seed chooses a task for a new episode only: trainers send one with each reset.
        task = None
        if index is not None or task_id is not None:
            task = self.episodes.task(split, index, task_id, 0)
        elif seed is not None and is_new:
            task = self.episodes.task(split, None, None, seed)
        chosen = episode_id if episode_id is not None else str(uuid.uuid4())
        return self.episodes.reset(chosen, task, named=episode_id is not None)

    async def step_async(
        self,
        action: SweAction,
        /,
        timeout_s: float | None = None,
        episode_id: str | None = None,
        **unknown: Any,
    ) -> SweObservation:
        """Take an action in the episode.

        Args:
            timeout_s: Seconds; the episode goes on after them, and the observation says that it runs.
            episode_id: The episode, for a client without a session.

        Raises:
            UsageError: There is no episode, it has ended, or the server has no such action.
            SandboxError: A file cannot be read or written, or the sandbox failed.
        """
        episode = self._episode or self.episodes.known(episode_id)
        if episode is None:
            raise UsageError("there is no episode: reset first")
        if self._over is episode:
            raise UsageError(f"the episode {episode.id!r} has ended: reset with another episode_id")
        if self.interactive is (action.type == "run_agent"):
            does = "exec, read, write and submit" if self.interactive else "run_agent"
            raise UsageError(f"this server has no action {action.type!r}: it has {does}")
        self._steps += 1
        more: Mapping[str, Any] = {}
        try:
            async with asyncio.timeout(timeout_s) as clock:
                more = await self._act(episode, action)
        except TimeoutError:
            if not clock.expired():
                raise
        if episode.rollout is not None:
            self._over = episode
        return self.observe(episode, **more)

    async def _act(self, episode: Episode, action: SweAction) -> Mapping[str, Any]:
        if action.type == "run_agent":
            await self.episodes.run_agent(episode)
            return {}
        if action.type == "submit":
            await self.episodes.submit(episode)
            return {}
        return await self.use_sandbox(episode, action)

    async def use_sandbox(self, episode: Episode, action: SweAction) -> Mapping[str, Any]:
        """Take an action in the sandbox of an interactive episode; return fields of its observation.

        Raises:
            UsageError: The episode has ended.
            SandboxError: A file cannot be read or written, or the sandbox failed.
        """
        sandbox, client = await self.episodes.sandbox(episode), episode.client
        target = action.command if action.type == "exec" else action.path
        if client is not None:
            client.record(AgentEvent(kind="tool_call", text=target or "", tool=action.type))
        try:
            more = await self._use(sandbox, action, client.environment if client else {})
        except SandboxError:
            if episode.client is None or episode.client.submitted:
                raise UsageError(f"the episode {episode.id!r} has ended meanwhile") from None
            raise
        if client is not None:
            text = (more.get("output") or "") + (more.get("error_output") or "")
            client.record(AgentEvent(kind="tool_result", text=text[:MAX_RECORDED], tool=action.type))
        return more

    async def _use(self, sandbox: Sandbox, action: SweAction, env: Mapping[str, str]) -> Mapping[str, Any]:
        if action.type == "exec":
            done = await exec_command(sandbox, action.command or "", action.timeout_s, env)
            return {name: getattr(done, name) for name in done.__slots__}
        if action.type == "read":
            return {"output": await read_file(sandbox, action.path or "", action.timeout_s)}
        await write_file(sandbox, action.path or "", action.content or "", action.timeout_s)
        return {}

    @property
    def state(self) -> SweState:
        """Return where the session's episode stands."""
        if self._episode is None:
            return SweState(step_count=self._steps)
        return SweState(
            episode_id=self._episode.id,
            step_count=self._steps,
            task_id=self._episode.task.instance_id,
            split=self.episodes.split,
            status=self._episode.status,
            agent="client" if self.interactive else self.episodes.runner.requests[0].agent,
        )

    @property
    def current(self) -> Episode:
        """Return the session's episode.

        Raises:
            UsageError: The client has not reset.
        """
        if self._episode is None:
            raise UsageError("there is no episode: reset first")
        return self._episode

    def get_metadata(self) -> EnvironmentMetadata:
        """Return what `/metadata` says."""
        how = "the client works in the sandbox" if self.interactive else "one action runs a coding agent"
        return EnvironmentMetadata(
            name=self._name,
            description=f"Repository tasks in isolated sandboxes, graded by their own tests; {how}.",
            version=version("swe-openenv"),
        )

    def close(self) -> None:
        """Leave the episode. OpenEnv calls it in a thread."""
        self.episodes.loop.call_soon_threadsafe(self._leave)

    def list_splits(self) -> list[str]:
        """Return the only split."""
        return [self.episodes.split]

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks.

        Raises:
            UsageError: There is no such split.
        """
        self.episodes.check_split(split)
        return len(self.episodes.tasks)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return all tasks, as an agent may see them.

        Raises:
            UsageError: There is no such split.
        """
        return self.get_task_range(split)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return one task.

        Raises:
            UsageError: There is no such split.
            IndexError: The index is out of range.
        """
        self.episodes.check_split(split)
        if not 0 <= index < len(self.episodes.tasks):
            raise IndexError(index)
        return self._public(index, self.episodes.tasks[index])

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the tasks of a slice.

        Raises:
            UsageError: There is no such split.
        """
        self.episodes.check_split(split)
        indices = range(len(self.episodes.tasks))[start:stop]
        return [self._public(index, self.episodes.tasks[index]) for index in indices]

    @cached_property
    def mcp_client(self) -> Client[Any]:
        """Return a client of the session's tools."""
        return Client(tools_of(self))

    @asynccontextmanager
    async def mcp_session(self) -> AsyncIterator[Client[Any]]:
        """Open the session's tools."""
        async with self.mcp_client as client:
            yield client

    def _wait_for(self, work: Coroutine[Any, Any, SweObservation]) -> SweObservation:
        return asyncio.run_coroutine_threadsafe(work, self.episodes.loop).result()

    def _leave(self) -> None:
        if self._episode is not None:
            self.episodes.leave(self._episode)
            self._episode = None

    def _public(self, index: int, task: Task) -> dict[str, Any]:
        return {
            "id": task.instance_id,
            "index": index,
            "split": self.episodes.split,
            "repo": task.repo,
            "base_commit": task.base_commit,
            "problem_statement": task.problem_statement,
            "workdir": task.workdir,
        }

    def observe(self, episode: Episode, **more: Any) -> SweObservation:
        """Return where an episode stands, with the fields `more`."""
        if episode.rollout is not None:
            more |= self._verdict(episode.rollout)
        return SweObservation(
            episode_id=episode.id, task_id=episode.task.instance_id, status=episode.status, **more
        )

    def _verdict(self, rollout: Rollout) -> dict[str, Any]:
        store, grade, failure = self.episodes.runner.store, rollout.grade, rollout.failure
        patch = store.patch(rollout.id)
        return {
            "done": True,
            "reward": rollout.reward,
            "outcome": rollout.outcome,
            "reason": (failure.message if failure else grade.reason if grade else rollout.cancelled_as)
            or None,
            "tests": {
                "fail_to_pass": dict(grade.fail_to_pass) if grade else {},
                "pass_to_pass": dict(grade.pass_to_pass) if grade else {},
            },
            "patch": patch.decode(errors="replace") if patch and len(patch) <= MAX_PATCH else None,
            "turns": rollout.turns,
            "ledger": rollout.ledger.model_dump(mode="json") if rollout.ledger else None,
            "seconds": rollout.seconds,
            "records": str((store.path / FOLDERS / rollout.id).absolute()),
        }
