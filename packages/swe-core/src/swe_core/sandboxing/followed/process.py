"""One command that is followed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from swe_core.errors import SandboxError
from swe_core.sandboxing.followed.feed import Feed
from swe_core.sandboxing.process import FedProcess


class FollowedProcess(FedProcess):
    """A command that runs detached inside, with its output in files, and a task here that follows it.

    Back-pressure: while the buffer of output is full, the task fetches nothing. Output that has not been
    fetched stays in the files inside. When these hold more than 64 MiB, follow.sh stops the command's session
    until they hold less.

    Args:
        sandbox: The sandbox's id.
        follow: Follows the command and calls `hear` with its output, until `feed` has the exit code.
        kill_tree: Kills every process of the command. If processes multiply faster than they are killed one
            by one, it kills everything in the sandbox.
    """

    def __init__(
        self,
        sandbox: str,
        follow: Callable[[FollowedProcess], Awaitable[None]],
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
            raise SandboxError(f"the sandbox {self._sandbox!r} did not report the exit code of a command")
        return self.feed.code

    async def kill_tree(self) -> None:
        """See `FedProcess.kill_tree`."""
        await self._kill_tree()

    async def started(self) -> None:
        """Wait until the command runs.

        Raises:
            SandboxError: The command could not be started.
        """
        await self._started.wait()
        if self.over:
            await self.wait()

    async def hear(self, text: str) -> None:
        """Decode output of follow.sh, and pass it on."""
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
