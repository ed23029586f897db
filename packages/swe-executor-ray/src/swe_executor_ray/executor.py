"""The executor `ray`: runs rollouts on the nodes of a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from swe_core.api.agent import AgentSpec
from swe_core.api.executor import Commit, ExecutorRun
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.rollout.nodes.executor import NodeExecutor
from swe_core.rollout.nodes.pool import NodePool
from swe_core.system.files import write_whole
from swe_executor_ray.cluster import SLOTS, Cluster, Host
from swe_executor_ray.config import RayConfig

if TYPE_CHECKING:
    from swe_executor_ray.handle import RayNode

logger = logging.getLogger(__name__)

RUN_FILE = "ray-run"
"""File in the run directory with the run's name on the nodes, by which a resume finds what they keep."""
_LOOK = 1.0
"""Seconds between two looks at the nodes of a cluster."""


class RayExecutor(NodeExecutor):
    """Runs rollouts on the nodes of a Ray cluster, with an actor on each.

    Raises:
        ConfigError: A variable for the nodes is unset.
    """

    _run_file: Path

    def __init__(self, config: RayConfig) -> None:
        super().__init__()
        self._config = config
        self._variables = config.variables()
        self._name = secrets.token_hex(8)

    @asynccontextmanager
    async def nodes(self, pool: NodePool, run: ExecutorRun) -> AsyncIterator[None]:
        self._run_file = run.directory / RUN_FILE
        if self._run_file.exists():
            self._name = self._run_file.read_text().strip()
        supply = self._private if self._config.address is None else self._joined
        async with supply(pool, run.concurrency):
            yield

    async def submit(
        self, request: RolloutRequest, observer: Observer, commit: Commit, agent: AgentSpec | None = None
    ) -> None:
        if not self._run_file.exists():  # no node has anything to keep before
            write_whole(self._run_file, f"{self._name}\n".encode())
        await super().submit(request, observer, commit, agent)

    @asynccontextmanager
    async def _private(self, pool: NodePool, concurrency: int) -> AsyncIterator[None]:
        """Supply `pool` with the nodes of a cluster on this host."""
        count = min(self._config.workers or os.cpu_count() or 1, concurrency)
        cluster = Cluster()
        async with cluster.private(count, self._config.runtime_env):
            (host,) = await cluster.hosts()
            for number in range(1, count + 1):
                pool.add(self.node(f"ray-{number}", self._slots(concurrency, count), host))
            pool.no_more_nodes()
            yield

    @asynccontextmanager
    async def _joined(self, pool: NodePool, concurrency: int) -> AsyncIterator[None]:
        """Supply `pool` with the nodes of a cluster that lasts, also with those that come later."""
        cluster = Cluster()
        async with cluster.joined(self._config.address or "auto", self._config.runtime_env):
            await cluster.demand(concurrency)
            hosts = await cluster.hosts()
            watch = _Watch(pool, self, self._slots(concurrency, len(_usable(hosts))))
            watch.look(hosts)
            looking = asyncio.create_task(watch.keep_looking(cluster))
            try:
                yield
            finally:
                looking.cancel()
                with anyio.CancelScope(shield=True):
                    await cluster.demand(0)

    def node(self, name: str, slots: int, host: Host) -> RayNode:
        """Return a node on a host of the cluster."""
        from swe_executor_ray.handle import RayNode

        return RayNode(name, slots, host, self._name, self._variables, bool(self._config.runtime_env))

    def _slots(self, concurrency: int, nodes: int) -> int:
        return self._config.slots or -(-concurrency // max(nodes, 1))


def _usable(hosts: Sequence[Host]) -> Sequence[Host]:
    """Return the hosts for rollouts: those that offer slots, or all where none does."""
    alive = [host for host in hosts if host.alive and not host.draining]
    return [host for host in alive if host.slots] or alive


class _Watch:
    """Gives the nodes of a cluster to a pool, and tells it of those that leave.

    Args:
        slots: Of a host that offers none.
    """

    def __init__(self, pool: NodePool, executor: RayExecutor, slots: int) -> None:
        self._pool = pool
        self._executor = executor
        self._slots = slots
        self._nodes: dict[str, RayNode] = {}
        self._left = False
        self._waiting = False

    async def keep_looking(self, cluster: Cluster) -> None:
        """Look again until cancelled."""
        while True:
            await anyio.sleep(_LOOK)
            try:
                hosts = await cluster.hosts()
            except Exception as error:  # Ray raises errors of many types while its head does not answer
                logger.debug("the nodes of the cluster are unknown: %s", error)
            else:
                self.look(hosts)

    def look(self, hosts: Sequence[Host]) -> None:
        """Take over what has changed."""
        for host in hosts:
            node = self._nodes.get(host.id)
            if node is None or (host.alive and not host.draining):
                continue
            if host.alive:
                self._pool.drain(node.name, "Ray is about to end it")
            else:
                node.dead = True
            self._left = self._left or self._pool.nodes[node.name].incarnation != ""
        for host in _usable(hosts):
            if host.id not in self._nodes:
                node = self._executor.node(self._new_name(host), host.slots or self._slots, host)
                self._nodes[host.id] = node
                self._pool.add(node)
        self._say_whether_it_goes_on()

    def _say_whether_it_goes_on(self) -> None:
        """End a run that no node can serve. One whose nodes have served it and have left waits for others."""
        working = [node for node in self._nodes.values() if not self._pool.nodes[node.name].out]
        if not working and self._nodes and not self._left:
            self._pool.no_more_nodes()
        elif not working and not self._waiting:
            logger.warning("the cluster has no node for rollouts: waiting for one that offers %s", SLOTS)
        self._waiting = not working

    def _new_name(self, host: Host) -> str:
        """Return the name of a host, with a number if another node was on it before."""
        number = sum(node.host.name == host.name for node in self._nodes.values()) + 1
        return host.name if number == 1 else f"{host.name}-{number}"
