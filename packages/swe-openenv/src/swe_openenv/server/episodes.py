"""Episodes: rollouts that the server keeps under the ids of their episodes, with or without a connection."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from swe_core.api.records import Rollout
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.sandbox import Sandbox
from swe_core.api.task import Task
from swe_core.api.worker import RolloutRunner
from swe_core.errors import SweError, UsageError
from swe_core.system.plural import counted
from swe_openenv.models import Status
from swe_openenv.server.client_agent import ClientAgent

ABANDONED = "abandoned"
"""Why an interactive rollout was cancelled whose client left and cannot come back."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_STOPPING = (
    "the server stops; after its restart, reset with this episode_id and task, and run the action again"
)
_CANCELLED = "the episode was cancelled before its turn came; reset for another one"


class ServerStops(SweError):
    """The server stops before the end of an episode."""


@dataclass(slots=True, eq=False)
class Episode:
    """One episode.

    Attributes:
        client: The agent of an interactive episode, once it has begun.
        named: Whether the client chose the id, so that it can come back.
        begun, running: Whether it was started, and whether its turn has come.
        rollout: Its end.
    """

    id: str
    task: Task
    named: bool
    client: ClientAgent | None = None
    begun: bool = False
    running: bool = False
    rollout: Rollout | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def status(self) -> Status:
        """Return where it stands."""
        if self.rollout is not None:
            return "finished"
        return "running" if self.begun else "ready"


