"""`converse`: talk to one run of the program inside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import httpx

from swe_core.errors import SandboxError
from swe_core.sandboxing.relay.receiver import Receiver
from swe_core.sandboxing.relay.requests import RelayedRequests
from swe_core.sandboxing.relay.send_buffer import Outbox, Pace
from swe_core.sandboxing.relay.sender import Sender
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
    """Carry requests and answers until cancelled; requests in flight are then closed at the endpoint.

    Args:
        transport: Leads to the program's control port.
        secret: Shared with the program; another program cannot answer.
        endpoint: The only server that gets requests.
        opened: Called whenever the program inside has proved its identity.
        failed: Called whenever a pull has failed, before the retry.

    Raises:
        ProtocolError: The program inside is not, or no longer, ours.
        SandboxDied: The sandbox has exited.
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
    calls = RelayedRequests(endpoint, client, outbox, pace, start)
    puller = Receiver(
        transport, secret, timing, take=calls.take, opened=opened, failed=failed, buffered=pace.slow_down
    )
    pusher = Sender(transport, secret, timing, outbox, pace, lambda: puller.taken)
    async with anyio.create_task_group() as tasks:
        start(puller.run)
        start(lambda: pusher.run(start))
    if failure is not None:
        raise failure
