"""OpenAIEngine: one request in, one completion out, over a provider that may fail in every way."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

import httpx
import orjson
from httpx_sse import EventSource

from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai.replies import StreamedReply, parse_models, parse_reply
from swe_core.builtin.upstream import BACKOFF, Refusals, Transient, final, key_from, retrying
from swe_core.config import base_url
from swe_core.engine import ChatRequest, Completion, Emit, Engine, EngineSession
from swe_core.errors import ConfigError, EngineError, EngineProtocolError, EngineUnavailable

_BACKOFF = BACKOFF
_CHECK_TIMEOUT = 10.0
_BASE = "what /chat/completions is appended to, most often ending in /v1"
_OURS = ("model", "messages", "stream")

log = logging.getLogger(__name__)


class OpenAIEngine(Engine):
    """Relays chat completions to `url`.

    Attributes:
        url: The provider's base URL, without a trailing slash.
        model: What every request's `model` is replaced by.

    Raises:
        ConfigError: The url or the model is missing or unusable, or the key cannot be a header.
    """

    def __init__(self, config: OpenAIConfig) -> None:
        self.url, self.model = _required(config)
        key = key_from(config.api_key_env)
        self._params = config.params
        self._attempts = config.max_retries + 1
        self._timeout = config.timeout
        self._refusals = Refusals("provider", self.url, _BASE, self.model, config.api_key_env, key)
        headers = {"Accept": "application/json, text/event-stream"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        # The runner bounds how many rollouts call at once; a second bound here would only hide it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(config.timeout, connect=min(10.0, config.timeout), pool=None)
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits)

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def check(self) -> None:
        """Ask for the list of models. Providers without one, or with one that leaves the model out, pass:
        many lists are incomplete."""
        try:
            response = await self._client.get(f"{self.url}/models", timeout=_CHECK_TIMEOUT)
        except httpx.RequestError as error:
            raise EngineUnavailable(
                f"{self._lost(error, _CHECK_TIMEOUT)}: check --engine-url and that it is up"
            ) from None
        if response.status_code in (403, 404, 405, 429):
            log.info("%s/models answered %d: not checked further", self.url, response.status_code)
            return
        if response.status_code != 200:
            raise final(self._refused(response))
        models = parse_models(response, self.url)
        if models and self.model not in models:
            near = difflib.get_close_matches(self.model, models, n=3)
            hint = f"; near it are {', '.join(map(repr, near))}" if near else ""
            log.warning("the provider at %r does not list the model %r%s", self.url, self.model, hint)

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        content = orjson.dumps(self._body(request, stream=emit is not None))
        try:
            async for attempt in retrying(self._attempts, _BACKOFF):
                with attempt:
                    completion = await self._attempt(content, emit)
        except Transient as error:
            raise final(error, self._attempts) from None
        return completion

    def _body(self, request: ChatRequest, *, stream: bool) -> Mapping[str, Any]:
        body = {**request.body, **self._params, "model": self.model, "stream": stream}
        if stream:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        else:
            body.pop("stream_options", None)
        return body

    async def _attempt(self, content: bytes, emit: Emit | None) -> Completion:
        reply = StreamedReply(self.url, emit, self._refusals)
        try:
            async with self._client.stream(
                "POST",
                f"{self.url}/chat/completions",
                content=content,
                headers={"Content-Type": "application/json"},
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self._refused(response)
                if emit is None or "text/event-stream" not in response.headers.get("content-type", ""):
                    await response.aread()
                    return parse_reply(response, self.url, self._refusals)
                async for event in EventSource(response).aiter_sse():
                    if await reply.add(event.data):
                        break
        except httpx.DecodingError:
            raise EngineProtocolError(
                f"the provider at {self.url!r} sent a reply whose encoding is broken"
            ) from None
        except httpx.RequestError as error:
            lost = self._lost(error, self._timeout)
            if reply.emitted:
                raise EngineUnavailable(f"{lost}, in the middle of a reply") from None
            raise Transient(lost) from None
        return reply.completion()

    def _refused(self, response: httpx.Response) -> Transient | EngineError:
        return self._refusals.of(response.status_code, response.headers, response.content)

    def _lost(self, error: httpx.RequestError, timeout: float) -> str:
        where = f"the provider at {self.url!r}"
        if isinstance(error, httpx.ConnectTimeout):
            return f"{where} accepts no connection in time"
        if isinstance(error, httpx.TimeoutException):
            return f"{where} sent nothing for {timeout:g} s"
        if isinstance(error, httpx.ConnectError):
            return f"{where} cannot be reached ({self._refusals.redact(str(error)) or 'connection failed'})"
        return f"{where} broke the connection ({type(error).__name__})"


def _required(config: OpenAIConfig) -> tuple[str, str]:
    options = {"url": "--engine-url URL", "model": "--model NAME"}
    missing = [name for name in options if not getattr(config, name)]
    if missing or not config.url or not config.model:
        raise ConfigError(
            f"the engine 'openai' needs {' and '.join(f'a {name}' for name in missing)}: "
            f"pass {' '.join(options[name] for name in missing)}"
        )
    url = base_url(config.url)
    ours = [name for name in _OURS if name in config.params]
    if ours:
        raise ConfigError(
            f"the engine 'openai' sets {ours[0]!r} itself: leave it out of params (the model is --model)"
        )
    return url, config.model
