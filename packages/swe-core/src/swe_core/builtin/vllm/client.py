"""Client: one vLLM server over HTTP."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import orjson
from aiohttp.http_exceptions import ContentEncodingError

from swe_core.builtin import bounds
from swe_core.builtin.http_engine import ErrorTranslator, Transient
from swe_core.builtin.sse import EventParser
from swe_core.builtin.vllm.replies import Asked, Card, Chunk, Replies
from swe_core.errors import EngineError, EngineProtocolError

_CHECK_TIMEOUT = 10.0
_CONNECT_TIMEOUT = 10.0
_DONE = b"[DONE]"
_IDLE = 4.0
"""Seconds that a connection is kept for the next request: vLLM closes it after 5."""


def open_session(timeout: float, key: str | None) -> aiohttp.ClientSession:
    """Return a session for `Client`s; the caller closes it.

    Args:
        timeout: Seconds without a byte from a server.
        key: Is sent as bearer token; None sends none.
    """
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        headers=headers,
        # The runner bounds how many rollouts call at once; a second bound here would only hide it.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=min(_CONNECT_TIMEOUT, timeout), sock_read=timeout
        ),
    )


class Client:
    """One server.

    Args:
        session: From `open_session`.
        url: The server's base URL, without `/v1`.
        timeout: Seconds without a piece of a reply.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, refusals: ErrorTranslator, timeout: float
    ) -> None:
        self.url = url
        self.where = refusals.where
        self._session = session
        self._timeout = timeout
        self._refusals = refusals
        self._replies = Replies(refusals)

    async def cards(self) -> list[Card]:
        """Return the models that the server serves.

        Raises:
            Transient | EngineError: The server gave no list.
        """
        timeout = aiohttp.ClientTimeout(total=_CHECK_TIMEOUT)
        async with self._answer("GET", "/v1/models", timeout=timeout) as response:
            return self._replies.cards(await bounds.read(response, bounds.LIST, _CHECK_TIMEOUT))

    async def sample_one(self, body: dict[str, Any]) -> tuple[Chunk, dict[str, Any]]:
        """Return one whole reply, and its first choice as the server gave it.

        Raises:
            Transient | EngineError: The server gave no reply.
        """
        chunk, sent = Chunk(), orjson.dumps(body["prompt"])[1:-1]
        asked = Asked(sent, body["max_tokens"])
        async with self._asked(orjson.dumps(body)) as response:
            raw = await bounds.read(response, asked.event, self._timeout)
            if not self._replies.add(chunk, raw, asked, first=True):
                raise EngineProtocolError(f"{self.where} answered no completion (no choices)")
            self._replies.check(chunk.ids, asked)
            try:
                return chunk, bounds.loads(raw)["choices"][0]
            except orjson.JSONDecodeError:  # in a part that was not read before
                raise EngineProtocolError(f"{self.where} answered no completion (invalid JSON)") from None

    async def pieces(self, body: dict[str, Any]) -> list[Chunk]:
        """Return the events of a streamed reply, each by itself.

        Raises:
            Transient | EngineError: The server gave no stream.
        """
        asked = Asked(orjson.dumps(body["prompt"])[1:-1], body["max_tokens"])
        chunks, parser = [], EventParser(asked.event, asked.stream)
        async with self._asked(orjson.dumps(body)) as response:
            for event in parser.feed(await bounds.read(response, asked.stream, self._timeout)):
                chunk = Chunk()
                if event != _DONE and self._replies.add(chunk, event, asked):
                    chunks.append(chunk)
        return chunks

    async def sample(
        self, body: bytes, asked: Asked, announced: Callable[[], int]
    ) -> AsyncGenerator[Chunk, None]:
        """Return the reply to the request `body`, which streams, as it comes: in a chunk for each piece that
        the network brings. Closing the generator closes the connection, upon which the server aborts the
        request.

        Args:
            asked: What the body asks for.
            announced: The policy version that was announced last. A newer one counts from the second event
                after a moment at which all that had come was read: what waited may have been sampled before,
                and the server may have held back the first ids of the event that follows.

        Raises:
            Transient | EngineError: The server gave no reply, or an incomplete one.
        """
        version = settled = announced()
        seen, finish, first, count = 0, None, True, 0
        async with self._asked(body) as response:
            if response.content_type != "text/event-stream":  # such as an error with the status 200
                chunk = Chunk(version=version)
                raw = await bounds.read(response, asked.event, self._timeout)
                self._replies.add(chunk, raw, asked, first=True)
                self._replies.check(chunk.ids, asked)
                yield chunk
                return
            parser = EventParser(asked.event, asked.stream)
            heard = time.monotonic()
            async for piece in response.content.iter_any():
                chunk, problem, done = Chunk(finish=finish, version=version), None, False
                seen += len(piece)
                for event in parser.feed(piece):
                    if done := event == _DONE:
                        break
                    try:
                        if self._replies.add(chunk, event, asked, first=first):
                            first = False
                    except (Transient, EngineError) as error:
                        problem = error
                        break
                self._replies.check(chunk.ids, asked, count)
                count += len(chunk.ids)
                if chunk.ids or chunk.finish != finish:
                    finish = chunk.finish
                    yield chunk
                if problem is not None:  # after what came before it, which was sampled
                    raise problem
                if done:
                    return
                if chunk.ids:
                    heard, version = time.monotonic(), settled
                elif time.monotonic() - heard > self._timeout:  # of comments and empty events
                    raise TimeoutError
                newest = announced()
                if newest != settled and parser.between and await _has_read(response.content, seen):
                    settled = newest

    def _asked(self, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Open the response to a request for a completion."""
        return self._answer("POST", "/v1/completions", data=io.BytesIO(body))

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the response to a request; its status is 200.

        Raises:
            Transient | EngineError: It has another status, breaks off, or sends too much.
        """
        url = f"{self.url}{path}"
        try:
            async with self._session.request(method, url, allow_redirects=False, **more) as response:
                if response.status != 200:
                    error = await bounds.read_error(response)
                    raise self._refusals.of(response.status, response.headers, error)
                yield response
        except bounds.OutOfBounds as error:
            raise self._refusals.unbounded(error) from None
        except (aiohttp.ClientError, ContentEncodingError, TimeoutError) as error:
            raise Transient(self._refusals.lost(error)) from None


async def _has_read(content: aiohttp.StreamReader, seen: int) -> bool:
    """Return whether `seen` bytes are all that has come, after two passes of the event loop."""
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    return content.total_bytes == seen