class Episodes:
    """The episodes of one run. Its methods belong to the event loop of the run.

    Args:
        split: Name of the only split.
    """

    def __init__(self, runner: RolloutRunner, tasks: TaskGroup, split: str) -> None:
        self.runner = runner
        self.split = split
        self.loop = asyncio.get_running_loop()
        templates = {request.task.instance_id: request for request in reversed(runner.requests)}
        self._templates = dict(reversed(templates.items()))
        self.tasks: Sequence[Task] = [request.task for request in self._templates.values()]
        self._group = tasks
        self._slots = anyio.CapacityLimiter(runner.concurrency)
        self._episodes: dict[str, Episode] = {}
        self._attempts: Counter[str] = Counter()
        self._stopping = anyio.Event()
        for rollout in runner.store.rollouts():
            self._restore(rollout)

    def task(self, split: str | None, index: int | None, task_id: str | None, seed: int) -> Task:
        """Return the chosen task: by its id, by its index, else the one that the seed falls on.

        Raises:
            UsageError: There is no such task, or it is chosen twice.
        """
        self.check_split(split)
        if task_id is not None:
            if index is not None:
                raise UsageError("reset has both 'task_id' and 'index': send one of them")
            if not isinstance(task_id, str) or task_id not in self._templates:
                raise UsageError(f"there is no task {task_id!r}: list_tasks names all")
            return self._templates[task_id].task
        if index is not None:
            return self.at(index)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise UsageError(f"the seed is {seed!r}, expected an integer")
        return self.tasks[seed % len(self.tasks)]

    def at(self, index: int) -> Task:
        """Return the task at an index of the split.

        Raises:
            UsageError: It is no index, or out of range.
        """
        if not isinstance(index, int) or isinstance(index, bool):
            raise UsageError(f"the index is {index!r}, expected an integer")
        if not 0 <= index < len(self.tasks):
            count = len(self.tasks)
            raise UsageError(
                f"the index {index} is out of range: the split {self.split!r} has {counted(count, 'task')}"
            )
        return self.tasks[index]

    def check_split(self, split: str | None) -> None:
        """Check that a split exists.

        Raises:
            UsageError: It does not.
        """
        if split is not None and split != self.split:
            raise UsageError(f"there is no split {split!r}: the only split is {self.split!r}")

    def reset(self, episode_id: str, task: Task | None, *, named: bool) -> Episode:
        """Return the episode with this id; a new one if there is none.

        Args:
            task: The task that the client chose; None if it chose none. A new episode then has the one that
                its id falls on, the same after a restart.
            named: Whether the client chose the id.

        Raises:
            UsageError: The id cannot be a folder's name, or its episode is of another task.
        """
        if not isinstance(episode_id, str) or not _ID.fullmatch(episode_id):
            raise UsageError(
                f"the episode_id {episode_id!r} is not usable: expected at most 128 letters, digits, '.', "
                "'_' and '-', the first a letter or digit"
            )
        found = self._episodes.get(episode_id)
        if found is None:
            chosen = task or self.task(None, None, None, zlib.crc32(episode_id.encode()))
            found = self._episodes[episode_id] = Episode(episode_id, chosen, named)
        elif task is not None and found.task.instance_id != task.instance_id:
            raise UsageError(
                f"the episode {episode_id!r} is of the task {found.task.instance_id!r}, not of "
                f"{task.instance_id!r}: choose another episode_id"
            )
        found.named |= named
        return found

    def known(self, episode_id: object) -> Episode | None:
        """Return the episode with this id, if there is one."""
        return self._episodes.get(episode_id) if isinstance(episode_id, str) else None

    async def run_agent(self, episode: Episode) -> Rollout:
        """Run the agent in an episode, or wait for the agent that runs in it. Return its end.

        Raises:
            UsageError: The episode was cancelled.
            ServerStops: The server stops before the end.
        """
        self._begin(episode, None)
        return await self._end(episode)

    async def sandbox(self, episode: Episode) -> Sandbox:
        """Return the sandbox of an interactive episode, opened at the first call.

        Raises:
            UsageError: The episode has ended, also because the sandbox cannot be opened.
            ServerStops: The server stops before it is open.
        """
        if not episode.begun:
            self._begin(episode, ClientAgent())
        client = episode.client
        if client is None or client.submitted:
            raise UsageError(f"the episode {episode.id!r} has ended: reset with another episode_id")
        await first_of(client.opened, episode.ended, self._stopping)
        if client.sandbox is not None and episode.rollout is None:
            return client.sandbox
        if episode.rollout is None:
            raise UsageError(_CANCELLED) if episode.ended.is_set() else ServerStops(_STOPPING)
        failure = episode.rollout.failure
        why = failure.message if failure else f"it was {episode.rollout.outcome}"
        raise UsageError(f"the episode {episode.id!r} has ended: {why}")

    async def submit(self, episode: Episode) -> Rollout:
        """End the client's work and grade it. Return the end of the episode.

        Raises:
            UsageError: The episode was cancelled.
            ServerStops: The server stops before the end.
        """
        self._begin(episode, ClientAgent())
        if episode.client is not None:  # before any wait: it counts even if the client leaves
            episode.client.submit()
        return await self._end(episode)

    def cancel(self, episode: Episode, why: str) -> None:
        """End an episode without a verdict. One that waits for its turn never starts, and leaves no record.

        Args:
            why: Reason in the record, such as "timeout".
        """
        if episode.rollout is not None:
            return
        self.runner.cancel(episode.id, why)
        if not episode.running:
            self._episodes.pop(episode.id, None)
            episode.ended.set()

    def leave(self, episode: Episode) -> None:
        """Handle the end of a session: end what no client can come back to."""
        if episode.named:
            return
        if not episode.begun:
            self._episodes.pop(episode.id, None)
        elif episode.client is not None and not episode.client.submitted:
            self.cancel(episode, ABANDONED)

    def stop(self) -> None:
        """End all waits: the server stops."""
        self._stopping.set()

    def _begin(self, episode: Episode, client: ClientAgent | None) -> None:
        if episode.begun:
            return
        episode.begun, episode.client = True, client
        self._group.start_soon(self._roll_out, episode)

    async def _roll_out(self, episode: Episode) -> None:
        template = self._templates[episode.task.instance_id]
        labels = {**template.spec.labels, "swe-core.rollout": episode.id}
        spec = template.spec.model_copy(update={"labels": labels})
        known = {"id": episode.id, "attempt": self._attempt(episode.task), "spec": spec}
        if episode.client is not None:
            network = "none" if spec.network == "llm" else spec.network  # it makes no LLM calls
            spec = spec.model_copy(update={"assets": (), "network": network})
            known |= {"agent": episode.client.name, "engine": "none", "model": "", "spec": spec}
            known["sandbox_retries"] = 0  # the client's work is in the sandbox that failed
        request: RolloutRequest = template.model_copy(update=known)
        async with self._slots:
            if episode.ended.is_set():  # cancelled while it waited
                return
            episode.running = True
            finished = await self.runner.run(request, episode.client)
        episode.rollout, episode.client = finished.rollout, None
        episode.ended.set()

    def _attempt(self, task: Task) -> int:
        attempt = self._attempts[task.instance_id]
        self._attempts[task.instance_id] += 1
        return attempt

    async def _end(self, episode: Episode) -> Rollout:
        await first_of(episode.ended, self._stopping)
        if episode.rollout is None:
            raise UsageError(_CANCELLED) if episode.ended.is_set() else ServerStops(_STOPPING)
        return episode.rollout

    def _restore(self, rollout: Rollout) -> None:
        """Take over an episode of an earlier process."""
        template = self._templates.get(rollout.task_id)
        if template is None:
            return
        self._attempts[rollout.task_id] = max(self._attempts[rollout.task_id], rollout.attempt + 1)
        episode = Episode(rollout.id, template.task, named=True, begun=True, rollout=rollout)
        episode.ended.set()
        self._episodes[rollout.id] = episode


@asynccontextmanager
async def open_episodes(runner: RolloutRunner, split: str) -> AsyncIterator[Episodes]:
    """Open the episodes of a run; leaving cancels the rollouts that are running.

    Raises:
        SweError: The run directory cannot be written, or the engine does not fit.
    """
    try:
        async with anyio.create_task_group() as group:
            episodes = Episodes(runner, group, split)
            try:
                yield episodes
            finally:
                episodes.stop()
            group.cancel_scope.cancel()
    except ExceptionGroup as errors:  # the first one cancelled the others
        raise errors.exceptions[0] from None


async def first_of(*events: anyio.Event) -> None:
    """Wait until one of the events is set."""

    async def watch(event: anyio.Event, scope: anyio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    async with anyio.create_task_group() as group:
        for event in events:
            group.start_soon(watch, event, group.cancel_scope)
