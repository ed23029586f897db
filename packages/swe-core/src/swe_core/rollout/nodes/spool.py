"""Spool: finished rollouts on a node's disk, one file each, until the driver has them on its own disk."""

from __future__ import annotations

import io
import logging
import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING
from zipfile import BadZipFile

import orjson

from swe_core.api.chain import Chain
from swe_core.api.records import Rollout
from swe_core.api.worker import FinishedRollout
from swe_core.errors import SweError

if TYPE_CHECKING:
    from hashlib import _Hash as HASH

logger = logging.getLogger(__name__)

_SUFFIX = ".tar"
_RECORD, _ROWS, _DIGEST = "record.json", "rows.npz", "sha256"
"""The first files in the archive of a rollout, and the last. Those between are of its folder."""
_NEW = ".new"
PART = 4 * 1024 * 1024
"""Bytes that one read returns at most."""


class Spool:
    """The finished rollouts of a node. A file appears whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, rollout_id: str, record: bytes, chains: Sequence[Chain], folder: Path) -> None:
        """Add a rollout with the files of its folder, and remove the folder. On return it is on disk.

        Args:
            record: Its record as JSON, without secrets.

        Raises:
            OSError: It cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        target = self._file(rollout_id)
        unfinished = target.with_suffix(_NEW)
        try:
            with unfinished.open("wb") as file:
                with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                    digest = sha256()
                    _put(archive, _RECORD, record, digest)
                    if chains:
                        _put(archive, _ROWS, _packed(chains), digest)
                    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                        _put(archive, str(path.relative_to(folder)), path.read_bytes(), digest)
                    _put(archive, _DIGEST, digest.hexdigest().encode(), digest)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(target)
        except OSError:
            unfinished.unlink(missing_ok=True)  # frees the space on a full disk
            raise
        _sync(self.path)
        shutil.rmtree(folder, ignore_errors=True)  # the rollout is kept, whatever becomes of its folder

    def ids(self) -> list[str]:
        """Return the ids of the rollouts here."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.path.glob(f"*{_SUFFIX}"))

    def read(self, rollout_id: str, offset: int) -> bytes:
        """Return up to `PART` bytes of a rollout's file; none at its end.

        Raises:
            OSError: It cannot be read, or is not here.
        """
        with self._file(rollout_id).open("rb") as file:
            file.seek(offset)
            return file.read(PART)

    def remove(self, rollout_id: str) -> None:
        """Remove a rollout, if it is here."""
        self._file(rollout_id).unlink(missing_ok=True)

    def _file(self, rollout_id: str) -> Path:
        return self.path / f"{rollout_id}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Incoming:
    """A rollout that was unpacked and is on disk, beside its place.

    Args:
        path: Where its files are.
        folder: Where they belong.
    """

    finished: FinishedRollout
    path: Path
    folder: Path

    def place(self) -> FinishedRollout:
        """Put the files into the rollout's folder. On return this is on disk.

        Raises:
            OSError: They cannot be put there.
        """
        shutil.rmtree(self.folder, ignore_errors=True)  # of a driver that was killed
        self.path.replace(self.folder)
        _sync(self.folder.parent)
        return self.finished

    def discard(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.path, ignore_errors=True)


def unpack(file: IO[bytes], folders: Path) -> Incoming:
    """Unpack the file of a rollout beside its folder below `folders`. On return it is on disk.

    Raises:
        SweError: The file is damaged.
        OSError: The folder cannot be written.
    """
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            members, digest = iter(archive), sha256()
            record = Rollout.model_validate_json(_content(archive, next(members), digest))
            chains: Sequence[Chain] = ()
            before = ""
            incoming = folders / f".{record.id}.incoming"
            shutil.rmtree(incoming, ignore_errors=True)  # of a driver that was killed
            incoming.mkdir(parents=True)
            for member in members:
                before = digest.hexdigest()
                content = _content(archive, member, digest)
                if member.name == _ROWS:
                    chains = _unpacked(content)
                    continue
                if member.name == _DIGEST:
                    break
                path = incoming / member.name
                if not path.resolve().is_relative_to(incoming.resolve()):
                    raise ValueError(f"the name {member.name!r} leads out of the folder")
                path.parent.mkdir(exist_ok=True)
                _write(path, content)
            else:
                raise ValueError("its end is missing")
            if content.decode() != before:
                raise ValueError("its digest is another")
    except (tarfile.TarError, ValueError, StopIteration, BadZipFile, EOFError, KeyError) as error:
        raise SweError(f"the file of a finished rollout is damaged: {error}") from None
    for path in {incoming, *(path for path in incoming.iterdir() if path.is_dir())}:
        _sync(path)
    return Incoming(FinishedRollout(record, chains), incoming, folders / record.id)


def _put(archive: tarfile.TarFile, name: str, content: bytes, digest: HASH) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
    _count(digest, name, content)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, digest: HASH) -> bytes:
    file = archive.extractfile(member)
    if file is None:
        raise ValueError(f"{member.name!r} is no file")
    content = file.read()
    _count(digest, member.name, content)
    return content


def _count(digest: HASH, name: str, content: bytes) -> None:
    digest.update(f"{len(name.encode())} {name} {len(content)} ".encode())
    digest.update(content)


def _packed(chains: Sequence[Chain]) -> bytes:
    """Return rows as one numpy file."""
    import numpy as np  # only an engine with exact tokens makes rows

    heads = orjson.dumps([{"turns": chain.turns, "cause": chain.cause} for chain in chains])
    arrays = {"heads": np.frombuffer(heads, np.uint8)}
    for number, chain in enumerate(chains):
        for name in _ARRAYS:
            arrays[f"{number}.{name}"] = getattr(chain, name)
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy types the names of its own options only
    return file.getvalue()


_ARRAYS = ("input_ids", "completion_mask", "old_log_probs", "versions")


def _unpacked(content: bytes) -> Sequence[Chain]:
    import numpy as np

    with np.load(io.BytesIO(content)) as arrays:
        return [
            Chain(
                turns=tuple(head["turns"]),
                cause=head["cause"],
                **{name: arrays[f"{number}.{name}"] for name in _ARRAYS},
            )
            for number, head in enumerate(orjson.loads(arrays["heads"].tobytes()))
        ]


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
