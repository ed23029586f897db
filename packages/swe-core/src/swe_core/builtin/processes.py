"""The executor `processes`: runs rollouts in several processes on this host."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO

import aiohttp
from anyio.to_thread import run_sync

from swe_core.api.executor import ExecutorRun
from swe_core.rollout.nodes.executor import NodeExecutor
from swe_core.rollout.nodes.handle import NodeGone, NodeHandle, NodeUnreachable
from swe_core.rollout.nodes.pool import NodePool
from swe_core.rollout.nodes.spool import spools_of, tidy
from swe_core.system.process_owner import current_owner, is_orphaned

logger = logging.getLogger(__name__)

_DEATHS = 3
"""Number of times that a process may end before it is ready."""
_PREFIX, _OWNER = "swe-nodes-", "owner"
_ENDING = 100.0
"""Seconds in which a process closes its sandboxes at the end."""


class ProcessNode(NodeHandle):
    """A node that is a process on this host.

    Args:
        sockets: A directory for its socket.
    """

    def __init__(self, name: str, slots: int, spool: Path, sockets: Path) -> None:
        self.name = name
        self.slots = slots
        self.spool = str(spool)
        self._socket = sockets / name
        self._process: subprocess.Popen[bytes] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._deaths = 0
        self._last = ""

    async def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._deaths += 1
            code = self._process.returncode
            logger.warning("the process of the node %s has ended with code %d", self.name, code)
        if self._deaths > _DEATHS:
            said = f": {self._last}" if self._last else ""
            raise NodeGone(f"its process has ended {self._deaths} times before it was ready{said}")
        self._socket.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "swe_core.run.node_process", str(self._socket)]
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C is for the driver, which then ends the rollouts in order. Not by the
        # event loop, whose fork may run hooks of other libraries.
        self._process = process = subprocess.Popen(  # noqa: ASYNC220 (see above)
            command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        if process.stderr is None or process.stdout is None:
            raise NodeUnreachable("its process has no pipes")
        threading.Thread(target=self._tell, args=(process.stderr,), daemon=True).start()
        if not await run_sync(_first_line, process.stdout, abandon_on_cancel=True):
            raise NodeUnreachable("its process has ended")

    def _tell(self, lines: IO[bytes]) -> None:
        """Log what the process prints; its log records come as events."""
        with lines:
            for line in lines:
                self._last = line.decode(errors="replace").rstrip()
                logger.warning("%s: %s", self.name, self._last)

    async def call(self, method: str, message: bytes) -> bytes:
        if self._session is None:
            connector = aiohttp.UnixConnector(str(self._socket), limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout())
        try:
            async with self._session.post(f"http://node/{method}", data=message) as response:
                answer = await response.read()
                response.raise_for_status()
        except (aiohttp.ClientError, OSError) as error:
            raise NodeUnreachable(str(error)) from None
        if method == "begin":
            self._deaths = 0
        return answer

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._process is not None:
            await run_sync(_end, self._process)


def _first_line(lines: IO[bytes]) -> bytes:
    with lines:
        return lines.readline()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that ends with its standard input, or kill it."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(_ENDING)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class ProcessExecutor(NodeExecutor):
    """Runs rollouts in processes on this host, each with an interception server and sandboxes of its own.

    Args:
        workers: Number of processes; None is one a processor, but not more than rollouts at the same time.
    """

    def __init__(self, workers: int | None) -> None:
        super().__init__()
        self._workers = workers

    @asynccontextmanager
    async def nodes(self, pool: NodePool, run: ExecutorRun) -> AsyncIterator[None]:
        count = min(self._workers or os.cpu_count() or 1, run.concurrency)
        slots, spools = -(-run.concurrency // count), spools_of(run.directory).absolute()
        with _sockets() as sockets:
            for number in range(1, count + 1):
                name = f"process-{number}"
                pool.add(ProcessNode(name, slots, spools / name, sockets))
            pool.no_more_nodes()
            yield
        await run_sync(tidy, spools)


@contextmanager
def _sockets() -> Iterator[Path]:
    """Make a private directory for sockets, and remove those of killed drivers."""
    for found in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is another user's, or was removed meanwhile
            if is_orphaned((found / _OWNER).read_text()):
                shutil.rmtree(found, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as path:
        Path(path, _OWNER).write_text(current_owner())
        yield Path(path)
