"""OpenAIEngine: relays requests to a provider, and handles each way in which it may fail."""

from __future__ import annotations

import difflib
import io
import logging
import time
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp.http_exceptions import ContentEncodingError

from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession
from swe_core.builtin import bounds
from swe_core.builtin.http_engine import (
    BACKOFF,
    ErrorTranslator,
    Transient,
    as_final_error,
    key_from,
    with_retries,
)
from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai.memory import Memory
from swe_core.builtin.openai.providers import DEFAULT, PROVIDERS, Provider, provider_at
from swe_core.builtin.openai.replies import StreamedReply, parse_models, parse_reply
from swe_core.builtin.sse import EventParser
from swe_core.errors import ConfigError, EngineProtocolError, EngineUnavailable
from swe_core.system.urls import base_url

_BACKOFF = BACKOFF
_CHECK_TIMEOUT = 10.0
_CONNECT_TIMEOUT = 10.0
_BASE = "what /chat/completions is appended to, most often ending in /v1"
_OURS = ("model", "messages", "stream")
_LIMITS = ("max_tokens", "max_completion_tokens")
_GEMINI_START = "models/"
_EVENTS = (b"data:", b"event:", b"id:", b":")
"""Beginnings of streams, which some servers send with another content type, or unasked."""

log = logging.getLogger(__name__)


