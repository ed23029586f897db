"""The engines of one provider: where each sandbox is opened, and which engines are out of use."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
from docker.errors import APIError, NotFound

from swe_core.errors import HostDied, SandboxError
from swe_core.system.process_owner import LABEL, is_orphaned
from swe_sandbox_docker.address import Address
from swe_sandbox_docker.assets import AssetVolumes
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.images import Images
from swe_sandbox_docker.sharing import shares_files

logger = logging.getLogger(__name__)

CHECK_EVERY = 10.0
"""Seconds between two checks of a host that does not answer."""
MISSING_WEIGHT = 4
"""Open sandboxes that a missing image counts as, where a host is chosen."""
_CONFLICT = 409


class Engine:
    """A connected engine, and what is known of it since it was connected.

    Attributes:
        quota: Whether it may have quotas; False once it has refused one.
    """

    def __init__(self, client: Client, config: DockerConfig, place: str) -> None:
        self.client = client
        self.images = Images(client, config.pull, place)
        self.assets = AssetVolumes(client, place)
        self.quota = client.limits.quota
        self._pulling = anyio.Lock()
        self._shares: bool | None = None
        self._probing = anyio.Lock()

    async def shares_files(self, image: str) -> bool:
        """Return whether its containers share this machine's files and sockets."""
        async with self._probing:
            if self._shares is None:
                self._shares = await self.client.call(shares_files, self.client, image)
        return bool(self._shares)

    async def look(self, image: str) -> None:
        """Find out whether it has `image`. An error is left to the next opening."""
        with suppress(SandboxError):
            await self.images.look(image)

    async def pull_ahead(self, image: str) -> None:
        """Get `image` if it lacks it and has not tried in vain; a failure is only logged."""
        if self.images.present.get(image) or image in self.images.unobtainable:
            return
        async with self._pulling:
            try:
                await self.images.ensure(image)
            except SandboxError as error:
                logger.info("%s", error)

    async def remove(self, container: str) -> bool:
        """Remove a container. Return whether it no longer exists, or is being removed."""
        try:
            await self.client.call(self.client.api.remove_container, container, force=True, v=True)
        except NotFound:
            return True
        except (APIError, SandboxError) as error:
            if isinstance(error, APIError) and error.status_code == _CONFLICT:  # already being removed
                return True
            logger.warning(
                "the container %s is left for the next run to remove: %s", container, reason(error)
            )
            return False
        return True

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


class Host:
    """One engine of the settings.

    Attributes:
        engine: The engine; None before the first connection. After a failure it is replaced.
        opened: Number of sandboxes of this provider that are open on it.
        problem: Why it does not answer.
    """

    def __init__(self, address: Address, config: DockerConfig, *, alone: bool) -> None:
        self.address = address
        self.engine: Engine | None = None
        self.opened = 0
        self.problem = ""
        self._config = config
        self._alone = alone
        self._left: set[str] = set()
        local = alone and address.kind == "unix"
        self._name = "this host" if local else f"the Docker host {address.url!r}"
        self._checked = float("-inf")
        self._connecting = threading.Lock()

    @property
    def live(self) -> bool:
        """Whether it answered last."""
        return self.engine is not None and self.engine.client.trouble is None

    @property
    def is_due(self) -> bool:
        """Whether it does not answer and may be checked again."""
        return not self.live and (self._alone or time.monotonic() - self._checked >= CHECK_EVERY)

    def connect(self) -> bool:
        """Connect if it is due, and return whether it is live. Blocking."""
        with self._connecting:
            if self.is_due:
                self._checked = time.monotonic()
                try:
                    client = Client(self.address, lost=SandboxError if self._alone else self._lost)
                except SandboxError as error:
                    if not (self._alone or self.problem):
                        logger.warning("%s is left out until it answers: %s", self._name, error)
                    self.problem = str(error)
                    return False
                if self.problem and not self._alone:
                    logger.warning("%s answers again", self._name)
                self.engine, self.problem = Engine(client, self._config, self._name), ""
        return self.live

    def _lost(self, problem: str) -> HostDied:
        if not self.live:  # else a sandbox of before the host returned has noticed only now
            if not self.problem:
                logger.warning("%s; the host is taken out until it answers", problem)
            self.problem, self._checked = problem, time.monotonic()
        return HostDied(problem)

    async def put_back(self) -> None:
        """Connect, and remove what earlier sandboxes and runs left there."""
        if not self.is_due:
            return
        returned = self.problem != "" and not self._alone
        if await anyio.to_thread.run_sync(self.connect, abandon_on_cancel=True) and self.engine is not None:
            with suppress(SandboxError):  # it is out again, which has been logged
                for container in list(self._left):
                    await self.remove(container)
                if returned:
                    await self.engine.reap()

    async def remove(self, container: str) -> None:
        """Remove a container; one that cannot be removed now, once the host answers again."""
        if self.engine is not None and (self.live or self._alone) and await self.engine.remove(container):
            self._left.discard(container)
        else:
            self._left.add(container)

    def weight(self, engine: Engine, image: str) -> tuple[float, bool]:
        """Return how little it suits a sandbox of `image`; the lowest is best."""
        missing = not engine.images.present.get(image)
        opened = self.opened + (MISSING_WEIGHT if missing else 0)
        return opened / engine.client.limits.cpus, missing


