"""`converse`: the conversation with one life of the program inside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import httpx

from swe_core.errors import SandboxError
from swe_core.sandboxing.relay.receiver import Puller
from swe_core.sandboxing.relay.requests import Calls
from swe_core.sandboxing.relay.send_buffer import Outbox, Pace
from swe_core.sandboxing.relay.sender import Pusher
from swe_core.sandboxing.relay.timing import Timing
from swe_core.sandboxing.relay.transport import Transport, TransportError


async def converse(
    transport: Transport,
    secret: bytes,
    timing: Timing,
    endpoint: str,
    client: httpx.AsyncBaseTransport,
    *,
    opened: Callable[[], None],
    failed: Callable[[TransportError], None],
) -> None:
    """Carry requests up and answers down until cancelled; requests in flight are then closed at the endpoint.

    Args:
        transport: The way to the program's control port.
        secret: What it was given; who does not know it is not talked to.
        timing: Seconds.
        endpoint: The only server that is ever asked.
        client: Asks it.
        opened: Called whenever the program inside has proved to be at the other end.
        failed: Called whenever a pull has failed; it is tried again.

    Raises:
        ProtocolError: What is inside is not, or no longer, our program.
        SandboxDied: The sandbox is gone.
    """
    failure: SandboxError | None = None

    async def guarded(work: Callable[[], Awaitable[None]]) -> None:
        nonlocal failure
        try:
            await work()
        except SandboxError as error:
            failure = error
            tasks.cancel_scope.cancel()

    def start(work: Callable[[], Awaitable[None]]) -> None:
        tasks.start_soon(guarded, work)

    outbox, pace = Outbox(), Pace(anyio.current_time)
    calls = Calls(endpoint, client, outbox, pace, start)
    puller = Puller(
        transport,
        secret,
        timing,
        take=calls.take,
        opened=opened,
        failed=failed,
        buffered=pace.slow_down,
    )
    pusher = Pusher(transport, secret, timing, outbox, pace, lambda: puller.taken)
    async with anyio.create_task_group() as tasks:
        start(puller.run)
        start(lambda: pusher.run(start))
    if failure is not None:
        raise failure
