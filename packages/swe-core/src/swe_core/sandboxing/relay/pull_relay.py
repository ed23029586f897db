"""`reach_by_pull`: the relay for sandboxes that cannot reach this host, while this host can reach into them.

A program inside listens for the agent on one port of its loopback and for this host on another. The host
pulls the agent's requests, sends them to the endpoint, and pushes the answers. A provider supplies a
`Transport` to a port inside; docs/internals/relay.md has an example and the protocol.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import httpx
from anyio.abc import TaskStatus

from swe_core.api.sandbox import Sandbox
from swe_core.errors import SandboxBroken, SandboxDied, SandboxError
from swe_core.sandboxing.background import helper_task_group
from swe_core.sandboxing.relay import requests
from swe_core.sandboxing.relay.frames import Imposture, ProtocolError
from swe_core.sandboxing.relay.launcher import NotStarted, running
from swe_core.sandboxing.relay.session import converse
from swe_core.sandboxing.relay.socket_relay import require_network
from swe_core.sandboxing.relay.timing import Backoff, Timing
from swe_core.sandboxing.relay.transport import HttpTransport, Transport, TransportError, http_client
from swe_core.sandboxing.relay.unix_socket import address_of
from swe_core.system.redaction import redact

__all__ = ["HttpTransport", "Timing", "Transport", "TransportError", "http_client", "reach_by_pull"]

_ENDED, _BROKEN, _MAX_PENALTY = 1, 4, 20
"""Points for a program that ends soon and for one that breaks the protocol; and the sum that makes the
sandbox a broken one. A program that ran well resets the sum."""
_STABLE = 30.0
"""Seconds from start to end of a program that ran well."""
_MAX_IMPOSTURES = 5
"""Consecutive times that the transport answers by itself before it is given up."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def reach_by_pull(
    sandbox: Sandbox, endpoint: str, connect: Callable[[int], Transport], *, timing: Timing | None = None
) -> AsyncIterator[str]:
    """Make `endpoint` reachable from inside `sandbox`, by pulling requests out of it.

    When the program inside is killed, it starts again on the same port; requests in flight are disconnected.

    Args:
        endpoint: `http://HOST:PORT` of a server on this host.
        connect: Returns the transport to a control port on 127.0.0.1 inside; called at each start.
        timing: For tests.

    Yields:
        `http://127.0.0.1:PORT`, the endpoint's URL inside, after the first successful pull.

    Raises:
        PolicyRefused: The sandbox's network policy is `none`.
        SandboxError: The sandbox has neither Python >= 3.6 nor Node >= 18, the program did not start, its
            control port could not be reached, or the endpoint is no plain http URL.
        SandboxDied: The sandbox has exited; or, for minutes, the transport answered by itself.
        SandboxBroken: The code inside replaced the program or keeps ending it. The body is cancelled then, as
            with SandboxDied.
    """
    require_network(sandbox)
    address_of(endpoint)
    # A connection serves one request: a reused one could close at that moment and lose a request that must
    # not be repeated. No request uses TLS, so no certificates are loaded.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncHTTPTransport(verify=False, trust_env=False, limits=limits) as client:
        supervisor = RelaySupervisor(sandbox, endpoint, client, connect, timing or Timing())
        async with helper_task_group() as tasks:
            try:
                with anyio.fail_after(supervisor.timing.open):
                    port: int = await tasks.start(supervisor.run)
            except TimeoutError:
                why = f": {supervisor.trouble}" if supervisor.trouble else ""
                raise SandboxError(
                    f"the relay in the sandbox {sandbox.id!r} could not be reached within "
                    f"{supervisor.timing.open:g} s{why}"
                ) from None
            tasks.start_soon(_cancel_after, supervisor.ended, tasks.cancel_scope)
            yield f"http://127.0.0.1:{port}"
        if supervisor.failure is not None:
            raise supervisor.failure


