"""A stream of server-sent events whose HTTP status stays open until there is something to say."""

from __future__ import annotations

from aiohttp import web

_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class _Response(web.StreamResponse):
    """Sends its headers with its first event, as aiohttp does for a reply that is whole."""

    _send_headers_immediately = False


class EventStream:
    """The reply to one request. Its headers go out with the first `send`, so that what fails before can
    still be answered with an HTTP error."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response: web.StreamResponse | None = None
        """None until the headers are committed."""

    async def send(self, data: bytes) -> None:
        """Send `data`, waiting while the client is slow to read.

        Raises:
            ConnectionError: The client is gone.
        """
        response = await self._begun()
        await response.write(data)

    async def end(self, data: bytes) -> web.StreamResponse:
        """Send `data`, the last of the stream.

        Raises:
            ConnectionError: The client is gone.
        """
        response = await self._begun()
        await response.write_eof(data)
        return response

    async def _begun(self) -> web.StreamResponse:
        if self.response is None:
            self.response = _Response(headers=_HEADERS)
            await self.response.prepare(self._request)
        return self.response
