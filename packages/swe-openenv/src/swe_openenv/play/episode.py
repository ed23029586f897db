"""Episode: one environment of a server, from `reset` to its end."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from swe_core.errors import SandboxDied, SandboxError
from swe_core.system.printable import one_line
from swe_openenv.play.address import Address
from swe_openenv.play.client import EpisodeClient

CONNECTING = 30.0
"""Seconds to connect to a server."""
GRACE = 3.0
"""Seconds in which a cancelled message may still be answered."""
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

    A message that is given up ends the episode, since its answer may still come: one that is not answered in
    time, and a cancelled one. So most messages are shielded from cancellation, and short. Those with a limit
    of their own, which may be long, are given up `GRACE` seconds after they were cancelled.

    Args:
        timeout: Seconds for each message without a limit of its own.
    """

    def __init__(self, client: EpisodeClient, address: Address, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._turn = anyio.Lock()
        self._lost = ""
        self.name = f"the episode of {str(address)!r}"

    @property
    def lost(self) -> bool:
        """Return whether the episode is over."""
        return bool(self._lost)

    async def reset(self, address: Address, timeout: float) -> None:
        """Start the task. Cancelling it ends the episode.

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

        Args:
            timeout: A limit of its own, for a call that may be long; cancelling it ends the episode.

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

    async def step(self, action: Mapping[str, Any], timeout: float) -> Stepped:
        """Take a step. Cancelling it ends the episode.

        Raises:
            ServerRefused: The environment refused it.
            SandboxDied: The episode is over.
        """
        result = await self._said(lambda: self._client.step(dict(action)), "a step", timeout)
        observation = result.observation if isinstance(result.observation, Mapping) else {}
        return Stepped(observation, result.reward, result.done is True)

    async def _said(self, ask: Callable[[], Awaitable[T]], what: str, timeout: float | None) -> T:
        """Send a message and return the answer, shielded from cancellation if it has no own `timeout`."""
        seconds = timeout or self._timeout
        async with self._turn:
            if self._lost:
                raise SandboxDied(self._lost)
            try:
                if timeout is not None:
                    return await self._hurried(ask, what, seconds)
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

    async def _hurried(self, ask: Callable[[], Awaitable[T]], what: str, seconds: float) -> T:
        """Return the answer; once cancelled, wait `GRACE` for it, since then the episode can end in order.

        Raises:
            TimeoutError: There is none in time.
        """
        scope = anyio.CancelScope(deadline=anyio.current_time() + seconds, shield=True)
        answers: list[T] = []
        errors: list[Exception] = []

        async def hurry() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                scope.deadline = min(scope.deadline, anyio.current_time() + GRACE)

        async with anyio.create_task_group() as watching:
            watching.start_soon(hurry)
            with scope:
                try:
                    answers.append(await ask())
                except Exception as error:  # raised below, out of the group
                    errors.append(error)
            watching.cancel_scope.cancel()
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            if scope.cancelled_caught:
                self._lost = f"{self.name} is over: {what} was cancelled"
            raise
        if scope.cancelled_caught:
            raise TimeoutError
        if errors:
            raise errors[0]
        return answers[0]

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
    episode: Episode | None = None
    try:
        try:
            await client.connect()
        except Exception as error:  # the client raises errors of several libraries
            raise SandboxError(
                f"the OpenEnv server {address.url!r} cannot be reached: {one_line(str(error))}; check that "
                "it runs and is of OpenEnv 0.10 or newer"
            ) from None
        episode = Episode(client, address, timeout)
        yield episode
    finally:
        with anyio.CancelScope(shield=True):
            if episode is not None and not episode.lost:  # a server that does not answer takes no leave
                with anyio.move_on_after(CLOSING), suppress(Exception):  # a lost connection ends it as well
                    await client.leave()
            with anyio.move_on_after(CLOSING):
                await client.close()


def _member(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
