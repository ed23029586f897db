"""Templates: what the sandboxes of one image and one set of limits share in the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from swe_core.api.sandbox import SandboxSpec
from swe_core.system.process_owner import current_owner
from swe_sandbox_k8s import manifests
from swe_sandbox_k8s.cluster import POOLS, TEMPLATES, Cluster
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.errors import CLIENT
from swe_sandbox_k8s.labels import TEMPLATE, new_name

_GONE = 60.0
"""Seconds until the pods of a template should be gone."""
_LOOK = 0.5


@dataclass(slots=True)
class _Shared:
    """A template with its number of users."""

    name: str = field(default_factory=new_name)
    users: int = 0
    made: bool = False
    making: anyio.Lock = field(default_factory=anyio.Lock)


class Templates:
    """The templates and warm pools of a provider, which go with the last sandbox that uses them."""

    def __init__(self, config: K8sConfig) -> None:
        self._config = config
        self._templates: dict[tuple[object, ...], _Shared] = {}

    @asynccontextmanager
    async def use(self, cluster: Cluster, spec: SandboxSpec) -> AsyncIterator[str]:
        """Yield the name of the template and of the warm pool for `spec`.

        Raises:
            Exception: The client's own: they cannot be created.
        """
        key = (spec.image, spec.network, spec.cpus, spec.memory_mb, spec.disk_mb)
        shared = self._templates.setdefault(key, _Shared())
        shared.users += 1
        try:
            async with shared.making:
                if not shared.made:
                    await self._make(cluster, shared.name, spec)
                    shared.made = True
            yield shared.name
        finally:
            shared.users -= 1
            if not shared.users:
                del self._templates[key]
                with anyio.CancelScope(shield=True):
                    await remove(cluster, shared.name)

    async def _make(self, cluster: Cluster, name: str, spec: SandboxSpec) -> None:
        owner = current_owner()
        await cluster.create(TEMPLATES, manifests.template(name, spec, self._config, owner))
        await cluster.create(POOLS, manifests.pool(name, self._config.warm, owner))


async def remove(cluster: Cluster, name: str) -> None:
    """Delete a warm pool, and its template once no pod of it runs: the network policy goes with it."""
    if not await cluster.delete(POOLS, name):
        return
    with anyio.move_on_after(_GONE):
        try:
            while await cluster.pods(f"{TEMPLATE}={name}"):  # noqa: ASYNC110 (the cluster tells no event of ours)
                await anyio.sleep(_LOOK)
        except CLIENT:
            pass  # the next run does it
        else:
            await cluster.delete(TEMPLATES, name)
