"""PlaySandbox: an episode of an OpenEnv server, whose shell tool runs the agent's commands."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from weakref import WeakSet

from anyio.abc import TaskGroup

from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Process, Sandbox, SandboxSpec
from swe_core.errors import SandboxBroken, SandboxDied, SandboxError
from swe_core.sandboxing.kill_tree import KILL_TREE
from swe_core.sandboxing.relay.pull_relay import reach_by_pull
from swe_openenv.play.calls import News, command_file
from swe_openenv.play.episode import Episode
from swe_openenv.play.process import PlayProcess, Reporter
from swe_openenv.play.relay_client import PullTransport
from swe_openenv.play.shell import Shell

_TRIES = 3
_READ_ONLY = 'chmod -R a-w,a+rX "$1"'


class PlaySandbox(Sandbox):
    """An open episode.

    The agent reaches only the shell tool: what gives the reward is for the grader, in an episode of its own.

    Args:
        tasks: The task group that serves the sandbox's commands.
        episode: For the grader.
    """

    def __init__(self, spec: SandboxSpec, episode: Episode, shell: Shell, tasks: TaskGroup) -> None:
        self._key = secrets.token_hex(6)
        self.id = f"openenv-{self._key}"
        # Without its image: the disk of an environment may be that of the server, with other episodes on it.
        self.spec = spec.model_copy(update={"image": None})
        self.episode = episode
        self._shell = shell
        self._tasks = tasks
        self._reporter = Reporter(shell)
        self._numbers = itertools.count()
        self._running: WeakSet[PlayProcess] = WeakSet()
        self._over: list[str] = []

    async def prepare(self, assets: Mapping[str, bytes]) -> None:
        """Make the sandbox's directories, and bring in the agent's assets.

        Args:
            assets: Name → gzipped tar archive.

        Raises:
            SandboxError: The environment lacks a program or a directory, or takes no assets.
        """
        await self._shell.prepare(f"swe-core-{self._key}", HOME_DIR, self.spec.workdir)
        self._tasks.start_soon(self._reporter.run)
        for name, archive in assets.items():
            directory = f"{ASSETS_DIR}/{name}"
            try:
                await self.put_archive(directory, archive)
            except SandboxDied:
                raise
            except SandboxError as error:
                raise SandboxError(
                    f"{self.episode.name} takes no files of the agent in {directory!r}: {error}; use "
                    "an agent without a bundle, such as mini, or an environment whose user may write there"
                ) from None
            await self.exec(["sh", "-c", _READ_ONLY, "sh", directory], cwd="/")

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        """See `Sandbox.start`."""
        mark = f"{self._key}{next(self._numbers):08x}"  # none begins with another one
        given = {**self.spec.env, "HOME": HOME_DIR, **(env or {})}
        command = command_file(argv, cwd or self.spec.workdir, given)
        over, self._over = self._over, []
        answer = await self._shell.run(mark, command, stdin or b"", over)
        first = answer.news.get(mark, News())
        process = PlayProcess(self.id, mark, first, self._reporter.news, self._kill)
        self._running.add(process)
        self._tasks.start_soon(self._serve, process)
        return process

    async def _serve(self, process: PlayProcess) -> None:
        await process.run()
        self._over.append(process.mark)

    async def _kill(self, process: PlayProcess) -> None:
        """Kill one command; everything, where it multiplies faster than it is killed."""
        answer = await self._shell.ask("kill", KILL_TREE, process.mark, process.mark)
        if answer.killed != 0:
            await self.kill_all()

    async def kill_all(self) -> None:
        """See `Sandbox.kill_all`. A process that left both its parents and its environment is not found."""
        running = [process for process in self._running if not process.over]
        for process in running:
            process.condemned = True
        for _ in range(_TRIES):
            answer = await self._shell.ask("kill", KILL_TREE, self._key, *(each.mark for each in running))
            if answer.killed == 0:
                return
        raise SandboxBroken(
            f"the code inside broke the sandbox {self.id!r}: its processes multiply faster than they are "
            "killed"
        )

    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        """See `Sandbox.reach`."""
        return reach_by_pull(self, endpoint, lambda port: PullTransport(self, port))

    async def clean(self) -> None:
        """Leave nothing of ours in an environment that may live longer than its episode.

        Raises:
            SandboxError: The episode is over already.
        """
        await self.kill_all()
        await self._shell.ask("remove")