class OpenAIEngine(Engine):
    """Relays chat completions to `url`.

    Attributes:
        url: The provider's base URL, without a trailing slash.
        model: Replaces the `model` of every request.

    Raises:
        ConfigError: The url or the model is missing or unusable, or the key is missing where the provider
            needs one, or cannot be a header.
    """

    def __init__(self, config: OpenAIConfig) -> None:
        self.url, self.model = _required(config)
        self._provider = provider_at(self.url) or Provider(self.url, config.api_key_env, needs_key=False)
        self._key = key = key_from(config.api_key_env)
        if key is None and self._provider.needs_key:
            raise ConfigError(_without_key(self.url, config.api_key_env))
        self._params = config.params
        self._most = config.max_tokens
        self._attempts = config.max_retries + 1
        self._timeout = config.timeout
        self._refusals = ErrorTranslator("provider", self.url, _BASE, self.model, config.api_key_env, key)
        self._session: aiohttp.ClientSession | None = None
        self._memories: dict[str, Memory] = {}

    async def __aenter__(self) -> OpenAIEngine:
        headers = {
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            # The runner bounds how many rollouts call at once; a second bound here would only hide it.
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=_proxy(self.url),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(_CONNECT_TIMEOUT, self._timeout), sock_read=self._timeout
            ),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def check(self) -> None:
        """Ask for the list of models. Providers without one, or with one that leaves the model out, pass:
        many lists are incomplete."""
        if not self._provider.lists_models:
            return
        timeout = aiohttp.ClientTimeout(total=_CHECK_TIMEOUT)
        try:
            async with self._open().get(
                f"{self.url}/models", timeout=timeout, allow_redirects=False
            ) as response:
                is_list = response.status == 200
                content = await (
                    bounds.read(response, bounds.LIST, _CHECK_TIMEOUT)
                    if is_list
                    else bounds.read_error(response)
                )
        except bounds.OutOfBounds as error:
            raise self._refusals.unbounded(error) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineUnavailable(
                f"{self._refusals.lost(error, _CHECK_TIMEOUT)}: check --engine-url and that it is up"
            ) from None
        if response.status in (403, 404, 405, 429):
            log.info("%s/models answered %d: not checked further", self.url, response.status)
            return
        if response.status != 200:
            raise as_final_error(self._refusals.of(response.status, response.headers, content))
        # Gemini lists `models/NAME`, and answers to NAME.
        names = parse_models(content, response.headers, self.url)
        models = [name.removeprefix(_GEMINI_START) for name in names]
        if models and self.model.removeprefix(_GEMINI_START) not in models:
            near = difflib.get_close_matches(self.model, models, n=3)
            hint = f"; near it are {', '.join(map(repr, near))}" if near else ""
            log.warning("the provider at %r does not list the model %r%s", self.url, self.model, hint)

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        memory = self._memories.get(session.rollout_id)
        if memory is None:
            memory = self._memories[session.rollout_id] = Memory(self._provider.takes)
        messages = memory.restored(request)
        body = self._body({**request.body, "messages": messages}, request, emit is not None)
        limits = [limit for name in _LIMITS if isinstance(limit := body.get(name), int)]
        attempt = partial(self._attempt, orjson.dumps(body), max(limits, default=0), emit)
        try:
            completion = await with_retries(attempt, self._attempts, _BACKOFF, request.progress)
        except Transient as error:
            raise as_final_error(error, self._attempts) from None
        message = completion.message
        if completion.finish_reason != "length" or message.get("content") or message.get("tool_calls"):
            memory.keep(request, message)  # else its reasoning was cut
        return completion

    async def end(self, session: EngineSession) -> None:
        self._memories.pop(session.rollout_id, None)

    def _body(self, asked: Mapping[str, Any], request: ChatRequest, stream: bool) -> dict[str, Any]:
        body = {**asked, **self._params, "model": self.model, "stream": stream}
        if stream and self._provider.stream_options:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        else:
            body.pop("stream_options", None)
        only = self._provider.limit
        if only is not None:
            given = [value for name in _LIMITS if (value := body.pop(name, None)) is not None]
            body |= {only: min(given)} if given else {}
        limits = [limit for limit in (request.max_tokens, self._most) if limit is not None]
        if limits:
            for name in [name for name in _LIMITS if body.get(name) is not None] or [only or _LIMITS[0]]:
                body[name] = min(body.get(name) or limits[0], *limits)
        return body

    async def _attempt(self, content: bytes, limit: int, emit: Emit | None) -> Completion:
        tokens = max(limit, bounds.TOKENS)
        reply = StreamedReply(self.url, emit, self._refusals, tokens * bounds.PIECES)
        try:
            async with self._open().post(
                f"{self.url}/chat/completions", data=io.BytesIO(content), allow_redirects=False
            ) as response:
                if response.status != 200:
                    error = await bounds.read_error(response)
                    raise self._refusals.of(response.status, response.headers, error)
                if emit is None or response.content_type != "text/event-stream":
                    raw = await bounds.read(response, bounds.EVENT, self._timeout)
                    if not raw.lstrip().startswith(_EVENTS):
                        return parse_reply(raw, response.headers, self.url, self._refusals)
                    for event in (parser := EventParser(bounds.EVENT, bounds.EVENT)).feed(raw):
                        if await reply.add(event):
                            break
                    return await reply.completion(parser.feed(b"\n\n"))
                parser = EventParser(bounds.EVENT, bounds.EVENT + tokens * bounds.WIRE)
                heard, told, first = time.monotonic(), 0, True
                async for piece in response.content.iter_any():
                    if first and piece.lstrip().startswith(b"{"):  # no stream, whatever its type
                        raw = piece + await bounds.read(response, bounds.EVENT, self._timeout)
                        return parse_reply(raw, response.headers, self.url, self._refusals)
                    first = False
                    for event in parser.feed(piece):
                        if await reply.add(event):
                            return await reply.completion()
                    if reply.told != told:
                        heard, told = time.monotonic(), reply.told
                    elif time.monotonic() - heard > self._timeout:  # of comments and empty events
                        raise TimeoutError
                return await reply.completion(parser.feed(b"\n\n"))
        except bounds.OutOfBounds as error:
            raise self._refusals.unbounded(error) from None
        except ContentEncodingError:
            raise EngineProtocolError(
                f"the provider at {self.url!r} sent a reply whose encoding is broken"
            ) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            lost = self._refusals.lost(error, self._timeout)
            if reply.emitted:
                raise EngineUnavailable(f"{lost}, in the middle of a reply") from None
            raise Transient(lost) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the engine is not open: use it as an async context manager")
        return self._session


def _proxy(url: str) -> str | None:
    """Return the proxy for `url` from the environment, which is read once and not for each request."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _required(config: OpenAIConfig) -> tuple[str, str]:
    if not config.model:
        raise ConfigError(
            "the engine 'openai' needs a model: pass --model NAME, such as gpt-5.5, anthropic/NAME or "
            "ollama/NAME, or --engine-url URL --model NAME for a server of your own"
            if not config.url
            else "the engine 'openai' needs a model: pass --model NAME, a model that the server at "
            f"{base_url(config.url)!r} has"
        )
    url = base_url(config.url or "")
    ours = [name for name in _OURS if name in config.params]
    if ours:
        raise ConfigError(
            f"the engine 'openai' sets {ours[0]!r} itself: leave it out of params (the model is --model)"
        )
    return url, config.model


def _without_key(url: str, variable: str) -> str:
    other = ", or name another provider before the model, such as anthropic/NAME or ollama/NAME"
    return (
        f"the provider at {url!r} needs a key: put it into the environment variable {variable!r}"
        f"{other if url == PROVIDERS[DEFAULT].url else ''}"
    )
