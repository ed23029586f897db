"""Rollouts at a server that `swe-core openenv serve` started, by OpenEnv's own client."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import anyio
import httpx
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import WebSocketException

from swe_core.errors import ConfigError, SweError, UsageError
from swe_openenv.harness.episode import Observation
from swe_openenv.harness.health import Health
from swe_openenv.harness.sampling import check_sampling
from swe_openenv.urls import server_url

logger = logging.getLogger(__name__)

_NO_LIMIT = 7 * 24 * 3600.0
"""Seconds until the client gives up a message: the server limits how long a rollout takes."""
_PAUSES = (0.0, 0.2, 1.0, 2.0, 5.0)
"""Seconds before each further try; the last one is repeated."""
_HELD = 10.0
"""Seconds after which a connection counts as one that worked."""
_CONNECT = 10.0
"""Seconds until a try to connect is given up."""
_PARTING = 5.0
"""Seconds that letting go of a rollout may take."""
_PAGE = 1000
"""Tasks in one answer of the server."""
_SAID = re.compile(r"Server error: (.*) \(code: (\w+)\)", re.DOTALL)


class _NoAnswer(Exception):
    """The server did not answer; it may do so soon."""


class _Full(_NoAnswer):
    """The server has no room for another connection now."""


@asynccontextmanager
async def open_there(
    url: str, key: str | None, timeout: float, sampling: Mapping[str, float] | None, health: Health
) -> AsyncIterator[RemoteHost]:
    """Ask a server what it runs, and return it as a host.

    Args:
        timeout: Seconds for which it may be out of reach.
        sampling: How the trainer samples; None if nothing is trained.

    Raises:
        ConfigError: The server does not answer, runs no agent, or samples in another way.
    """
    host = RemoteHost(url, key, timeout, health)
    async with httpx.AsyncClient(base_url=host.url, headers=host.headers, timeout=timeout) as http:
        try:
            told = _capabilities(host.url, await http.post("/mcp", json=_CAPABILITIES))
        except httpx.HTTPError as error:
            raise _out_of_reach(host.url, error) from None
        if told["interactive"]:
            raise ConfigError(
                f"the clients of the server {host.url!r} are the agents: start it without --interactive"
            )
        if sampling is not None:
            remedy = "start it with that as --set engine.vllm.{}, or change the trainer's"
            check_sampling(sampling, told.get("sampling"), f"the server {host.url!r}", remedy)
        host.http = http
        try:
            yield host
        finally:
            with anyio.CancelScope(shield=True):
                await host.disconnect()


def ask_tasks(url: str, key: str | None) -> list[str]:
    """Return the ids of a server's tasks, in their order.

    Raises:
        ConfigError: The server does not answer, or not as OpenEnv's servers do.
    """
    host = RemoteHost(url, key, 0, Health(1))
    ids: list[str] = []
    try:
        with httpx.Client(base_url=host.url, headers=host.headers) as http:
            told = _capabilities(host.url, http.post("/mcp", json=_CAPABILITIES))
            (name,) = http.get("/list_environments").raise_for_status().json()
            while len(ids) < told["tasks"]:
                page = {"split": told["split"], "start": len(ids), "stop": len(ids) + _PAGE}
                answer = http.post(f"/{name}/task_range", json=page).raise_for_status().json()
                found = [str(task["id"]) for task in answer["tasks"]]
                if not found:
                    raise ValueError("an empty page of tasks")
                ids += found
    except httpx.HTTPError as error:
        raise _out_of_reach(host.url, error) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"the server {host.url!r} does not list its tasks as OpenEnv's servers do: expected one started "
            "by `swe-core openenv serve`"
        ) from None
    return ids


class RemoteHost:
    """See `Host`.

    Args:
        timeout: Seconds for which the server may be out of reach.

    Raises:
        ConfigError: The URL is none.
    """

    http: httpx.AsyncClient

    def __init__(self, url: str, key: str | None, timeout: float, health: Health) -> None:
        try:
            self.url = server_url(url)
        except ValueError as error:
            raise ConfigError(f"the url is not usable: {error}") from None
        self.headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        self.timeout = timeout
        self.health = health
        self.connected: set[RemoteEpisode] = set()

    def episode(self, episode_id: str, chosen: Mapping[str, Any]) -> RemoteEpisode:
        """See `Host`."""
        return RemoteEpisode(self, episode_id, chosen)

    async def disconnect(self) -> None:
        """Close the connections that are open."""
        with anyio.move_on_after(_PARTING):
            async with anyio.create_task_group() as group:
                for episode in [*self.connected]:
                    group.start_soon(episode.disconnect)

    def client(self) -> GenericEnvClient:
        """Return a client, not connected, that waits as long as a rollout takes."""
        return GenericEnvClient(
            base_url=self.url,
            connect_timeout_s=_CONNECT,
            message_timeout_s=_NO_LIMIT,
            headers=self.headers,
            mode="simulation",
        )


class RemoteEpisode:
    """See `Episode`. It lives at the server under its id, so a connection that is lost is made again."""

    def __init__(self, host: RemoteHost, episode_id: str, chosen: Mapping[str, Any]) -> None:
        self.id = episode_id
        self._host = host
        self._chosen = {name: value for name, value in chosen.items() if value is not None}
        self._client: GenericEnvClient | None = None
        self._last: Observation = {}
        self._ended: anyio.Event | None = None
        self._closed = False

    async def begin(self) -> None:
        """See `Episode`. A server that does not answer is asked again by `run`."""
        try:
            await self._reset()
        except _NoAnswer:
            await self.disconnect()
        except SweError:
            await self.disconnect()
            raise

    async def run(self) -> Observation:
        """See `Episode`."""
        self._ended = anyio.Event()
        try:
            return await self._run()
        finally:
            self._ended.set()

    async def _run(self) -> Observation:
        tries, failing = 0, time.monotonic()
        while True:
            began, connected = time.monotonic(), self._client is not None
            try:
                if not connected:
                    await self._reset()
                    connected = True
                if not self._last["done"]:
                    self._last = await self._ask("step", {"type": "run_agent"})
                if not self._last["done"]:
                    raise SweError(f"the server {self._host.url!r} gave the rollout {self.id!r} no end")
                return self._last
            except _NoAnswer as error:
                await self.disconnect()
                if self._closed:
                    raise SweError(f"the rollout {self.id!r} was cancelled") from None
                now = time.monotonic()
                if tries == 0 or (connected and now - began > _HELD):
                    tries, failing = 0, now
                if isinstance(error, _Full):  # it answers, and has room when another rollout ends
                    failing = now
                elif now - failing > self._host.timeout:
                    why = f"the server {self._host.url!r} was out of reach for {self._host.timeout:g} s"
                    self._host.health.stop(f"{why} ({error}): start it again, and resume the training")
                    raise SweError(why) from None
                if tries == 0:
                    logger.warning("%s: %s; trying again", self.id, error)
                await anyio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
                tries += 1

    async def entries(self) -> list[dict[str, Any]]:
        """See `Episode`."""
        try:
            answer = await self._host.http.get(f"/sessions/{self.id}/trace_entries")
            told = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise SweError(f"the server {self._host.url!r} did not send the trace ({error!r})") from None
        if not answer.is_success:
            raise SweError(f"the server {self._host.url!r} has no trace: {told.get('error', 'no reason')}")
        entries: list[dict[str, Any]] = told["entries"]
        return entries

    async def close(self, why: str | None) -> None:
        """See `Episode`."""
        self._closed = True
        with anyio.move_on_after(_PARTING):
            if why is not None:
                with suppress(httpx.HTTPError):
                    await self._host.http.delete(f"/sessions/{self.id}", params={"why": why})
                if self._ended is not None:  # the server still sends the end
                    await self._ended.wait()
            await self.disconnect()

    async def _reset(self) -> None:
        self._client = self._host.client()
        self._host.connected.add(self)
        self._last = await self._ask("reset", {"episode_id": self.id, **self._chosen})

    async def _ask(self, what: str, data: Mapping[str, Any]) -> Observation:
        """Send one message and return the answer.

        Raises:
            UsageError: The server refuses the message.
            SweError: The answer is no observation with a reward or none.
            _NoAnswer: There is no answer, or no room for the connection.
        """
        client = self._client
        if client is None:
            raise _NoAnswer("the connection was closed")
        try:
            if what == "step":
                result = await client.step(dict(data))
            else:  # which runs nothing
                with anyio.fail_after(self._host.timeout):
                    result = await client.reset(**data)
        except RuntimeError as error:  # how the client tells what the server says
            said = _SAID.fullmatch(str(error))
            if said is None:
                raise _NoAnswer(str(error)) from None
            told = " ".join(said[1].split())
            if said[2] == "CAPACITY_REACHED":
                raise _Full(f"{told}; raise worker.openenv.sessions of the server") from None
            if what == "reset":
                raise UsageError(told) from None
            raise _NoAnswer(told) from None
        except (OSError, WebSocketException, ValueError) as error:
            raise _NoAnswer(str(error) or type(error).__name__) from None
        except (TypeError, AttributeError, KeyError):  # of the client: it trusts the server
            raise self._nonsense() from None
        reward = result.reward
        is_number = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
        if not isinstance(result.observation, Mapping) or not (reward is None or is_number):
            raise self._nonsense()
        return {**result.observation, "done": bool(result.done), "reward": reward}

    def _nonsense(self) -> SweError:
        return SweError(
            f"the server {self._host.url!r} answered with no observation of an environment: expected one "
            "started by `swe-core openenv serve`"
        )

    async def disconnect(self) -> None:
        """Close the connection, if there is one."""
        client, self._client = self._client, None
        self._host.connected.discard(self)
        if client is not None:
            with suppress(Exception):  # of several libraries: the connection is given up
                await client.close()


_CAPABILITIES = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "capabilities", "arguments": {}},
}


def _capabilities(url: str, answer: httpx.Response) -> Mapping[str, Any]:
    """Return what the server says that it runs.

    Raises:
        ConfigError: It needs a key, or is no server of swe-core.
    """
    if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise ConfigError(
            f"the server {url!r} needs its key: set key_env to the environment variable that holds it"
        )
    try:
        told: Mapping[str, Any] = answer.json()["result"]["structured_content"]
        _ = told["interactive"], told["split"], told["tasks"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"the server {url!r} does not say what it runs: expected one started by `swe-core openenv serve`"
        ) from None
    return told


def _out_of_reach(url: str, error: httpx.HTTPError) -> ConfigError:
    # Another error may quote a header, and so the key.
    quoted = isinstance(error, httpx.NetworkError | httpx.TimeoutException | httpx.HTTPStatusError)
    why = f"{type(error).__name__}: {error}".splitlines()[0] if quoted else type(error).__name__
    return ConfigError(
        f"the server {url!r} does not answer ({why}): start it with "
        "`swe-core openenv serve`, or correct the url"
    )
