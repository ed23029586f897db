"""Pools: many sandboxes of one image in one job."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from huggingface_hub import Sandbox as HubSandbox
from huggingface_hub import SandboxPool

from swe_core.system.process_owner import current_owner
from swe_sandbox_hf.client import Client
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.labels import pool_name


@dataclass(slots=True)
class _Shared:
    """A pool with its number of users."""

    pool: SandboxPool | None = None
    users: int = 0
    making: anyio.Lock = field(default_factory=anyio.Lock)


class Pools:
    """The pools of a provider, one per image. A pool closes with its last sandbox."""

    def __init__(self, config: HfConfig) -> None:
        self._config = config
        self._pools: dict[str, _Shared] = {}

    @asynccontextmanager
    async def sandbox(
        self, client: Client, namespace: str, image: str
    ) -> AsyncIterator[tuple[HubSandbox, str]]:
        """Open a sandbox in the image's pool.

        Yields:
            The sandbox, and the id of its job.

        Raises:
            SandboxError: The sandbox cannot be opened.
        """
        shared = self._pools.setdefault(image, _Shared())
        shared.users += 1
        try:
            hub = await self._create(client, shared, namespace, image)
            client.redact(hub.proxy_headers["X-Sandbox-Token"], temporary=True)
            try:
                yield hub, hub.host_id
            finally:
                with anyio.CancelScope(shield=True):
                    await client.unhurried(hub.kill)
        finally:
            shared.users -= 1
            if not shared.users:
                del self._pools[image]
                if shared.pool is not None:
                    with anyio.CancelScope(shield=True):
                        await client.unhurried(shared.pool.close)

    async def _create(self, client: Client, shared: _Shared, namespace: str, image: str) -> HubSandbox:
        try:
            async with shared.making:
                if shared.pool is None:
                    shared.pool = await client.unhurried(self._make, image, namespace)
            return await client.unhurried(shared.pool.create, idle_timeout=self._config.idle_timeout)
        except Exception as error:  # the client raises errors of several libraries
            raise client.explained(error, f"open a sandbox of the image {image!r}") from error

    def _make(self, image: str, namespace: str) -> SandboxPool:
        config = self._config
        return SandboxPool(
            image,
            flavor=config.flavor,
            sandboxes_per_host=config.sandboxes_per_host,
            name=pool_name(current_owner(), secrets.token_hex(4)),
            idle_timeout=config.idle_timeout,
            namespace=namespace,
            start_timeout=config.start_timeout,
            adopt_hosts="never",
        )
