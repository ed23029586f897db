"""Commands inside an environment, and the one task that asks for the news of all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from swe_core.api.sandbox import Stream
from swe_core.errors import SandboxBroken, SandboxError
from swe_core.sandboxing.process import FedProcess
from swe_openenv.play.calls import News
from swe_openenv.play.shell import Shell

SHORTEST, LONGEST = 0.02, 0.25
"""Seconds between two calls: the first pause after news, and the longest one without."""


class PlayProcess(FedProcess):
    """A command with its output in files inside.

    Args:
        sandbox: The sandbox's id.
        mark: Its name inside.
        first: What it did at once.
        news: Waits for what is new.
        kill: Kills its processes.
    """

    def __init__(
        self,
        sandbox: str,
        mark: str,
        first: News,
        news: Callable[[PlayProcess], Awaitable[News]],
        kill: Callable[[PlayProcess], Awaitable[None]],
    ) -> None:
        super().__init__(sandbox)
        self.mark = mark
        self.offsets: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._sandbox = sandbox
        self._first: News | None = first
        self._news = news
        self._kill = kill

    async def follow(self) -> int:
        """See `FedProcess.follow`."""
        while True:
            news, self._first = self._first or await self._news(self), None
            for stream, offset, content in news.chunks:
                if offset != self.offsets[stream]:
                    raise self._broken(f"its output continues at byte {offset}, not {self.offsets[stream]}")
                self.offsets[stream] += len(content)
                await self.put(stream, content)
            if news.code is not None:
                return news.code
            if news.gone:
                if self.condemned:
                    return 137
                raise self._broken("it removed or changed the files of its commands")

    async def kill_tree(self) -> None:
        """See `FedProcess.kill_tree`."""
        if not self.over:
            await self._kill(self)

    def _broken(self, why: str) -> SandboxBroken:
        return SandboxBroken(f"the code inside broke the sandbox {self._sandbox!r}: {why}")


class Reporter:
    """Asks for the news of all commands that wait for some, in one call, at a pace that slows down."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._waiting: dict[str, _Waiting] = {}
        self._came = anyio.Event()

    async def news(self, process: PlayProcess) -> News:
        """Wait until there is something new about a command.

        Raises:
            SandboxError: The episode is over.
        """
        waiting = self._waiting[process.mark] = _Waiting(process)
        self._came.set()
        try:
            await waiting.done.wait()
        finally:
            self._waiting.pop(process.mark, None)
        if isinstance(waiting.news, SandboxError):
            raise waiting.news
        return waiting.news

    async def run(self) -> None:
        """Ask until cancelled."""
        pause = SHORTEST
        while True:
            while not self._waiting:
                self._came = anyio.Event()
                await self._came.wait()
                pause = SHORTEST
            self._came = anyio.Event()
            with anyio.move_on_after(pause):
                await self._came.wait()  # a new command: its first news are likely near
                pause = SHORTEST
            pause = SHORTEST if await self._ask() else min(2 * pause, LONGEST)

    async def _ask(self) -> bool:
        """Ask once, and return whether there was something new."""
        waiting = dict(self._waiting)
        arguments = [text for each in waiting.values() for text in each.arguments]
        try:
            found = (await self._shell.ask("poll", *arguments)).news
        except SandboxError as error:
            for each in waiting.values():
                each.tell(error)
            return True
        for mark, each in waiting.items():
            if news := found.get(mark):
                each.tell(news)
        return any(found.values())


class _Waiting:
    """A command that waits for news."""

    def __init__(self, process: PlayProcess) -> None:
        offsets = process.offsets
        self.arguments = (process.mark, str(offsets["stdout"]), str(offsets["stderr"]))
        self.done = anyio.Event()
        self.news: News | SandboxError = News()

    def tell(self, news: News | SandboxError) -> None:
        self.news = news
        self.done.set()
