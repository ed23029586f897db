"""What the tests of the relay share."""

from __future__ import annotations

import asyncio
from functools import partialmethod
from typing import Any

import pytest
from anyio._backends import _asyncio


@pytest.fixture(autouse=True)
def _reads_that_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """In anyio 4.16, where a read of a unix socket is cancelled just as data arrives, the result of a
    cancelled future is set, and the loop reports an InvalidStateError. A program logs it; a test fails."""

    def ready(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

    def wait(stream: Any, field: str, end: str, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Wait until that end of the stream's socket, a "reader" or a "writer", is ready."""
        future: asyncio.Future[None] = asyncio.Future()
        setattr(stream, field, future)

        def done(_: object) -> None:
            setattr(stream, field, None)
            getattr(loop, f"remove_{end}")(stream._raw_socket)

        getattr(loop, f"add_{end}")(stream._raw_socket, ready, future)
        future.add_done_callback(done)
        return future

    for method, field, end in (
        ("_wait_until_readable", "_receive_future", "reader"),
        ("_wait_until_writable", "_send_future", "writer"),
    ):
        monkeypatch.setattr(_asyncio._RawSocketMixin, method, partialmethod(wait, field, end))
