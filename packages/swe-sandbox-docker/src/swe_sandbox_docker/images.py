"""Images: found on this host, or pulled, once for all who wait for the same one."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import anyio.from_thread
from docker.errors import APIError
from docker.errors import ImageNotFound as Absent

from swe_core.errors import ImageNotFound, SandboxError
from swe_sandbox_docker.client import Client, reason

logger = logging.getLogger(__name__)

REPORT_EVERY = 5.0
"""Seconds between two lines about a pull."""


@dataclass(slots=True)
class _Pull:
    done: anyio.Event = field(default_factory=anyio.Event)
    problem: str | None = None


class Images:
    """The images of one engine.

    Args:
        pull: `never` makes an image that is not on this host an error at once.
    """

    def __init__(self, client: Client, pull: Literal["missing", "never"]) -> None:
        self._client = client
        self._policy = pull
        self._pulls: dict[str, _Pull] = {}

    async def ensure(self, image: str) -> dict[str, Any]:
        """What the engine says of `image`, which is pulled when it is not on this host.

        Raises:
            ImageNotFound: It is absent and cannot be pulled.
            SandboxError: The name is none, or the engine does not answer.
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
        """Pull, and tell those who wait. Cancelled, it leaves the pull to the next of them."""
        pull = self._pulls[image] = _Pull()
        try:
            await self._client.call(self._pull, image, abandon=True)
        except APIError as error:
            pull.problem = (
                f"the image {image!r} is not on this host and cannot be pulled: {reason(error)}; "
                "check its name and the registry, or build or load it on this host"
            )
            raise ImageNotFound(pull.problem) from None
        finally:
            del self._pulls[image]
            pull.done.set()

    def _pull(self, image: str) -> None:
        """In a thread: pull, with a line about it now and then."""
        logger.info("pulling the image %s", image)
        started = reported = time.monotonic()
        layers: dict[str, dict[str, Any]] = {}
        for event in self._client.api.pull(image, stream=True, decode=True):
            anyio.from_thread.check_cancelled()
            if "error" in event:
                raise APIError(event["error"], explanation=event["error"])
            if event.get("id") and event.get("progressDetail") is not None:
                layers.setdefault(event["id"], {}).update(_progress(event))
            if time.monotonic() - reported >= REPORT_EVERY:
                reported = time.monotonic()
                logger.info("pulling the image %s: %s", image, _summary(layers))
        logger.info("pulled the image %s in %.0f s", image, time.monotonic() - started)


def _progress(event: dict[str, Any]) -> dict[str, Any]:
    if event["status"] == "Downloading":
        return {key: event["progressDetail"].get(key, 0) for key in ("current", "total")}
    return {"done": event["status"] in ("Pull complete", "Already exists")}


def _summary(layers: dict[str, dict[str, Any]]) -> str:
    done = sum(layer.get("done", False) for layer in layers.values())
    current, total = (sum(layer.get(key, 0) for layer in layers.values()) for key in ("current", "total"))
    return f"{done} of {len(layers)} layers done, {current / 1e6:.0f} of {total / 1e6:.0f} MB downloaded"
