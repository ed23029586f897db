"""The objects of the local Kubernetes, and the events of those that watch them."""

from __future__ import annotations

import asyncio
import copy
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


class Refused(Exception):
    """An answer with a `Status` of the API.

    Args:
        status: The HTTP status.
        reason: As in the API, such as `NotFound`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    def json(self) -> Object:
        """Return the `Status`."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.status,
        }


class Objects:
    """All objects by plural name, namespace and name."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._versions = itertools.count(1)
        self._events: list[tuple[int, str, str, Object]] = []
        self._news = asyncio.Event()

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """Return an object.

        Raises:
            Refused: It does not exist.
        """
        found = self._objects.get((plural, namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        return found

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        return self._objects.get((plural, namespace, name))

    def all(self, plural: str, namespace: str | None = None) -> list[Object]:
        """Return the objects of a kind."""
        return [
            found
            for (kind, place, _), found in self._objects.items()
            if kind == plural and namespace in (None, place)
        ]

    def create(self, plural: str, namespace: str, body: Object) -> Object:
        """Create an object.

        Raises:
            Refused: It exists.
        """
        made = copy.deepcopy(body)
        metadata = made.setdefault("metadata", {})
        key = (plural, namespace, metadata["name"])
        if key in self._objects:
            raise Refused(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
        metadata["namespace"] = namespace
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._objects[key] = made
        self._tell("ADDED", plural, made)
        return made

    def change(self, plural: str, thing: Object, **status: Any) -> None:
        """Change the status of an object."""
        thing["status"] = {**thing.get("status", {}), **status}
        if self._objects.get((plural, thing["metadata"]["namespace"], thing["metadata"]["name"])) is thing:
            self._tell("MODIFIED", plural, thing)

    def remove(self, plural: str, thing: Object) -> None:
        """Remove an object, if it is still there."""
        metadata = thing["metadata"]
        if self._objects.pop((plural, metadata["namespace"], metadata["name"]), None) is not None:
            self._tell("DELETED", plural, thing)

    async def watch(self, plural: str, version: int) -> AsyncIterator[tuple[str, Object]]:
        """Yield the events of a kind after a version; version 0 begins with what there is."""
        if version == 0:
            version = max((event[0] for event in self._events), default=0)
            for found in self.all(plural):
                yield "ADDED", copy.deepcopy(found)
        while True:
            news = self._news
            for event in self._after(version):
                version = event[0]
                if event[2] == plural:
                    yield event[1], event[3]
            await news.wait()

    def _after(self, version: int) -> Iterator[tuple[int, str, str, Object]]:
        return iter([event for event in self._events if event[0] > version])

    def _tell(self, kind: str, plural: str, thing: Object) -> None:
        version = next(self._versions)
        thing["metadata"]["resourceVersion"] = str(version)
        self._events.append((version, kind, plural, copy.deepcopy(thing)))
        self._news.set()
        self._news = asyncio.Event()
