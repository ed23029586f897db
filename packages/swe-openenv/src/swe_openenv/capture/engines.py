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
from swe_core.errors import ConfigError, EngineRefused, EngineUnavailable, SweError, UsageError, sentence
from swe_core.run.components import ResolvedComponent
from swe_core.system.urls import base_url
from swe_openenv.capture.foreign import ForeignEngine
from swe_openenv.capture.options import Level

TOKENS, TEXT = "vllm", "openai"
"""The engines of the levels "tokens" and "text"."""
SAMPLING_KEYS = ("temperature", *NON_POLICY_SAMPLING)
_LISTING = aiohttp.ClientTimeout(total=10)
_MAX_LISTING = 1024 * 1024
"""Bytes of a list of models at most."""
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
        reached: False where the server there did not answer, so that `level` is a guess.
    """

    engine: Engine
    level: Level
    submitted: Mapping[str, Any]
    why: str | None = None
    reached: bool = True


class _Probe:
    """A probe that runs.

    Attributes:
        done: Set at its end.
        found: What it found; None where it was cancelled or failed.
    """

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.found: OpenEngine | None = None


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
        self._probes: dict[Choice, _Probe] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Engines:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def probe(self, choice: Choice) -> OpenEngine:
        """Return the engine for `choice`: one that gives tokens if the server there can, else one of text.

        A server that is not reachable counts as one of text, and is probed again the next time. Who asks
        while a probe runs gets what that one finds.

        Raises:
            UsageError: The URL, a setting or a key is wrong.
        """
        while True:
            known = self._probed.get(choice)
            if known is not None and known.reached:
                return known
            running = self._probes.get(choice)
            if running is None:
                return await self._begin(choice)
            await running.done.wait()
            if running.found is not None:
                return running.found

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
            if choice.url != self._url:
                engine = ForeignEngine(engine)
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

    async def _begin(self, choice: Choice) -> OpenEngine:
        self._probes[choice] = running = _Probe()
        try:
            running.found = self._probed[choice] = await self._probe(choice)
            return running.found
        finally:
            del self._probes[choice]
            running.done.set()

    async def _probe(self, choice: Choice) -> OpenEngine:
        self._component(choice, "tokens")  # a wrong setting is no property of the server there
        try:
            found = await self.open(choice, "tokens")
            await found.engine.check()
        except SweError as error:
            why = sentence(error) if choice.url == self._url else _status_of(error, choice.url)
            reached = not isinstance(error, EngineUnavailable)
        else:
            return found
        log.warning("sessions of the engine at %s get text and no tokens: %s", choice.url, why)
        return replace(await self.open(choice, "text"), why=why, reached=reached)

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
            raw = bytearray()
            async for piece in response.content.iter_any():
                raw += piece
                if len(raw) > _MAX_LISTING:
                    raise ValueError("the list is too long")
            body = orjson.loads(raw)
    except (aiohttp.ClientError, TimeoutError, ValueError):
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
    found = base_url(url).removesuffix("/v1")
    if any(one <= " " or one == "\x7f" for one in url):  # which clients drop in silence
        raise ConfigError("the engine URL has a blank or a control character: leave it out, or encode it")
    return found


def _status_of(error: SweError, url: str) -> str:
    """Return why an engine gives no tokens without the text of its answer, which the client need not see.

    The client names the URL, which may be a service that only the server reaches.
    """
    if isinstance(error, EngineUnavailable):
        return f"the engine at {url!r} cannot be reached, or fails"
    status = f" ({error.status})" if isinstance(error, EngineRefused) else ""
    return f"the engine at {url!r} does not answer as a vLLM that gives tokens{status}"


def _submitted(engine: Engine, component: ResolvedComponent) -> Mapping[str, Any]:
    if engine.sampling is not None:
        return engine.sampling
    params = component.config.model_dump().get("params", {})
    return {key: value for key, value in params.items() if key in SAMPLING_KEYS}