Live = tuple[Host, Engine]


class Hosts:
    """The engines of one provider."""

    def __init__(self, addresses: Sequence[Address], config: DockerConfig) -> None:
        alone = len(addresses) == 1
        self.all = [Host(address, config, alone=alone) for address in addresses]
        self._pulls = config.pull == "missing"

    @property
    def live(self) -> list[Live]:
        """Return the hosts that answered last, with their engines."""
        return [(host, host.engine) for host in self.all if host.live and host.engine is not None]

    def connect(self) -> None:
        """Connect the hosts that may be checked. Blocking."""
        threads = [threading.Thread(target=host.connect) for host in self.all if host.is_due]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async def put_back(self) -> None:
        """Connect the hosts that may be checked, and clear what was left there."""
        async with anyio.create_task_group() as checks:
            for host in self.all:
                checks.start_soon(host.put_back)

    async def answering(self) -> list[Live]:
        """Return the live hosts, after the others were checked.

        Raises:
            SandboxError: None answers.
        """
        await self.put_back()
        if live := self.live:
            return live
        if len(self.all) == 1:
            raise SandboxError(self.all[0].problem)
        problems = "; ".join(host.problem for host in self.all)
        raise SandboxError(f"none of the {len(self.all)} Docker hosts answers: {problems}")

    async def choose(self, image: str, failed: Collection[Host]) -> Live | None:
        """Return the host for the next sandbox of `image`: see `Host.weight`.

        A host that could not get the image is chosen only if no other is left. Hosts that do not answer are
        checked only if no other does; `put_back` checks them in the background.

        Args:
            failed: Hosts that are not to be chosen.

        Returns:
            None if all live hosts have failed.

        Raises:
            SandboxError: No host answers.
        """
        left = [one for one in self.live or await self.answering() if one[0] not in failed]
        if len(left) > 1:
            async with anyio.create_task_group() as looks:
                for _, engine in left:
                    looks.start_soon(engine.look, image)
            left = [one for one in left if one[0].live]
        suited = [one for one in left if image not in one[1].images.unobtainable] or left
        return min(suited, key=lambda one: one[0].weight(one[1], image), default=None)

    async def pull_ahead(self, image: str) -> None:
        """Get `image` on all live hosts that lack it, one image at a time on each."""
        if not self._pulls:
            return
        async with anyio.create_task_group() as pulls:
            for _, engine in self.live:
                pulls.start_soon(engine.pull_ahead, image)
