"""Assets as volumes of an engine that cannot mount this machine's files. Each is copied once for all.

A volume is filled under a random name. Once it is complete, an empty volume is made whose name comes from the
asset and whose label names the full one. Making a volume that exists returns the existing one, with its own
labels, so that all runs use the copy that was complete first, and no volume changes once it is used.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence

import anyio
from docker.errors import APIError, NotFound
from docker.types import Mount

from swe_core.api.sandbox import ASSETS_DIR, Asset
from swe_core.errors import SandboxError
from swe_core.system.process_owner import LABEL, current_owner, is_orphaned
from swe_sandbox_docker.client import Client, reason

logger = logging.getLogger(__name__)

KIND = "swe-core.asset"
"""Label of all these volumes, with the asset's name."""
_CONTENT = "swe-core.asset.content"
"""Label that names the full volume of an asset."""
_FILL = "/swe-asset"
_SPOOL = 32 * 1024 * 1024


class AssetVolumes:
    """The assets on one engine.

    Args:
        place: The engine's host, for messages.
    """

    def __init__(self, client: Client, place: str) -> None:
        self._client = client
        self._place = place
        self._filling: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def mounts(self, assets: Sequence[Asset], image: str) -> list[Mount]:
        """Return the mounts of `assets`, and copy those that the engine lacks.

        Args:
            image: An image that the engine has; a container of it receives the files, and does not run.

        Raises:
            SandboxError: An asset cannot be read or copied, or the engine does not answer.
        """
        found = []
        for asset in assets:
            key = f"{asset.digest}\n{asset.path.resolve()}"
            name = f"swe-core-asset-{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}"
            async with self._filling[name]:
                try:
                    volume = await self._client.call(self._volume, name, asset, image)
                except APIError as error:
                    raise SandboxError(
                        f"the asset {asset.name!r} cannot be copied to {self._place}: {reason(error)}"
                    ) from None
            target = f"{ASSETS_DIR}/{asset.name}"
            found.append(Mount(target, volume, type="volume", read_only=True, no_copy=True))
        return found

    def _volume(self, name: str, asset: Asset, image: str) -> str:
        """Return the name of the volume with `asset`. Blocking."""
        api = self._client.api
        try:
            content: str = api.inspect_volume(name)["Labels"][_CONTENT]
            api.inspect_volume(content)  # a user may have removed it
            return content
        except NotFound:
            _remove(self._client, name)
        started = time.monotonic()
        volume = f"{name}-{secrets.token_hex(6)}"
        api.create_volume(volume, labels={KIND: asset.name, LABEL: current_owner()})
        try:
            self._fill(volume, asset, image)
            made = api.create_volume(name, labels={KIND: asset.name, _CONTENT: volume})
        except BaseException:  # also an interruption: no half of an asset stays
            _remove(self._client, volume)
            raise
        content = made["Labels"][_CONTENT]
        if content != volume:  # another run was faster
            _remove(self._client, volume)
        seconds = time.monotonic() - started
        logger.info("copied the asset %s to %s in %.1f s", asset.name, self._place, seconds)
        return content

    def _fill(self, volume: str, asset: Asset, image: str) -> None:
        api = self._client.api
        container = f"{volume}-fill"
        mount = Mount(_FILL, volume, type="volume", no_copy=True)
        api.create_container(
            image,
            entrypoint=["sh"],
            labels={LABEL: current_owner()},
            host_config=api.create_host_config(network_mode="none", mounts=[mount]),
            name=container,
        )
        try:
            with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as file:
                with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                    archive.add(asset.path, ".", filter=_roots)
                file.seek(0)
                api.put_archive(container, _FILL, file)
        except OSError as error:
            if error.filename is None:  # the engine's connection, not a file
                raise
            raise SandboxError(f"the asset {asset.name!r} cannot be read: {error}") from None
        finally:
            api.remove_container(container, force=True)

    def reap(self) -> None:
        """Remove copies that were not completed by a process that has exited. Blocking.

        Raises:
            docker.errors.APIError: The engine refuses.
        """
        volumes = self._client.api.volumes(filters={"label": KIND})["Volumes"] or ()
        labels = {volume["Name"]: volume["Labels"] or {} for volume in volumes}
        used = {found.get(_CONTENT) for found in labels.values()}
        for name, found in labels.items():
            if name not in used and is_orphaned(found.get(LABEL, "")):
                _remove(self._client, name)


def _roots(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _remove(client: Client, volume: str) -> None:
    try:
        client.api.remove_volume(volume)
    except NotFound:
        return
    except APIError as error:  # such as one in use
        logger.warning("the volume %s is left: %s", volume, reason(error))
