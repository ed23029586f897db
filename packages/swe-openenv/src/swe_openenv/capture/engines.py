"""Engines: URL, model and sampling to an engine that is open and probed once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import aiohttp
import anyio
import orjson
from openenv.core.harness.capture.upstream import NON_POLICY_SAMPLING

from swe_core.api.engine import Engine
from swe_core.errors import EngineUnavailable, SweError, UsageError, sentence
from swe_core.run.components import ResolvedComponent
from swe_core.system.urls import base_url
from swe_openenv.capture.options import Level

TOKENS, TEXT = "vllm", "openai"
"""The engines of the levels "tokens" and "text"."""
SAMPLING_KEYS = ("temperature", *NON_POLICY_SAMPLING)
_LISTING = aiohttp.ClientTimeout(total=10)
_NO_KEY = "SWE_OPENENV_NO_KEY"
"""Environment variable that names no key: the server's key goes to the server's own engine only."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which engine a session's calls go to.

    Args:
        url: Its base URL, without `/v1`.
        policy: Sampling parameters in place of the settings'.
        output_cap: Maximum tokens of one reply; None leaves it to the settings.
    """

    url: str
    model: str
    policy: tuple[tuple[str, float | int], ...] = ()
    output_cap: int | None = None


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """An open engine.

    Args:
        submitted: The sampling parameters that it sends whatever the agent asks for.
        why: Why it gives text alone, one sentence; None where it gives tokens.
    """

    engine: Engine
    level: Level
    submitted: Mapping[str, Any]
    why: str | None = None


class Engines:
    """Opens and probes engines, each once. An async context manager that closes them.

    Args:
        resolve: Returns the engine of a name with its settings.
        url: The server's own engine. The key in the environment goes to it alone: a client that names another
            URL must not get it.
    """

    def __init__(self, resolve: Callable[[str], ResolvedComponent], url: str) -> None:
        self._resolve = resolve
        self._url = url and plain(url)
        self._open: dict[tuple[Choice, Level], OpenEngine] = {}
        self._probed: dict[Choice, OpenEngine] = {}
        self._unreachable: set[Choice] = set()
        self._locks: dict[Choice, anyio.Lock] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Engines:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def probe(self, choice: Choice) -> OpenEngine:
        """Return the engine for `choice`: one that gives tokens if the server there can, else one of text.

        A server that is not reachable counts as one of text, and is probed again the next time.

        Raises:
            UsageError: The URL, a setting or a key is wrong.
        """
        async with self._locks.setdefault(choice, anyio.Lock()):
            if choice not in self._probed or choice in self._unreachable:
                self._probed[choice] = await self._probe(choice)
            return self._probed[choice]

    def level(self, choice: Choice) -> Level:
        """Return what the last probe found; "text" before the first."""
        return self._probed[choice].level if choice in self._probed else "text"

    async def open(self, choice: Choice, level: Level) -> OpenEngine:
        """Return the engine of a known level, without a probe.

        Raises:
            UsageError: The URL, a setting or a key is wrong.
        """
        known = self._open.get((choice, level))
        if known is None:
            component = self._component(choice, level)
            engine = await self._stack.enter_async_context(cast(Engine, component.create()))
            known = OpenEngine(engine, level, _submitted(engine, component))
            self._open[choice, level] = known
        return known

    def has_key(self, level: Level) -> bool:
        """Return whether the environment has a key for the server's own engine."""
        config = self._component(Choice(self._url, "any"), level).config.model_dump()
        return bool(self._url and os.environ.get(str(config.get("api_key_env"))))

    def known(self) -> list[dict[str, Any]]:
        """Return what was probed, for `/health`."""
        return [
            {"llm_url": choice.url, "model": choice.model, "capture_level": found.level}
            for choice, found in self._probed.items()
        ]

    async def _probe(self, choice: Choice) -> OpenEngine:
        self._unreachable.discard(choice)
        self._component(choice, "tokens")  # a wrong setting is no property of the server there
        try:
            found = await self.open(choice, "tokens")
            await found.engine.check()
        except SweError as error:
            why = sentence(error)
            if isinstance(error, EngineUnavailable):
                self._unreachable.add(choice)
        else:
            return found
        log.warning("sessions of the engine at %s get text and no tokens: %s", choice.url, why)
        return replace(await self.open(choice, "text"), why=why)

    def _component(self, choice: Choice, level: Level) -> ResolvedComponent:
        component = self._resolve(TOKENS if level == "tokens" else TEXT)
        config, policy = component.config.model_dump(), dict(choice.policy)
        caps = [cap for cap in (choice.output_cap, config.get("max_tokens")) if cap]
        values: dict[str, Any] = {"model": choice.model, "max_tokens": min(caps, default=None)}
        if choice.url != self._url:
            values["api_key_env"] = _NO_KEY
        if policy.get("top_k") in (-1, 0):  # all candidates, which is unset here
            del policy["top_k"]
        if level == "tokens":
            own = {key: value for key, value in policy.items() if key in config}
            values |= {"url": choice.url, **own}
        else:
            values |= {"url": f"{choice.url}/v1", "params": {**config.get("params", {}), **policy}}
        return component.with_settings({key: (key, value) for key, value in values.items()})


async def served_model(url: str) -> str:
    """Return the only model that the server at `url` serves.

    Raises:
        UsageError: It cannot be asked, or serves none or several.
    """
    remedy = "name the model as 'model'"
    try:
        async with (
            aiohttp.ClientSession(timeout=_LISTING) as session,
            session.get(f"{base_url(url)}/v1/models", allow_redirects=False) as response,
        ):
            body = orjson.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
        raise UsageError(f"the engine at {url!r} does not list its models: {remedy}") from None
    cards = body.get("data") if isinstance(body, dict) else None
    names = [card["id"] for card in cards or () if isinstance(card, dict) and isinstance(card.get("id"), str)]
    if len(names) != 1:
        raise UsageError(f"the engine at {url!r} serves {len(names)} models: {remedy}")
    return str(names[0])


def plain(url: str) -> str:
    """Return a base URL without `/v1`.

    Raises:
        ConfigError: It is no base URL.
    """
    return base_url(url).removesuffix("/v1")


def _submitted(engine: Engine, component: ResolvedComponent) -> Mapping[str, Any]:
    if engine.sampling is not None:
        return engine.sampling
    params = component.config.model_dump().get("params", {})
    return {key: value for key, value in params.items() if key in SAMPLING_KEYS}
