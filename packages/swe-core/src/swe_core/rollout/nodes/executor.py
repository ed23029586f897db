"""NodeExecutor: base class of executors whose rollouts run on nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

from swe_core.api.agent import AgentSpec
from swe_core.api.executor import Commit, Executor, ExecutorRun
from swe_core.api.records import Outcome
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.errors import ConfigError
from swe_core.rollout.nodes.metrics import serve_metrics
from swe_core.rollout.nodes.pool import LOST_AFTER, NodePool


class NodeExecutor(Executor):
    """Runs rollouts on nodes. A subclass supplies the nodes.

    Args:
        lost_after: Seconds without an answer after which a node's rollouts run elsewhere.
    """

    _pool: NodePool

    def __init__(self, lost_after: float = LOST_AFTER) -> None:
        self._lost_after = lost_after

    @abstractmethod
    def nodes(self, pool: NodePool, run: ExecutorRun) -> AbstractAsyncContextManager[None]:
        """Supply `pool` with nodes while the returned context is open.

        On entering it adds the nodes that are known. It calls `NodePool.no_more_nodes` where none will come
        later. The pool has ended all nodes before it is left.

        Raises:
            SweError: No node can be supplied.
        """

    @asynccontextmanager
    async def open(self, run: ExecutorRun) -> AsyncIterator[None]:
        if run.settings.get("server", {}).get("port"):
            raise ConfigError(
                "server.port is one port, and each node has a server of its own: leave it out, or choose "
                "--executor local"
            )
        problem: Exception | None = None
        async with anyio.create_task_group() as tasks:
            pool = self._pool = NodePool(run, tasks, self._lost_after)
            try:
                async with self.nodes(pool, run), pool.closed_in_the_end():
                    await pool.joined()
                    self.notes = pool.notes
                    async with serve_metrics(pool) as self.metrics:
                        yield
            except Exception as error:  # the task group would wrap it in a group
                problem = error
            tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem

    @property
    def capacity(self) -> int | None:
        return self._pool.capacity

    async def submit(
        self, request: RolloutRequest, observer: Observer, commit: Commit, agent: AgentSpec | None = None
    ) -> None:
        if agent is not None:
            raise ConfigError(
                "a client that plays the agent needs its rollouts in the process of the run: choose "
                "--executor local"
            )
        await self._pool.submit(request, observer, commit)

    async def recover(self, commit: Commit, finished: Collection[str], again: Collection[Outcome]) -> None:
        await self._pool.recover(commit, finished, again)

    def cancel(self, rollout_id: str, why: str) -> None:
        self._pool.cancel(rollout_id, why)

    def set_version(self, version: int) -> None:
        self._pool.engine.set_version(version)

    async def take_out(self, url: str) -> Collection[str]:
        return await self._pool.engine.take_out(url)

    def put_in(self, url: str) -> None:
        self._pool.engine.put_in(url)
