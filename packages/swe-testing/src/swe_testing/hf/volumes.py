"""Volumes: repositories of the local Hub that jobs see as directories."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from swe_testing.boxes import Mount
from swe_testing.hf.accounts import Refused
from swe_testing.hf.hub import Hub
from swe_testing.hf.repos import MAIN, Kind

_KINDS = ("model", "dataset", "space")
_SERVER_MOUNT = "SBX_SERVER_MOUNT"


@dataclass(frozen=True, slots=True)
class Volume:
    """The state of a repository at the creation of a job.

    Args:
        files: Path below the volume → content.
        target: Its directory in the job.
    """

    files: Mapping[str, bytes]
    target: str

    def written(self, directory: Path) -> Mount:
        """Write it to a new directory of this machine, blocking."""
        directory.mkdir(parents=True)
        for name, data in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return Mount(directory, self.target)


def volumes_of(request: web.Request, hub: Hub, spec: Mapping[str, Any]) -> Sequence[Volume]:
    """Return the volumes of a job's request, each at its revision now.

    The bucket from which a sandbox's client installs its server is ignored: sandboxes here have a server.

    Raises:
        Refused: 400 where it is invalid, 404 where there is no such repository, revision or folder, 401 or
            403 where the token may not read it.
    """
    server = (spec.get("environment") or {}).get(_SERVER_MOUNT)
    asked = [one for one in spec.get("volumes") or () if one["mountPath"] != server]
    targets = [str(one["mountPath"]) for one in asked]
    for target in targets:
        if target == "/" or posixpath.normpath(target) != target or not posixpath.isabs(target):
            raise Refused(400, f"Invalid mountPath {target!r}: expected an absolute path")
        if targets.count(target) > 1:
            raise Refused(400, f"Duplicate mountPath {target!r}")
    return [_volume(request, hub, one) for one in asked]


def _volume(request: web.Request, hub: Hub, asked: Mapping[str, Any]) -> Volume:
    kind, source, folder = asked["type"], asked["source"], (asked.get("path") or "").strip("/")
    if kind not in _KINDS:
        raise Refused(404, f"Cannot mount {source!r}: there is no such {kind}")
    if not asked.get("readOnly", True):
        raise Refused(400, f"A {kind} can only be mounted read-only")
    try:
        files = hub.visible(request, cast(Kind, kind), source).at(asked.get("revision") or MAIN).files
    except Refused as refused:  # without its code, which would mean the job
        raise Refused(refused.status, f"Cannot mount {source!r}: {refused.message}") from None
    if not folder:
        return Volume(files, asked["mountPath"])
    inside = {
        path.removeprefix(f"{folder}/"): data for path, data in files.items() if path.startswith(f"{folder}/")
    }
    if not inside:
        raise Refused(404, f"Cannot mount {source!r}: it has no folder {folder!r}")
    return Volume(inside, asked["mountPath"])
