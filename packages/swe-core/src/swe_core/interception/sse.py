"""Server-sent events whose HTTP status stays open until the first event."""

from __future__ import annotations

from aiohttp import web

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class _Response(web.StreamResponse):
    """A response that sends its headers with its first event, as aiohttp does for complete replies."""

    _send_headers_immediately = False


class EventStream:
    """The reply to one request. Its headers go out with the first event: earlier errors set the status."""

    def __init__(self, request: web.Request, content_type: str = "text/event-stream") -> None:
        self._request = request
        self._headers = {"Content-Type": content_type, **_HEADERS}
        self.response: web.StreamResponse | None = None
        """None until the headers are sent."""

    async def send(self, data: bytes) -> None:
        """Send `data`, waiting while the client is slow to read.

        Raises:
            ConnectionError: The client has left.
        """
        response = await self._begun()
        await response.write(data)

    async def end(self, data: bytes) -> web.StreamResponse:
        """Send `data`, the last of the stream.

        Raises:
            ConnectionError: The client has left.
        """
        response = await self._begun()
        await response.write_eof(data)
        return response

    async def _begun(self) -> web.StreamResponse:
        if self.response is None:
            self.response = _Response(headers=self._headers)
            await self.response.prepare(self._request)
        return self.response
