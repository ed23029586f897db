"""The engine of one provider, and what is known of it since it was connected."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from docker.errors import APIError, NotFound

from swe_core.errors import SandboxError
from swe_core.system.process_owner import LABEL, is_orphaned
from swe_sandbox_docker.address import Address
from swe_sandbox_docker.assets import AssetVolumes
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.images import Images
from swe_sandbox_docker.sharing import shares_files

logger = logging.getLogger(__name__)

_CONFLICT = 409


class Engine:
    """A connected engine. Construction blocks.

    Attributes:
        quota: Whether it may have quotas; False once it has refused one.

    Raises:
        SandboxError: No engine answers at `address`.
    """

    def __init__(self, address: Address, config: DockerConfig) -> None:
        self.client = Client(address)
        self.images = Images(self.client, config.pull, address.place)
        self.assets = AssetVolumes(self.client, address.place)
        self.quota = self.client.limits.quota
        self._shares: bool | None = None
        self._probing = anyio.Lock()

    async def shares_files(self, image: str) -> bool:
        """Return whether its containers share this machine's files and sockets."""
        async with self._probing:
            if self._shares is None:
                self._shares = await self.client.call(shares_files, self.client, image)
        return bool(self._shares)

    async def remove(self, container: str) -> None:
        """Remove a container. One that cannot be removed now is left for the next run."""
        try:
            await self.client.call(self.client.api.remove_container, container, force=True, v=True)
        except NotFound:
            return
        except (APIError, SandboxError) as error:
            if isinstance(error, APIError) and error.status_code == _CONFLICT:  # already being removed
                return
            logger.warning(
                "the container %s is left for the next run to remove: %s", container, reason(error)
            )

    async def containers(self) -> Sequence[Mapping[str, Any]]:
        """Return the containers that are sandboxes.

        Raises:
            SandboxError: The engine does not answer.
        """
        api = self.client.api
        found: Sequence[Mapping[str, Any]] = await self.client.call(
            api.containers, all=True, filters={"label": LABEL}
        )
        return found

    async def reap(self) -> int:
        """Remove what runs that have ended left here, and return the number of containers.

        Raises:
            SandboxError: The engine does not answer.
        """
        found = await self.containers()
        abandoned = [container["Id"] for container in found if is_orphaned(container["Labels"][LABEL])]
        async with anyio.create_task_group() as removals:
            for container in abandoned:
                removals.start_soon(self.remove, container)
        await self.client.call(self.assets.reap)
        return len(abandoned)
