"""PlayProvider: opens an episode of an OpenEnv server for each sandbox."""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime

import anyio
import anyio.to_thread

from swe_core.api.sandbox import Asset, Sandbox, SandboxEntry, SandboxSpec
from swe_core.errors import PolicyRefused, SandboxError
from swe_core.sandboxing.background import background_task_group
from swe_openenv.play.address import Address
from swe_openenv.play.config import PlaySandboxConfig
from swe_openenv.play.episode import Episode, ServerFull, opened
from swe_openenv.play.replies import ShellTool, shell_tool
from swe_openenv.play.sandbox import PlaySandbox
from swe_openenv.play.shell import Shell

log = logging.getLogger(__name__)

CLEANING = 30.0
"""Seconds to clean an environment before its episode ends."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_NOTES = (
    "What an episode of an OpenEnv server reaches and uses is the server's affair, whatever the network "
    "policy and the limits of this run: sandbox.openenv.internet accepts it.",
    "A process in an OpenEnv environment that left both its parents and its environment variables outlives "
    "kill_all, and ends with the environment.",
    "An OpenEnv environment whose server runs in the same place shows the server to the agent, which may "
    "open episodes of its own there; the grader's episode is another one.",
    "On a machine that all episodes of an OpenEnv server share, a process that outlives its episode can "
    "reach the grader's, and change the reward.",
)


class PlayProvider:
    """An episode per sandbox. The task's image names server, split and index."""

    def __init__(self, config: PlaySandboxConfig) -> None:
        self._config = config
        self._archives: dict[str, bytes] = {}
        self._packing = anyio.Lock()
        self._open: dict[str, SandboxEntry] = {}

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`."""
        self.check_supported(spec)
        address = _address_of(spec)
        assets = {asset.name: await self._archive(asset) for asset in spec.assets}
        async with AsyncExitStack() as stack:
            episode = await self._started(stack, address)
            shell = Shell(episode, await self._tool(episode))
            tasks = await stack.enter_async_context(background_task_group())
            sandbox = PlaySandbox(spec, episode, shell, tasks)
            details = {"server": address.url, "task": f"{address.split}/{address.index}"}
            self._open[sandbox.id] = SandboxEntry(
                sandbox.id, "alive", image=str(address), created=datetime.now(UTC), details=details
            )
            try:
                await sandbox.prepare(assets)
                yield sandbox
            finally:
                del self._open[sandbox.id]
                with anyio.move_on_after(CLEANING, shield=True), suppress(SandboxError):
                    await sandbox.clean()

    async def _started(self, stack: AsyncExitStack, address: Address) -> Episode:
        """Open an episode that `stack` ends, and wait for a place where the server is full.

        Raises:
            SandboxError: The server failed, or there was no place in time.
        """
        deadline = anyio.current_time() + self._config.wait
        pause = _FIRST_PAUSE
        while True:
            async with AsyncExitStack() as trying:
                episode = await trying.enter_async_context(opened(address, self._config.timeout))
                try:
                    await episode.reset(address, self._config.reset_timeout)
                except ServerFull as error:
                    full = error
                else:
                    stack.push_async_exit(trying.pop_all())
                    return episode
            if pause == _FIRST_PAUSE:
                log.info("%s: waiting for a place", full)
            if anyio.current_time() + pause > deadline:
                raise SandboxError(
                    f"{full}, for {self._config.wait:g} s (sandbox.openenv.wait): lower --concurrency, or "
                    "let the server have more episodes at once"
                )
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _tool(self, episode: Episode) -> ShellTool:
        tools = await episode.tools()
        found = shell_tool(tools, self._config.tool)
        if found is None:
            names = ", ".join(sorted(repr(tool["name"]) for tool in tools)) or "none"
            wanted = f"tool {self._config.tool!r} (sandbox.openenv.tool)" if self._config.tool else "tool"
            raise SandboxError(
                f"{episode.name} has no {wanted} that runs a shell command given as one text, which an agent "
                f"needs to work there; its tools: {names}"
            )
        return found

    async def _archive(self, asset: Asset) -> bytes:
        """Return the archive of an asset, packed once."""
        async with self._packing:
            if asset.digest not in self._archives:
                self._archives[asset.digest] = await anyio.to_thread.run_sync(_packed, asset)
            return self._archives[asset.digest]

    def check_supported(self, spec: SandboxSpec) -> None:
        """See `SelectiveProvider.check_supported`."""
        if spec.network != "full" and not self._config.internet:
            raise PolicyRefused(
                "an OpenEnv server decides itself what its episodes reach, and network "
                f"{spec.network!r} asks for a limit: set sandbox.openenv.internet = true to accept that, or "
                "use another sandbox"
            )

    def notes(self) -> Sequence[str]:
        """See `SandboxProvider.notes`."""
        return _NOTES

    async def list(self) -> Sequence[SandboxEntry]:
        """Return this process's own: a server tells nobody of its episodes, and ends them with their run."""
        return [*self._open.values()]

    async def reap(self) -> int:
        """See `SandboxProvider.reap`. Servers end the episodes of runs that have ended."""
        return 0


def _address_of(spec: SandboxSpec) -> Address:
    if spec.repository is not None:
        raise SandboxError(
            "the sandbox 'openenv' has the repositories of its server, and this task brings its own: use "
            "another sandbox, or the tasks 'openenv'"
        )
    address = None if spec.image is None else Address.parse(spec.image)
    if address is None:
        raise SandboxError(
            f"the sandbox 'openenv' needs a task of the tasks 'openenv', whose image is URL/SPLIT/INDEX; "
            f"this one has {spec.image!r}"
        )
    return address


def _packed(asset: Asset) -> bytes:
    buffer = io.BytesIO()

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    try:
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
            archive.add(asset.path, arcname=".", filter=anonymous)
    except OSError as error:
        raise SandboxError(f"the asset {asset.name!r} cannot be read: {error}") from None
    return buffer.getvalue()
