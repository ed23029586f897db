"""HfSandbox: a running Hugging Face Sandbox."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import anyio
import anyio.from_thread
import httpx
from anyio.abc import TaskGroup
from huggingface_hub import Sandbox as HubSandbox
from huggingface_hub.errors import SandboxError as HubSandboxError

from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import SandboxBroken, SandboxDied, SandboxError
from swe_core.sandboxing.followed import FollowedSandbox
from swe_core.sandboxing.relay.pull_relay import reach_by_pull
from swe_core.sandboxing.relay.transport import HttpTransport
from swe_sandbox_hf.client import TRANSPORT, Client, is_transient
from swe_sandbox_hf.life import life

FOLLOWERS = 14
"""Maximum number of concurrent commands per sandbox; more wait. The client opens at most 18 connections to a
sandbox's server. Each running command holds one, and a kill needs one."""

_BAD_REQUEST = 400


class HfSandbox(FollowedSandbox):
    """A running sandbox, in its own job or in that of a pool.

    Args:
        hub: The client's handle of the sandbox.
        job: The id of its job.
        namespace: The job's namespace.
        flavor: The job's hardware.
        pooled: Whether other sandboxes share the job.
        tasks: The task group that serves the sandbox's commands.
        http: The client for requests to ports inside.
    """

    unset = ("SBX_TOKEN", "SBX_PORT", "SBX_IDLE_TIMEOUT", "SBX_HOST_MODE", "SBX_CAPACITY", "SBX_MAX_HOSTS")

    def __init__(
        self,
        client: Client,
        hub: HubSandbox,
        job: str,
        namespace: str,
        flavor: str,
        spec: SandboxSpec,
        pooled: bool,
        tasks: TaskGroup,
        http: httpx.AsyncClient,
    ) -> None:
        super().__init__(hub.id, spec, tasks, FOLLOWERS)
        self.flavor = flavor
        self._client = client
        self._hub = hub
        self._life = life(client, hub.id, job, namespace, shared=pooled)
        self._pooled = pooled
        self._http = http

    async def fill(self, archives: Mapping[str, BinaryIO | PurePosixPath]) -> None:
        """Call `prepare`. In a pool only the home is writable."""
        if self._pooled:
            where = "in a pool, where only its home is writable, "
            await self.prepare(archives, places=("",), where=where)
        else:
            await self.prepare(archives)

    async def request(
        self,
        argv: Sequence[str],
        hear: Callable[[str], Coroutine[Any, Any, None]],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> tuple[int, str]:
        """See `FollowedSandbox.request`."""

        def heard(text: str) -> None:  # called in the thread that reads
            anyio.from_thread.run(hear, text)

        given = None if env is None else dict(env)
        return await self._client.follow(self._hub, argv, heard, env=given, stdin=stdin)

    async def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        """See `FollowedSandbox.run`."""
        return await self._client.run(self._hub, argv, between=self.check)

    async def upload(self, path: str, data: bytes) -> None:
        """See `FollowedSandbox.upload`. In a pool, paths of the files API are relative to the home."""
        if self._pooled:
            path = path[path.index("/swe-core-") :]
        await self._ask(self._hub.files.write, path, data)

    async def check(self) -> None:
        """See `FollowedSandbox.check`."""
        await self._life.check()

    async def answers(self) -> bool:
        """See `FollowedSandbox.answers`."""
        try:
            await self._client.call(self._hub.processes, between=self.check)
        except (TRANSPORT, HubSandboxError):
            return False
        return True

    def passes(self, error: Exception) -> bool:
        """See `FollowedSandbox.passes`."""
        return is_transient(error)

    def reason(self, error: Exception) -> str:
        """See `FollowedSandbox.reason`."""
        return self._client.reason(error)

    def line(self, text: str) -> str:
        """See `FollowedSandbox.line`."""
        return self._client.line(text)

    def refusal(self, error: Exception, doing: str) -> SandboxError | None:
        """See `FollowedSandbox.refusal`."""
        status = getattr(error, "status_code", None)
        if status == _BAD_REQUEST and "spawn" in str(error):
            return SandboxBroken(
                f"the code inside broke the sandbox {self.id!r}: its shell (sh) no longer runs: "
                f"{self.reason(error)}"
            )
        if isinstance(error, TRANSPORT) or status is not None:
            return SandboxError(f"cannot {doing} in the sandbox {self.id!r}: {self.reason(error)}")
        return None

    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        """See `Sandbox.reach`."""
        if self._pooled:
            raise SandboxError(
                f"the sandbox {self.id!r} belongs to a pool, where nothing can listen for the agent's "
                "LLM calls: leave out sandbox.hf.pool"
            )

        def connect(port: int) -> HttpTransport:
            url = self._hub.proxy_url_for(port, scheme=self._client.scheme)
            return HttpTransport(self._http, url, lambda: self._hub.proxy_headers)

        return reach_by_pull(self, endpoint, connect)

    async def keep_alive(self, seconds: float) -> None:
        """Send a request every `seconds`: for the service, a running command is no activity."""
        while True:
            await anyio.sleep(seconds)
            with suppress(SandboxError):  # the next use reports the error
                await self._ask(self._hub.processes)

    async def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return await self._client.call(function, *args, between=self.check)
        except SandboxDied:
            raise
        except Exception as error:  # `_translated` translates or raises it
            raise await self._translated(error, "exchange files") from error
