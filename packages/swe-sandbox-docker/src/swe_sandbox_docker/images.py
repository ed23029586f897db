"""Images on this host. A missing image is pulled once for all sandboxes that wait for it."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Pull:
    done: anyio.Event = field(default_factory=anyio.Event)
    problem: str | None = None


class Images:
    """The images of one engine.

    Args:
        pull: With `never`, an image that is not on this host is an error.
    """

    def __init__(self, client: Client, pull: Literal["missing", "never"]) -> None:
        self._client = client
        self._policy = pull
        self._pulls: dict[str, _Pull] = {}

    async def ensure(self, image: str) -> dict[str, Any]:
        """Return the engine's description of `image`, and pull the image if it is not on this host.

        Raises:
            ImageNotFound: The image is missing and cannot be pulled.
            SandboxError: The name is invalid, or the engine does not answer.
        """
        while True:
            found = await self._inspect(image)
            if found is not None:
                return found
            if self._policy == "never":
                raise ImageNotFound(
                    f"the image {image!r} is not on this host and sandbox.docker.pull is 'never'; "
                    "pull, build or load it, or set sandbox.docker.pull to 'missing'"
                )
            running = self._pulls.get(image)
            if running is None:
                await self._pull_for_all(image)
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

    async def _pull_for_all(self, image: str) -> None:
        """Pull, and wake the waiting tasks. After a cancellation the next of them pulls."""
        pull = self._pulls[image] = _Pull()
        try:
            pull.problem = await self._pull(image)
        finally:
            del self._pulls[image]
            pull.done.set()
        if pull.problem is not None:
            raise ImageNotFound(pull.problem)

    async def _pull(self, image: str) -> str | None:
        """Pull, and log the progress. Return an error message, or None.

        This does not use docker-py, because a thread that waits for a registry cannot be cancelled. Closing
        the connection ends the pull.
        """
        api = self._client.api
        repository, tag = parse_repository_tag(image)
        headers = await self._client.call(_credentials, api, repository)
        logger.info("pulling the image %s", image)
        started = reported = time.monotonic()
        layers: dict[str, dict[str, int]] = {}
        transport = httpx.AsyncHTTPTransport(uds=self._client.socket)
        url = f"http://docker/v{api.api_version}/images/create"
        params = {"fromImage": repository, "tag": tag or "latest"}
        try:
            async with (
                httpx.AsyncClient(transport=transport, timeout=None) as http,
                http.stream("POST", url, params=params, headers=headers) as reply,
            ):
                async for line in reply.aiter_lines():
                    event = json.loads(line)
                    problem = event.get("error") or (reply.is_error and event.get("message"))
                    if problem:
                        return (
                            f"the image {image!r} is not on this host and cannot be pulled: "
                            f"{' '.join(problem.split())}; check its name and the registry, or build or load "
                            "it on this host"
                        )
                    _note(event, layers)
                    if time.monotonic() - reported >= REPORT_EVERY:
                        reported = time.monotonic()
                        logger.info("pulling the image %s: %s", image, _summary(layers))
        except httpx.HTTPError as error:
            raise SandboxError(
                f"the Docker Engine at {self._client.host!r} failed while it pulled the image {image!r}: "
                f"{reason(error)}"
            ) from error
        logger.info("pulled the image %s in %.0f s", image, time.monotonic() - started)
        return None


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
