"""Send the requests of agents to the endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import anyio
import httpx

from swe_core.sandboxing.relay.frames import Gone, ProtocolError, RequestFrame, pack
from swe_core.sandboxing.relay.send_buffer import Outbox, Pace
from swe_core.sandboxing.relay.unix_socket import MAX_CONNECTIONS

_CHUNK = 65536
MAX_BODIES = 64 << 20
"""Bytes of all bodies under way, unless it is one body. The rest waits inside, so that the host still learns
at once which clients left."""
_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
    *("trailer", "transfer-encoding", "upgrade"),
}
"""Hop-by-hop headers (RFC 9110, 7.6.1), besides those that `Connection` names."""
_OURS = {"host", "content-length", "expect"}


def end_to_end(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers that are not hop-by-hop."""
    headers = list(headers)
    named = ",".join(value for name, value in headers if name.lower() == "connection").lower()
    dropped = _HOP_BY_HOP | {name.strip() for name in named.split(",")}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


class RelayedRequests:
    """The requests of one run of the program inside.

    Args:
        endpoint: The only server that gets requests.
        client: Sends them; each connection serves one request.
        pace: Gets the progress of the answers.
    """

    def __init__(
        self,
        endpoint: str,
        client: httpx.AsyncBaseTransport,
        outbox: Outbox,
        pace: Pace,
        start: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._endpoint = httpx.URL(endpoint)
        self._client = client
        self._outbox = outbox
        self._pace = pace
        self._start = start
        self._open: dict[int, tuple[anyio.CancelScope, int]] = {}
        self._last = 0
        self._held = 0
        self._asked = 0
        self._left = 0

    def take(self, frame: RequestFrame | Gone, body: bytes) -> None:
        """Send the request of `frame`, or cancel one.

        Raises:
            ProtocolError: Requests have wrong numbers, are too many or too large at once, or more clients
                left than there were.
        """
        if isinstance(frame, Gone):
            self._left += 1
            if self._left > self._asked:
                raise ProtocolError("the relay inside reported that more clients left than there were")
            if (scope := self._forget(frame.id)) is not None:
                scope.cancel()
                self._pace.forget(frame.id)
            return
        if frame.id <= self._last:
            raise ProtocolError(f"the relay inside sent the request {frame.id} after {self._last}")
        if len(self._open) >= MAX_CONNECTIONS:
            raise ProtocolError(f"the relay inside sent more than {MAX_CONNECTIONS} requests at once")
        if self._held and self._held + len(body) > MAX_BODIES:
            raise ProtocolError(f"the relay inside sent bodies of more than {MAX_BODIES} bytes at once")
        self._last = frame.id
        self._asked += 1
        self._held += len(body)
        scope = anyio.CancelScope()
        self._open[frame.id] = scope, len(body)
        self._start(partial(self._ask, frame, body, scope))

    def _forget(self, id: int) -> anyio.CancelScope | None:
        """Remove the request `id`. Return its scope, or None where its client left."""
        scope, size = self._open.pop(id, (None, 0))
        self._held -= size
        return scope

    async def _ask(self, frame: RequestFrame, body: bytes, scope: anyio.CancelScope) -> None:
        end = "end"
        with scope:
            try:
                await self._answer(frame, body)
            except httpx.HTTPError:
                end = "fail"
        if self._forget(frame.id) is not None:  # else its client has left
            self._pace.over(frame.id)
            self._outbox.append(pack(end, frame.id))

    async def _answer(self, frame: RequestFrame, body: bytes) -> None:
        headers = [
            (name.encode("ascii"), value.encode("latin-1"))
            for name, value in end_to_end(frame.headers)
            if name.lower() not in _OURS
        ]
        request = httpx.Request(
            frame.method,
            self._endpoint,
            headers=headers,
            content=body,
            extensions={"target": frame.path.encode("ascii")},  # unchanged: a URL would be normalised
        )
        response = await self._client.handle_async_request(request)
        try:
            reason = response.extensions.get("reason_phrase", b"").decode("latin-1")
            raw = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw)
            self._say("head", frame.id, status=response.status_code, reason=reason, headers=end_to_end(raw))
            async for chunk in response.aiter_raw():
                for start in range(0, len(chunk), _CHUNK):
                    await self._outbox.room()
                    self._say("data", frame.id, chunk[start : start + _CHUNK])
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    def _say(self, kind: str, id: int, payload: bytes = b"", **fields: object) -> None:
        self._pace.more(id)
        self._outbox.append(pack(kind, id, payload, **fields))
