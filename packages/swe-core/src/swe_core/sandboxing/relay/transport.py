"""Transport: requests from this host to the control port of a relay program inside a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Protocol

import httpx

from swe_core.errors import SandboxError

_QUOTED = 200
_OK = 200
_MAX_ERROR = 1 << 10
MAX_ANSWER = 4 << 10
"""Bytes of the answer to a push: a proof and a number."""


class TransportError(SandboxError):
    """A request to a control port failed: no answer, an incomplete one, or a status other than 200.

    The relay retries, so this error is raised only if no request ever succeeds.
    """


class Transport(Protocol):
    """Plain HTTP requests from this host to the control port of a relay program.

    A transport needs to be neither reliable nor private: the relay resumes at the byte where an answer broke
    off, and both sides prove their identity. Several requests run at once. Cancelling ends a request.

    Nothing can listen on the port 0, so a request to it must fail. This tells a transport that answers by
    itself, such as a proxy with a page for everything, from a program that was replaced.
    """

    def pull(
        self, path: str, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """GET `path` and yield the body's bytes as they arrive; a request may take a minute.

        Args:
            path: Path and query; the program must see them unchanged.
            headers: Sent in addition to the transport's own.

        Raises:
            TransportError: On entering or while iterating.
        """
        ...

    async def push(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """POST `body` to `path` and return the answer's body.

        Raises:
            TransportError: There was no complete answer with status 200.
        """
        ...


def http_client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """Return a client for `HttpTransport`. The caller closes it; one serves all sandboxes of a provider.

    It has no time limits (the relay has), no limit on connections, and no cookies: those of one sandbox would
    go to all others.
    """
    none = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(timeout=None, limits=limits, cookies=none, transport=transport)


class HttpTransport:
    """A `Transport` over an HTTP proxy that leads to ports inside a sandbox.

    Args:
        client: See `http_client`; it stays open for longer than this transport.
        url: The proxy's URL of the control port; paths are appended to it.
        headers: Returns headers for the proxy; called before each request, so that a renewed token is used.
    """

    def __init__(
        self, client: httpx.AsyncClient, url: str, headers: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._headers = headers

    @asynccontextmanager
    async def pull(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with self._client.stream("GET", self._url + path, headers=self._all(headers)) as response:
                await _accepted(response)
                yield _translated(response)
        except httpx.HTTPError as error:
            raise _failed(error) from error

    async def push(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        try:
            async with self._client.stream(
                "POST", self._url + path, content=body, headers=self._all(headers)
            ) as response:
                await _accepted(response)
                return await short(response.aiter_raw())
        except httpx.HTTPError as error:
            raise _failed(error) from error

    def _all(self, headers: Mapping[str, str]) -> dict[str, str]:
        # A proxy that compresses would hold bytes back until it has a block of them.
        return {**self._headers(), **headers, "Accept-Encoding": "identity"}


async def _translated(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        raise _failed(error) from error


async def short(chunks: AsyncIterator[bytes]) -> bytes:
    """Return the complete answer to a push.

    Raises:
        TransportError: It is longer than any such answer.
    """
    answer = b""
    async for chunk in chunks:
        answer += chunk
        if len(answer) > MAX_ANSWER:
            raise TransportError("a push was answered with more than the relay inside ever says")
    return answer


async def _accepted(response: httpx.Response) -> None:
    """Refuse a status other than 200, and encoded answers: few bytes may decode to very many."""
    if response.status_code != _OK:
        text = b""
        async for chunk in response.aiter_raw():
            text += chunk
            if len(text) >= _MAX_ERROR:
                break
        raise _refused(response, text)
    coding = response.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise TransportError(
            f"a request to the relay inside was answered in the encoding {coding[:_QUOTED]!r}, expected none"
        )


def _failed(error: httpx.HTTPError) -> TransportError:
    return TransportError(f"a request to the relay inside broke off: {type(error).__name__} {error}".rstrip())


def _refused(response: httpx.Response, body: bytes) -> TransportError:
    text = " ".join(body[:_QUOTED].decode(errors="replace").split())
    return TransportError(f"a request to the relay inside was answered with {response.status_code}: {text}")
