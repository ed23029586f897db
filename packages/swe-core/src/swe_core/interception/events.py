"""A stream of server-sent events whose HTTP status stays open until there is something to say."""

from __future__ import annotations

from aiohttp import web

_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream:
    """The reply to one request. Its headers go out with the first `send`, so that what fails before can
    still be answered with an HTTP error."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response: web.StreamResponse | None = None
        """None until the headers are committed."""

    async def send(self, data: bytes) -> web.StreamResponse:
        """Send `data`, waiting while the client is slow to read.

        Raises:
            ConnectionError: The client is gone.
        """
        if self.response is None:
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(self._request)
            self.response = response
        await self.response.write(data)
        return self.response