class RelaySupervisor:
    """Keep a program running inside, and talk to it."""

    def __init__(
        self,
        sandbox: Sandbox,
        endpoint: str,
        client: httpx.AsyncBaseTransport,
        connect: Callable[[int], Transport],
        timing: Timing,
    ) -> None:
        self._sandbox = sandbox
        self._endpoint = endpoint
        self._client = client
        self._connect = connect
        self.timing = timing
        self._port = 0
        self._open = False
        self.trouble: TransportError | None = None
        """The last failure of the transport, if any."""
        self.ended = anyio.Event()
        """Set when the relay has failed for good."""
        self.failure: SandboxDied | None = None
        """Why it failed for good."""
        self._listens = False  # whether the program was pulled from since its start
        self._penalty = 0
        self._impostures = 0

    async def run(self, *, task_status: TaskStatus[int]) -> None:
        """Report the agent's port after the first pull; run until cancelled or until the sandbox has exited.

        Raises:
            SandboxError: The relay failed before the first pull.
        """

        def opened() -> None:
            self._listens = True
            self._impostures = 0
            if not self._open:
                self._open = True
                task_status.started(self._port)

        backoff = Backoff(self.timing)
        while self.failure is None:
            started = anyio.current_time()
            self._listens = False
            error: SandboxError | None = None
            try:
                await self._run_once(opened)
            except SandboxDied:
                if not self._open:
                    raise
                return  # the next use of the sandbox raises the error
            except SandboxError as caught:
                if not self._open:
                    raise
                log.warning("the relay in the sandbox %r is started again: %s", self._sandbox.id, caught)
                error = caught
            stable = self._listens and anyio.current_time() - started > _STABLE
            await self._note_end(error, stable)
            if stable:
                backoff.reset()
            if self.failure is None:
                await anyio.sleep(backoff.pause())
        if not self._open:
            raise self.failure
        self.ended.set()

    async def _note_end(self, error: SandboxError | None, stable: bool) -> None:
        """Find who caused the end of a program, and whether the relay has failed for good.

        Args:
            error: Why it ended; None where it exited.
            stable: Whether it ran well until then.
        """
        if isinstance(error, Imposture) and await self._answers_by_itself():
            self._impostures += 1
            if self._impostures >= _MAX_IMPOSTURES:
                self.failure = SandboxDied(
                    f"the sandbox {self._sandbox.id!r} cannot be reached: for minutes the way to its ports "
                    "has answered by itself, also where nothing can listen"
                )
        elif isinstance(error, ProtocolError):
            self._penalty += _BROKEN
        elif stable:
            self._penalty = 0
        elif error is None or isinstance(error, NotStarted):
            self._penalty += _ENDED
        if self._penalty >= _MAX_PENALTY:
            why = error or f"it ended, each time within {_STABLE:g} s"
            self.failure = SandboxBroken(
                f"the code inside broke the sandbox {self._sandbox.id!r}: what runs there as its relay was "
                f"replaced, or killed, again and again: {why}"
            )

    async def _answers_by_itself(self) -> bool:
        """Return whether the transport answers for the port 0, on which nothing can listen."""
        with anyio.move_on_after(self.timing.push):
            try:
                async with self._connect(0).pull("/", {}) as chunks:
                    async for _ in chunks:
                        break
            except SandboxError:
                return False
            return True
        return False

    async def _run_once(self, opened: Callable[[], None]) -> None:
        """Run the program once, until it ends or breaks the protocol."""
        secret = secrets.token_bytes(32)  # a new one each time: the last one may be known inside
        redact(secret.hex(), temporary=True)
        settings = {
            "secret": secret.hex(),
            "port": self._port,
            "tick": self.timing.tick,
            "bodies": requests.MAX_BODIES,
        }
        async with running(self._sandbox, "pull", stdin=json.dumps(settings).encode(), ports=2) as program:
            port, control = program.ports
            if self._port not in (0, port):
                raise ProtocolError(f"the relay inside listens on port {port}, expected {self._port}")
            self._port = port
            with anyio.CancelScope() as life:
                async with helper_task_group() as tasks:
                    tasks.start_soon(_cancel_after, program.ended, life)
                    await converse(
                        self._connect(control),
                        secret,
                        self.timing,
                        self._endpoint,
                        self._client,
                        opened=opened,
                        failed=self._note,
                    )

    def _note(self, trouble: TransportError) -> None:
        self.trouble = trouble


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
