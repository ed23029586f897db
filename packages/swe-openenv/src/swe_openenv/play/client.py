"""EpisodeClient: OpenEnv's own client, for one episode that must never become another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openenv.core.generic_client import GenericEnvClient

MAX_MESSAGE_MB = 32.0
"""Size of the largest message that is taken from a server."""
_NO_LIMIT = 24 * 3600.0  # seconds; every call here has a limit of its own


class EpisodeClient(GenericEnvClient):
    """A client whose connection is the episode: the server ends the environment together with it.

    The base class connects again when a connection is lost, which would continue in a fresh environment. This
    one raises `ConnectionError` instead.
    """

    def __init__(self, url: str, connect_timeout: float) -> None:
        super().__init__(
            url,
            connect_timeout_s=connect_timeout,
            message_timeout_s=_NO_LIMIT,
            max_message_size_mb=MAX_MESSAGE_MB,
            mode="simulation",
        )
        self._began = False

    async def _connect_async(self) -> EpisodeClient:
        """Connect once.

        A lost connection stays: what a server that refused the episode said last is still read from it.
        """
        if not self._began:
            self._began = True
            await super()._connect_async()
        elif self._ws is None:
            raise ConnectionError("the connection was lost")
        return self

    async def leave(self) -> None:
        """End the episode, and wait until the server has closed the environment: then it hangs up.

        Raises:
            Exception: Of several libraries: the connection is lost already.
        """
        if self._ws is not None:
            await self._ws.send('{"type": "close"}')
            await self._ws.wait_closed()

    async def rpc(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send a JSON-RPC request of MCP within the episode and return the response.

        Raises:
            Exception: Of several libraries: there is no answer, or it is an error of the server.
        """
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)}
        response = await self._send_and_receive({"type": "mcp", "data": request})
        return response.get("data")
