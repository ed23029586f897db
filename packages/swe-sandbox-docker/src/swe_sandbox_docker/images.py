"""Images on a host. A missing image is pulled or built once for all sandboxes that wait for it."""

from __future__ import annotations

import io
import json
import logging
import shlex
import tarfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx
from docker import APIClient, auth
from docker.errors import APIError
from docker.errors import ImageNotFound as Absent
from docker.utils import parse_repository_tag

from swe_core.errors import ImageNotFound, SandboxError
from swe_sandbox_docker.client import Client, reason

logger = logging.getLogger(__name__)

REPORT_EVERY = 5.0
"""Seconds between two log lines about a pull."""
BUILT: Mapping[str, Path] = {"swe-core-demo:1": Path(__file__).with_name("demo_image")}
"""Image → folder of its Dockerfile, for images that are in no registry: that of the demo tasks."""


@dataclass(slots=True)
class _Pull:
    done: anyio.Event = field(default_factory=anyio.Event)
    problem: str | None = None


class Images:
    """The images of one engine.

    Args:
        pull: With `never`, an image that is not on this host is an error.
        place: The engine's host, for messages.
    """

    def __init__(self, client: Client, pull: Literal["missing", "never"], place: str = "this host") -> None:
        self._client = client
        self._policy = pull
        self._place = place
        self._pulls: dict[str, _Pull] = {}

    async def ensure(self, image: str) -> dict[str, Any]:
        """Return the engine's description of `image`, and pull or build the image if it is not on this host.

        Raises:
            ImageNotFound: The image is missing and cannot be pulled or built.
            SandboxError: The name is invalid, or the engine does not answer.
        """
        while True:
            found = await self._inspect(image)
            if found is not None:
                return found
            if self._policy == "never":
                remedy = f"build it: `{_by_hand(image)}`" if image in BUILT else "pull, build or load it"
                raise ImageNotFound(
                    f"the image {image!r} is not on {self._place} and sandbox.docker.pull is 'never'; "
                    f"{remedy}, or set sandbox.docker.pull to 'missing'"
                )
            running = self._pulls.get(image)
            if running is None:
                await self._get_for_all(image)
            else:
                await running.done.wait()
                if running.problem is not None:
                    raise ImageNotFound(running.problem)

    async def _inspect(self, image: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._client.call(self._client.api.inspect_image, image)
        except Absent:
            return None
        except APIError as error:
            raise SandboxError(f"the image {image!r} cannot be used: {reason(error)}") from None
        return found

    async def _get_for_all(self, image: str) -> None:
        """Pull or build, and wake the waiting tasks. After a cancellation the next of them does it."""
        pull = self._pulls[image] = _Pull()
        try:
            pull.problem = await (self._build(image) if image in BUILT else self._pull(image))
        finally:
            del self._pulls[image]
            pull.done.set()
        if pull.problem is not None:
            raise ImageNotFound(pull.problem)

    async def _pull(self, image: str) -> str | None:
        """Pull, and log the progress. Return an error message, or None."""
        api = self._client.api
        repository, tag = parse_repository_tag(image)
        headers = await self._client.call(_credentials, api, repository)
        logger.info("pulling the image %s to %s", image, self._place)
        started = reported = time.monotonic()
        layers: dict[str, dict[str, int]] = {}
        params = {"fromImage": repository, "tag": tag or "latest"}
        pulled = self._events("/images/create", params, headers)
        async with aclosing(pulled) as events:
            async for event in events:
                if problem := event.get("error"):
                    return (
                        f"the image {image!r} is not on {self._place} and cannot be pulled: "
                        f"{' '.join(problem.split())}; check its name and the registry, or build or load "
                        f"it on {self._place}"
                    )
                _note(event, layers)
                if time.monotonic() - reported >= REPORT_EVERY:
                    reported = time.monotonic()
                    logger.info("pulling the image %s: %s", image, _summary(layers))
        logger.info("pulled the image %s to %s in %.0f s", image, self._place, time.monotonic() - started)
        return None

    async def _build(self, image: str) -> str | None:
        """Build an image of `BUILT`, and log its steps. Return an error message, or None."""
        logger.info("building the image %s, once on %s", image, self._place)
        started = time.monotonic()
        headers = {"Content-Type": "application/x-tar"}
        archive = _archive(BUILT[image])
        built = self._events("/build", {"t": image}, headers, archive)
        async with aclosing(built) as events:
            async for event in events:
                if problem := event.get("error"):
                    return (
                        f"the image {image!r} is not on {self._place} and cannot be built: "
                        f"{' '.join(problem.split())}; where a registry, Debian's packages and PyPI can be "
                        f"reached, build it with `{_by_hand(image)}`, or choose --sandbox local"
                    )
                if (line := event.get("stream", "").strip()).startswith("Step "):
                    logger.info("building the image %s: %s", image, line)
        logger.info("built the image %s in %.0f s", image, time.monotonic() - started)
        return None

    async def _events(
        self,
        path: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        content: bytes | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """POST, and yield the events of the reply. A refusal is an event with an `error`.

        This does not use docker-py, because a thread that waits for a registry cannot be cancelled. Closing
        the connection ends a pull or a build.

        Raises:
            SandboxError: The engine does not answer.
        """
        base, transport = self._client.http()
        try:
            async with (
                httpx.AsyncClient(transport=transport, timeout=None) as http,
                http.stream("POST", base + path, params=params, headers=headers, content=content) as reply,
            ):
                async for line in reply.aiter_lines():
                    event = json.loads(line)
                    yield {"error": event.get("message", line)} if reply.is_error else event
        except httpx.HTTPError as error:
            raise self._client.lost(error) from error


def _by_hand(image: str) -> str:
    """Return the command that builds an image of `BUILT`."""
    return shlex.join(["docker", "build", "-t", image, str(BUILT[image])])


def _archive(folder: Path) -> bytes:
    """Return a tar archive with the Dockerfile of `folder`, which needs no other file."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(folder / "Dockerfile", "Dockerfile")
    return archive.getvalue()


def _credentials(api: APIClient, repository: str) -> dict[str, str]:
    """Return the header with the user's Docker credentials for the image's registry. Blocking."""
    registry, _ = auth.resolve_repository_name(repository)
    header = auth.get_config_header(api, registry)
    return {"X-Registry-Auth": header.decode() if isinstance(header, bytes) else header} if header else {}


def _note(event: dict[str, Any], layers: dict[str, dict[str, int]]) -> None:
    """Record the progress of a layer from an event."""
    status = event.get("status", "")
    if status == "Pulling fs layer":
        layers[event["id"]] = {}
    layer = layers.get(event.get("id", ""))
    if layer is None:
        return
    if status == "Downloading":
        layer.update(event["progressDetail"])
    elif status == "Pull complete":
        layer["done"] = 1


def _summary(layers: dict[str, dict[str, int]]) -> str:
    done, current, total = (
        sum(layer.get(key, 0) for layer in layers.values()) for key in ("done", "current", "total")
    )
    return f"{done} of {len(layers)} layers done, {current / 1e6:.1f} of {total / 1e6:.1f} MB downloaded"
