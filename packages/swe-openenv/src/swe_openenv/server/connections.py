"""Middleware for websockets: what OpenEnv's endpoint cannot bear, and clients that leave in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_AHEAD = 8
"""Messages that a client may send before the answer to the first."""
_POLICY_VIOLATION = 1008
_DISCONNECT = "websocket.disconnect"


class WatchConnections:
    """Ends the endpoint when its client has left, also in the middle of an action.

    OpenEnv's endpoint reads the next message only after an action. Until then it would keep the session's
    place, and whatever the action holds.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests as they are, and websockets watched."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        inbox = _Inbox()
        endpoint = asyncio.ensure_future(self._app(scope, inbox.next, send))
        reading = asyncio.ensure_future(_read(receive, send, inbox, endpoint))
        try:
            await asyncio.wait([endpoint])
        finally:
            for task in (endpoint, reading):
                task.cancel()
            # Once: a second cancellation would cut short how the endpoint frees its session.
            await asyncio.gather(endpoint, reading, return_exceptions=True)
        if not endpoint.cancelled() and (error := endpoint.exception()) is not None:
            raise error


class _Inbox:
    """The messages that the endpoint has not read yet.

    Attributes:
        waiting: Whether the endpoint waits for the next one.
    """

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.waiting = False

    async def next(self) -> Message:
        self.waiting = True
        try:
            return await self.messages.get()
        finally:
            self.waiting = False


async def _read(receive: Receive, send: Send, inbox: _Inbox, endpoint: asyncio.Future[None]) -> None:
    while True:
        message = await receive()
        if message["type"] == _DISCONNECT:
            await _end(inbox, endpoint, message)
            return
        if inbox.messages.qsize() >= MAX_AHEAD:
            why = "send a message after the answer to the last one"
            with suppress(OSError, RuntimeError):
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": why})
            await _end(inbox, endpoint, {"type": _DISCONNECT, "code": _POLICY_VIOLATION})
            return
        refusal = _refusal(message) if message["type"] == "websocket.receive" else None
        if refusal is None:
            inbox.messages.put_nowait(message)
        else:
            with suppress(OSError, RuntimeError):
                await send({"type": "websocket.send", "text": json.dumps(refusal)})


async def _end(inbox: _Inbox, endpoint: asyncio.Future[None], farewell: Message) -> None:
    """End the endpoint: it reads the farewell if it waits for a message, else its action is cancelled."""
    if inbox.waiting and inbox.messages.empty():
        inbox.messages.put_nowait(farewell)
    else:
        endpoint.cancel()


def _refusal(message: Message) -> Message | None:
    """Return the error for a message that OpenEnv's endpoint does not survive; None for any other."""
    text = message.get("text")
    if text is None:
        return _error("INVALID_JSON", "a message is a text frame with a JSON object; this one is binary")
    try:
        content = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        return None  # the endpoint says where it ends
    except UnicodeEncodeError:
        return _error("INVALID_JSON", "a text of the message is not valid Unicode")
    except (RecursionError, ValueError) as error:
        return _error("INVALID_JSON", f"the message cannot be read: {error}")
    if not isinstance(content, dict):
        return _error("VALIDATION_ERROR", "a message is a JSON object with 'type' and 'data'")
    return None


def _error(code: str, message: str) -> Message:
    return {"type": "error", "data": {"message": message, "code": code}}
