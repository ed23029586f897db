"""Client: one vLLM server over HTTP."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio.lowlevel
import orjson

from swe_core.builtin.http_engine import ErrorTranslator, Transient
from swe_core.builtin.sse import EventParser
from swe_core.builtin.vllm.replies import Card, Chunk, Replies
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
    headers = {"Content-Type": "application/json"}
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
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, refusals: ErrorTranslator) -> None:
        self.url = url
        self.where = refusals.where
        self._session = session
        self._refusals = refusals
        self._replies = Replies(refusals)

    async def cards(self) -> list[Card]:
        """Return the models that the server serves.

        Raises:
            Transient | EngineError: The server gave no list.
        """
        timeout = aiohttp.ClientTimeout(total=_CHECK_TIMEOUT)
        try:
            async with self._session.get(f"{self.url}/v1/models", timeout=timeout) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Transient(self._refusals.lost(error)) from None
        if response.status != 200:
            raise self._refusals.of(response.status, response.headers, content)
        return self._replies.cards(content)

    async def sample_one(self, body: dict[str, Any]) -> tuple[Chunk, dict[str, Any]]:
        """Return one whole reply, and its first choice as the server gave it.

        Raises:
            Transient | EngineError: The server gave no reply.
        """
        chunk = Chunk()
        async with self._asked(orjson.dumps(body)) as response:
            raw = await response.read()
        if not self._replies.add(chunk, raw, orjson.dumps(body["prompt"])[1:-1]):
            raise EngineProtocolError(f"{self.where} answered no completion (no choices)")
        return chunk, orjson.loads(raw)["choices"][0]

    async def pieces(self, body: dict[str, Any]) -> list[Chunk]:
        """Return the events of a streamed reply, each by itself.

        Raises:
            Transient | EngineError: The server gave no stream.
        """
        chunks, parser = [], EventParser()
        async with self._asked(orjson.dumps(body)) as response:
            for event in parser.feed(await response.read()):
                chunk = Chunk()
                if event != _DONE and self._replies.add(chunk, event, None):
                    chunks.append(chunk)
        return chunks

    async def sample(
        self, body: bytes, sent: bytes, announced: Callable[[], int]
    ) -> AsyncGenerator[Chunk, None]:
        """Return the reply to the request `body`, which streams, as it comes: in a chunk for each piece that
        the network brings. Closing the generator closes the connection, upon which the server aborts the
        request.

        Args:
            sent: The ids of the request's prompt as JSON text.
            announced: The policy version that was announced last. A newer one counts for what comes after a
                moment at which all that had come was read: the rest may have been sampled before.

        Raises:
            Transient | EngineError: The server gave no reply, or an incomplete one.
        """
        expected: bytes | None = sent
        version, seen, finish = announced(), 0, None
        async with self._asked(body) as response:
            if response.content_type != "text/event-stream":  # such as an error with the status 200
                chunk = Chunk(version=version)
                self._replies.add(chunk, await response.read(), sent)
                yield chunk
                return
            parser = EventParser()
            async for piece in response.content.iter_any():
                chunk, problem, done = Chunk(finish=finish, version=version), None, False
                seen += len(piece)
                for event in parser.feed(piece):
                    if done := event == _DONE:
                        break
                    try:
                        if self._replies.add(chunk, event, expected):
                            expected = None
                    except (Transient, EngineError) as error:
                        problem = error
                        break
                if chunk.ids or chunk.finish != finish:
                    finish = chunk.finish
                    yield chunk
                if problem is not None:  # after what came before it, which was sampled
                    raise problem
                if done:
                    return
                newest = announced()
                if newest != version and await _has_read(response.content, seen):
                    version = newest

    @asynccontextmanager
    async def _asked(self, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the response to a request; its status is 200."""
        try:
            async with self._session.post(f"{self.url}/v1/completions", data=io.BytesIO(body)) as response:
                if response.status != 200:
                    raise self._refusals.of(response.status, response.headers, await response.read())
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Transient(self._refusals.lost(error)) from None


async def _has_read(content: aiohttp.StreamReader, seen: int) -> bool:
    """Return whether `seen` bytes are all that has come, after two passes of the event loop."""
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    return content.total_bytes == seen
