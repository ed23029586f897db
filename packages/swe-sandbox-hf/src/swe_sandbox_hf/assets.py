"""Assets in a data set of the Hub, which sandboxes mount. Each is uploaded once, not once per sandbox."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import anyio
import anyio.to_thread
from huggingface_hub import CommitOperationAdd, DatasetInfo, Volume
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars

from swe_core.api.sandbox import ASSETS_DIR, Asset
from swe_core.errors import ConfigError, SandboxError, SweError
from swe_core.hub.errors import Advice, Kind, Problem
from swe_core.sandboxing.followed.archives import FORMAT, write
from swe_sandbox_hf.client import ATTEMPTS, Client

FOLDER = "swe-core-assets"
"""Folder of the archives in the repository. Sandboxes mount only this folder."""
MOUNT = "/mnt/swe-core-assets"
"""Mount point of that folder in a sandbox."""
_KIND = "dataset"
_FORBIDDEN: tuple[Kind, ...] = ("scope", "missing")
_WRONG: tuple[Kind, ...] = (*_FORBIDDEN, "name")
_DIGEST_SIZE = 16


@dataclass(frozen=True, slots=True)
class Mounted:
    """Mounted assets of a sandbox, in place of uploads.

    Args:
        volumes: Volumes that the job mounts.
        contents: Directory inside → the archive inside to unpack there.
    """

    volumes: Sequence[Volume] = ()
    contents: Mapping[str, PurePosixPath] = field(default_factory=dict)


class AssetsRepo:
    """The archives of assets in a data set of the Hub.

    The name of an archive contains the digest of its asset, and each commit names its parent. So no archive
    is uploaded twice or replaced. Sandboxes mount the first commit that was found or made; later changes to
    the data set do not reach them. After the Hub has refused a write for lack of permission, later calls only
    look whether another user has uploaded the missing archives.

    Args:
        repo_id: OWNER/NAME of the data set.
    """

    def __init__(self, repo_id: str) -> None:
        self._repo_id = repo_id
        self._revisions: dict[frozenset[str], str] = {}
        self._unwritable: Problem | None = None
        self._looking = anyio.Lock()

    async def prepare(self, client: Client) -> None:
        """Check that the data set exists, or create it as a private one.

        Raises:
            ConfigError: The token may not read or create the data set.
            SandboxError: The Hub does not answer.
        """
        await self._info(client)

    async def mounted(self, client: Client, assets: Sequence[Asset]) -> Mounted:
        """Upload the assets that the data set lacks, and return what a sandbox mounts.

        Raises:
            ConfigError: See `prepare`.
            SandboxError: An asset is missing and cannot be uploaded.
        """
        if not assets:
            return Mounted()
        wanted = {f"{FOLDER}/{_name(asset)}": asset for asset in assets}
        async with self._looking:
            names = frozenset(wanted)
            if names not in self._revisions:
                self._revisions[names] = await self._revision(client, wanted)
            revision = self._revisions[names]
        volume = Volume(
            type=_KIND,
            source=self._repo_id,
            mount_path=MOUNT,
            revision=revision,
            read_only=True,
            path=FOLDER,
        )
        contents = {f"{ASSETS_DIR}/{asset.name}": PurePosixPath(MOUNT, _name(asset)) for asset in assets}
        return Mounted((volume,), contents)

    def forget(self, mounted: Mounted) -> None:
        """Forget the revision of `mounted` after a sandbox with it failed to open. The next looks again."""
        stale = {volume.revision for volume in mounted.volumes}
        self._revisions = {names: one for names, one in self._revisions.items() if one not in stale}

    async def _revision(self, client: Client, wanted: Mapping[str, Asset]) -> str:
        """Return a commit that has all wanted archives."""
        for _ in range(ATTEMPTS):
            info = await self._info(client)
            there = {sibling.rfilename for sibling in info.siblings or ()}
            missing = {path: asset for path, asset in wanted.items() if path not in there}
            if not missing:
                return str(info.sha)
            if not info.private:
                raise SandboxError(
                    f"the data set {self._repo_id!r} of sandbox.hf.assets_repo is public, and the files of "
                    f"{_listed(missing)} are not in it yet: make it private, or name another one"
                )
            made = await self._commit(client, missing, info.sha)
            if made is not None:
                return made
        raise SandboxError(
            f"the files of {_listed(wanted)} cannot be uploaded to the data set {self._repo_id!r} of "
            f"sandbox.hf.assets_repo: it was changed by others during each of {ATTEMPTS} attempts"
        )

    async def _commit(self, client: Client, missing: Mapping[str, Asset], parent: str | None) -> str | None:
        """Add archives to the commit `parent`. Return the new commit, or None if `parent` is outdated."""

        def commit(directory: str) -> str:
            made = client.api.create_commit(
                self._repo_id,
                [CommitOperationAdd(path, Path(directory, path)) for path in missing],
                commit_message=f"Add {_listed(missing)}",
                repo_type=_KIND,
                parent_commit=parent,
            )
            return str(made.oid)

        def compress(directory: str) -> None:
            for path, asset in missing.items():
                write(asset.path, Path(directory, path), f"asset {asset.name}")

        doing = (
            f"upload the files of {_listed(missing)} to the data set {self._repo_id!r} of "
            "sandbox.hf.assets_repo, which lacks them"
        )
        if self._unwritable is not None:
            raise _refused(self._unwritable, doing)
        disable_progress_bars()  # they would garble the display of a run
        with tempfile.TemporaryDirectory(prefix="swe-hf-", ignore_cleanup_errors=True) as directory:
            await anyio.to_thread.run_sync(compress, directory)
            try:
                return str(await client.call(commit, directory))
            except Exception as error:  # the client raises errors of several libraries
                problem = client.problem(error)
                if problem.kind == "changed":
                    return None
                if problem.kind not in _FORBIDDEN:
                    raise client.explained(error, doing) from error
                if problem.kind == "scope":  # a missing data set may be created again
                    self._unwritable = problem
                raise _refused(problem, doing) from error

    async def _info(self, client: Client) -> DatasetInfo:
        """Return the current state of the data set, and create it if it is missing."""
        look = partial(client.api.dataset_info, self._repo_id)
        create = partial(client.api.create_repo, self._repo_id, repo_type=_KIND, private=True, exist_ok=True)
        try:
            try:
                found = await client.call(look)
            except RepositoryNotFoundError:
                await client.call(create)
                found = await client.call(look)
        except Exception as error:  # the client raises errors of several libraries
            raise self._explained(client, error) from error
        info: DatasetInfo = found
        return info

    def _explained(self, client: Client, error: Exception) -> SweError:
        doing = f"use the data set {self._repo_id!r} of sandbox.hf.assets_repo"
        problem = client.problem(error)
        if problem.kind in _WRONG:
            advice: Advice = {
                "scope": "name one of yours or of your organisation, and give the token read and write "
                "access to its contents"
            }
            return ConfigError(problem.sentence(doing, advice))
        return client.explained(error, doing)


def _refused(problem: Problem, doing: str) -> SandboxError:
    remedy = "run once with a token that may write there, or leave the setting out"
    return SandboxError(problem.sentence(doing, dict.fromkeys(_FORBIDDEN, remedy)))


def _name(asset: Asset) -> str:
    """Return the name of the asset's archive, which is the same on every machine."""
    digest = hashlib.blake2b(asset.digest.encode(), digest_size=_DIGEST_SIZE).hexdigest()
    return f"{asset.name}-{digest}.{FORMAT}"


def _listed(assets: Mapping[str, Asset]) -> str:
    return ", ".join(sorted(repr(asset.name) for asset in assets.values()))
