"""One command in a Hugging Face sandbox: its streams, its end, its death."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from swe_core.errors import SandboxError
from swe_core.sandboxing.process import FedProcess
from swe_sandbox_hf.feed import Feed


class HfProcess(FedProcess):
    """A command that runs inside by itself, its streams in files there, and a task of ours that follows it.

    Back-pressure: while as many pieces of output are unread as are kept, nothing further is fetched. What
    nobody has fetched yet is in files inside; from 64 MiB on, the command's session is stopped until less is
    left.

    Args:
        sandbox: The sandbox's id.
        follow: Follows the command, calling `hear` with what comes, until `feed` has its exit code.
        kill_tree: Kills every process of the command. Processes that multiply faster than they are killed
            one by one are killed with everything else in the sandbox.
    """

    def __init__(
        self,
        sandbox: str,
        follow: Callable[[HfProcess], Awaitable[None]],
        kill_tree: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(sandbox)
        self.feed = Feed()
        self._sandbox = sandbox
        self._follow = follow
        self._kill_tree = kill_tree
        self._started = anyio.Event()

    async def follow(self) -> int:
        """See `FedProcess.follow`."""
        await self._follow(self)
        if self.feed.code is None:
            raise SandboxError(f"the sandbox {self._sandbox!r} did not say how a command in it ended")
        return self.feed.code

    async def kill_tree(self) -> None:
        """See `FedProcess.kill_tree`."""
        await self._kill_tree()

    async def started(self) -> None:
        """Wait until it runs.

        Raises:
            SandboxError: It could not be started.
        """
        await self._started.wait()
        if self.over:
            await self.wait()

    async def hear(self, text: str) -> None:
        """Take what follow.sh says, and pass it on."""
        for stream, chunk in self.feed.add(text):
            await self.put(stream, chunk)
        if self.feed.started:
            self._started.set()

    async def run(self) -> None:
        """See `FedProcess.run`."""
        try:
            await super().run()
        finally:
            self._started.set()
