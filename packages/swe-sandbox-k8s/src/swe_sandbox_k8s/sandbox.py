"""K8sSandbox: a running pod."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib import resources
from typing import Any

import anyio
from anyio.abc import ByteStream, TaskGroup
from kubernetes_asyncio.client import V1Pod

from swe_core.api.sandbox import Process, SandboxSpec
from swe_core.errors import PolicyRefused, SandboxBroken, SandboxError
from swe_core.sandboxing.followed import BrokenOff, FollowedSandbox, Tail
from swe_core.sandboxing.relay.bridge import reach_by_bridge
from swe_core.system.printable import one_line
from swe_sandbox_k8s.cluster import ANOTHER, Cluster
from swe_sandbox_k8s.errors import CLIENT, NoShell, is_transient, said_by
from swe_sandbox_k8s.exec import STDOUT, CommandStream, Exec
from swe_sandbox_k8s.pods import life

FOLLOWERS = 64
"""Maximum number of concurrent commands per sandbox; more wait. Each holds a connection to the API server."""
SILENCE = 60.0
"""Seconds without a word after which a connection counts as broken. A follower speaks every ten."""
POLICY = 15.0
"""Seconds until the cluster must have cut a new pod off. Policies reach a node after the pod does."""

_MAX_REASON = 400
_MAX_SAID = 64 * 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROBE = (resources.files("swe_sandbox_k8s") / "inside" / "probe.sh").read_text()
_UPLOAD = 'mkdir -p "$1" && echo ready && head -c "$3" >"$2" && [ "$(($(wc -c <"$2")))" = "$3" ]'


class Unconfined(PolicyRefused):
    """The cluster does not enforce network policies, so that it refuses all sandboxes."""


class K8sSandbox(FollowedSandbox):
    """A running pod.

    Args:
        id: The name of its claim.
        pod: The pod.
        tasks: The task group that serves the sandbox's commands.
    """

    def __init__(self, cluster: Cluster, id: str, pod: V1Pod, spec: SandboxSpec, tasks: TaskGroup) -> None:
        super().__init__(id, spec, tasks, FOLLOWERS)
        self.image_id = pod.status.container_statuses[0].image_id if pod.status.container_statuses else None
        self._cluster = cluster
        self._pod = str(pod.metadata.name)
        self._uid = str(pod.metadata.uid)
        self._life = life(cluster, id, self._pod, self._uid)

    async def confine(self) -> None:
        """Wait until the cluster has cut the pod off.

        Raises:
            PolicyRefused: It has not, or it cannot be found out.
        """
        remedy = "set sandbox.k8s.internet = true to accept it, or use another sandbox"
        deadline = anyio.current_time() + POLICY
        while True:
            said = (await self._inside(_PROBE))[1].strip()
            if said != "open" or anyio.current_time() >= deadline:
                break
            await anyio.sleep(1.0)
        if said == "open":
            raise Unconfined(
                f"the cluster does not keep code in the sandbox {self.id!r} from the network: its network "
                f"plugin does not enforce the NetworkPolicy of the template; install one that does, {remedy}"
            )
        if said != "closed":
            raise PolicyRefused(
                f"it cannot be found out whether the cluster keeps code in the sandbox {self.id!r} from the "
                f"network: its image has neither python3 nor node nor bash; {remedy}"
            )

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        """See `Sandbox.start`."""
        for name in {**self.spec.env, **(env or {})}:
            if not _NAME.fullmatch(name):
                raise SandboxError(
                    f"the variable {name!r} cannot be set in a pod: expected the name of a shell's"
                )
        return await super().start(argv, cwd=cwd, env=env, stdin=stdin)

    async def request(
        self,
        argv: Sequence[str],
        hear: Callable[[str], Coroutine[Any, Any, None]],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> tuple[int, str]:
        """See `FollowedSandbox.request`."""
        said = Tail(_MAX_REASON)
        async with self._exec(argv, env=env, stdin=stdin) as running:
            while (found := await running.receive(SILENCE)) is not None:
                text = found[1].decode("ascii", errors="replace")
                if found[0] == STDOUT:
                    await hear(text)
                else:
                    said.add(text)
        return await self._code(running), " ".join(said.text.split())

    async def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        """See `FollowedSandbox.run`."""

        async def attempt() -> tuple[int, str, str]:
            out, err = Tail(_MAX_SAID), Tail(_MAX_SAID)
            async with self._exec(argv) as running:
                while (found := await running.receive(SILENCE)) is not None:
                    (out if found[0] == STDOUT else err).add(found[1].decode(errors="replace"))
            return await self._code(running), out.text, err.text

        found: tuple[int, str, str] = await self._cluster.call(attempt, between=self.check)
        return found

    async def upload(self, path: str, data: bytes) -> None:
        """See `FollowedSandbox.upload`."""
        argv = ["/bin/sh", "-c", _UPLOAD, "sh", posixpath.dirname(path), path, str(len(data))]

        async def attempt() -> tuple[int, str]:
            said = Tail(_MAX_REASON)
            async with self._exec(argv) as running:
                # Sent earlier, a part of it might be read by what reads the script.
                while (found := await running.receive(SILENCE)) is not None:
                    if found[0] == STDOUT:
                        await running.send(data)
                    else:
                        said.add(found[1].decode(errors="replace"))
            return await self._code(running), said.text

        try:
            code, said = await self._cluster.call(attempt, between=self.check)
        except SandboxError:
            raise
        except Exception as error:  # `_translated` translates or raises it
            raise await self._translated(error, "exchange files") from error
        if code:
            why = self.line(said) or f"exit code {code}"
            raise SandboxError(f"cannot write a file in the sandbox {self.id!r}: {why}")

    async def check(self) -> None:
        """See `FollowedSandbox.check`."""
        await self._life.check()

    async def answers(self) -> bool:
        """See `FollowedSandbox.answers`. The kubelet reports a pod whose container has ended."""
        try:
            await self._cluster.call(self._cluster.pod, self._pod, between=self.check)
        except CLIENT:
            return False
        await self.check()
        return True

    def passes(self, error: Exception) -> bool:
        """See `FollowedSandbox.passes`."""
        return is_transient(error)

    def reason(self, error: Exception) -> str:
        """See `FollowedSandbox.reason`."""
        return self.line(said_by(error))

    def line(self, text: str) -> str:
        """See `FollowedSandbox.line`."""
        return one_line(text, _MAX_REASON)

    def refusal(self, error: Exception, doing: str) -> SandboxError | None:
        """See `FollowedSandbox.refusal`."""
        if isinstance(error, NoShell):
            if not self._base:
                return SandboxError(f"the image {self.spec.image!r} has no shell (sh): {self.reason(error)}")
            return SandboxBroken(
                f"the code inside broke the sandbox {self.id!r}: its shell (sh) no longer runs: "
                f"{self.reason(error)}"
            )
        if isinstance(error, CLIENT):
            return SandboxError(str(self._cluster.explained(error, f"{doing} in the sandbox {self.id!r}")))
        return None

    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        """See `Sandbox.reach`."""
        return reach_by_bridge(self, endpoint, self._bridge)

    async def _bridge(self, argv: list[str]) -> ByteStream:
        stack = AsyncExitStack()
        try:
            return CommandStream(await stack.enter_async_context(self._exec(argv)), stack)
        except (*CLIENT, BrokenOff) as error:
            raise SandboxError(self.reason(error)) from error

    def _exec(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str | None = None
    ) -> AbstractAsyncContextManager[Exec]:
        return self._cluster.exec(self._pod, self._uid, argv, env=env, stdin=stdin)

    async def _code(self, running: Exec) -> int:
        if running.code == ANOTHER:
            await self.check()
        if running.code in (None, ANOTHER):
            raise BrokenOff("a command in a pod ended without an exit code")
        return running.code
