"""Transport: the way from this host to the control port of a relay program inside a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Protocol

import httpx

from swe_core.errors import SandboxError

_TOLD = 200
_OK = 200
_MAX_ERROR = 1 << 10
MAX_ANSWER = 4 << 10
"""Bytes of the answer to a push, which is a proof and a number: what is longer is none."""


class TransportError(SandboxError):
    """One request to a control port failed: there was no answer, no whole answer, or not one with status 200.

    The relay asks again, so this reaches nobody unless the way never worked.
    """


class Transport(Protocol):
    """The way from this host to the control port of a relay program, for requests of plain HTTP.

    It needs to be neither reliable nor private: what breaks off is asked again from the byte where it
    broke, and both sides prove who they are. Several requests run at once. Being cancelled ends a request.

    Nothing can listen on the port 0: a request to it must fail, whatever the code inside does. That tells a
    way that answers by itself, such as a proxy with a page for everything, from a program that was replaced.
    """

    def pull(
        self, path: str, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """GET `path` and give the body's bytes as they come; it may take a minute.

        Args:
            path: Path and query, which the program must see unchanged.
            headers: To be sent, besides whatever the way itself needs.

        Raises:
            TransportError: On entering or while iterating.
        """
        ...

    async def push(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """POST `body` to `path` and return the answer's body.

        Raises:
            TransportError: It did not come to a whole answer with status 200.
        """
        ...


def http_client(*, uds: Path | None = None) -> httpx.AsyncClient:
    """A client for `HttpTransport`, to be closed by the caller. One serves all sandboxes of a provider.

    It sets no time limits, for the relay does, and no limit on connections. It keeps no cookies: those that
    one sandbox sets would go to all others.

    Args:
        uds: A unix socket to connect to, whatever host a URL names.
    """
    transport = None
    none = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    if uds is not None:
        transport = httpx.AsyncHTTPTransport(uds=str(uds), limits=limits)
    return httpx.AsyncClient(timeout=None, limits=limits, transport=transport, cookies=none)


def _no_headers() -> Mapping[str, str]:
    return {}


class HttpTransport:
    """A `Transport` over an HTTP proxy that leads to ports inside a sandbox.

    Args:
        client: Makes the requests, see `http_client`; it stays open for longer than this is used.
        url: What the proxy calls the root of the control port; paths are appended to it.
        headers: Called before each request for headers that the proxy wants, so that a token that is renewed
            is used at once.
    """

    def __init__(
        self, client: httpx.AsyncClient, url: str, headers: Callable[[], Mapping[str, str]] = _no_headers
    ) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._headers = headers

    @asynccontextmanager
    async def pull(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """See `Transport.pull`."""
        try:
            async with self._client.stream("GET", self._url + path, headers=self._all(headers)) as response:
                await _accepted(response)
                yield _translated(response)
        except httpx.HTTPError as error:
            raise _failed(error) from error

    async def push(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """See `Transport.push`."""
        try:
            async with self._client.stream(
                "POST", self._url + path, content=body, headers=self._all(headers)
            ) as response:
                await _accepted(response)
                return await short(response.aiter_raw())
        except httpx.HTTPError as error:
            raise _failed(error) from error

    def _all(self, headers: Mapping[str, str]) -> dict[str, str]:
        # A proxy that compresses would keep bytes back until it has a block of them.
        return {**self._headers(), **headers, "Accept-Encoding": "identity"}


async def _translated(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        raise _failed(error) from error


async def short(chunks: AsyncIterator[bytes]) -> bytes:
    """The whole of an answer to a push.

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
    """Refuse what is not 200, and what would have to be decoded: little of that may be very much."""
    if response.status_code != _OK:
        said = b""
        async for chunk in response.aiter_raw():
            said += chunk
            if len(said) >= _MAX_ERROR:
                break
        raise _refused(response, said)
    coding = response.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise TransportError(
            f"a request to the relay inside was answered in the encoding {coding[:_TOLD]!r}, expected none"
        )


def _failed(error: httpx.HTTPError) -> TransportError:
    return TransportError(f"a request to the relay inside broke off: {type(error).__name__} {error}".rstrip())


def _refused(response: httpx.Response, body: bytes) -> TransportError:
    said = " ".join(body[:_TOLD].decode(errors="replace").split())
    return TransportError(f"a request to the relay inside was answered with {response.status_code}: {said}")
