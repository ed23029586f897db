"""Episode: one environment of a server, from `reset` to its end."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from swe_core.errors import SandboxDied, SandboxError
from swe_core.system.printable import one_line
from swe_openenv.play.address import Address
from swe_openenv.play.client import EpisodeClient

CONNECTING = 30.0
"""Seconds to connect to a server."""
CLOSING = 30.0
"""Seconds for a server to take leave."""
_CODE = re.compile(r"\(code: (\w+)\)\s*$")

T = TypeVar("T")


class ServerFull(SandboxError):
    """The server has as many episodes as it may have."""


class ServerRefused(SandboxError):
    """The server answered with an error, and the episode goes on.

    Args:
        code: The server's name of the error; "" without one.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Stepped:
    """An observation.

    Args:
        observation: Its fields, without reward.
        reward: As the server gave it.
        done: Whether the episode is over.
    """

    observation: Mapping[str, Any]
    reward: object
    done: bool


class Episode:
    """An open connection to an environment. One message is under way at a time; more wait.

    A message under way is never cancelled, since the client would give the connection up, and with it the
    environment. A message that is not answered in time ends the episode.

    Args:
        timeout: Seconds for each message without a limit of its own.
    """

    def __init__(self, client: EpisodeClient, address: Address, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._turn = anyio.Lock()
        self._lost = ""
        self.name = f"the episode of {str(address)!r}"

    async def reset(self, address: Address, timeout: float) -> None:
        """Start the task.

        Raises:
            ServerFull: There is no place for one more episode.
            SandboxError: The server failed or refused.
        """
        await self._said(
            lambda: self._client.reset(split=address.split, index=address.index), "its reset", timeout
        )

    async def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the environment's tools, as `tools/list` gives them; none without MCP.

        Raises:
            SandboxError: The server failed.
        """
        answer = await self._said(lambda: self._client.rpc("tools/list", {}), "tools/list", None)
        found = _member(_member(answer, "result"), "tools")
        if not isinstance(found, list):
            return ()
        return [tool for tool in found if isinstance(tool, Mapping) and isinstance(tool.get("name"), str)]

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout: float | None = None) -> object:
        """Call a tool and return its result, in the server's own shape.

        Raises:
            ServerRefused: The tool failed.
            SandboxDied: The episode is over.
        """
        params = {"name": tool, "arguments": dict(arguments)}
        answer = await self._said(
            lambda: self._client.rpc("tools/call", params), f"the tool {tool!r}", timeout
        )
        if not isinstance(answer, Mapping) or "result" not in answer:
            said = _member(_member(answer, "error"), "message") or answer
            raise ServerRefused(f"the tool {tool!r} failed in {self.name}: {one_line(str(said))}")
        return answer["result"]

    async def step(self, action: Mapping[str, Any], timeout: float | None = None) -> Stepped:
        """Take a step.

        Raises:
            ServerRefused: The environment refused it.
            SandboxDied: The episode is over.
        """
        result = await self._said(lambda: self._client.step(dict(action)), "a step", timeout)
        observation = result.observation if isinstance(result.observation, Mapping) else {}
        return Stepped(observation, result.reward, result.done is True)

    async def _said(self, ask: Callable[[], Awaitable[T]], what: str, timeout: float | None) -> T:
        """Send a message and return the answer, shielded from cancellation."""
        seconds = timeout or self._timeout
        async with self._turn:
            if self._lost:
                raise SandboxDied(self._lost)
            try:
                with anyio.fail_after(seconds, shield=True):
                    return await ask()
            except TimeoutError:
                self._lost = f"{self.name} is over: the server did not answer {what} within {seconds:g} s"
            except RuntimeError as error:  # the client's error for an error message of the server
                raise self._refused(error, what) from None
            except Exception as error:  # the client raises errors of several libraries
                said = one_line(f"{type(error).__name__} {error}".rstrip())
                self._lost = f"{self.name} is over: the server did not answer {what}: {said}"
            raise SandboxDied(self._lost)

    def _refused(self, error: RuntimeError, what: str) -> SandboxError:
        text = str(error)
        match = _CODE.search(text)
        code = match[1] if match else ""
        said = one_line(_CODE.sub("", text).removeprefix("Server error: "))
        if code == "CAPACITY_REACHED":
            return ServerFull(f"the OpenEnv server has no place for {self.name}: {said}")
        if code in ("FACTORY_ERROR", "SESSION_ERROR"):
            self._lost = f"{self.name} is over: the server could not make its environment: {said}"
            return SandboxDied(self._lost)
        return ServerRefused(f"the server refused {what} in {self.name}: {said}", code)


@asynccontextmanager
async def opened(address: Address, timeout: float) -> AsyncIterator[Episode]:
    """Connect to a server; leaving ends the episode, shielded from cancellation.

    Raises:
        SandboxError: The server does not answer.
    """
    client = EpisodeClient(address.url, CONNECTING)
    try:
        try:
            await client.connect()
        except Exception as error:  # the client raises errors of several libraries
            raise SandboxError(
                f"the OpenEnv server {address.url!r} cannot be reached: {one_line(str(error))}; check that "
                "it runs and is of OpenEnv 0.10 or newer"
            ) from None
        yield Episode(client, address, timeout)
    finally:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLOSING), suppress(Exception):  # a lost connection ends it as well
                await client.leave()
            with anyio.move_on_after(CLOSING):
                await client.close()


def _member(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
