"""RolloutNode: runs rollouts for a driver in another process, perhaps on another machine.

A node keeps each finished rollout on its disk until the driver acknowledges it. It runs nothing of its own
accord: `swe_core.rollout.nodes.pool.NodePool` is the other side.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import platform
import secrets
import shutil
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from swe_core.api import contracts
from swe_core.api.engine import Engine
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import SweError, sentence
from swe_core.rollout.nodes.messages import (
    Acknowledge,
    Begin,
    End,
    Event,
    FailedEvent,
    FinishedEvent,
    Joined,
    LogEvent,
    PhaseEvent,
    Poll,
    Read,
    Server,
    SetVersion,
    Start,
    TurnEvent,
    UnfitEvent,
    events_to_bytes,
    from_bytes,
    light,
    to_bytes,
)
from swe_core.rollout.nodes.spool import Spool
from swe_core.rollout.site import LocalSite
from swe_core.run.components import load_plugins
from swe_core.run.plan import plan_run
from swe_core.run.settings import Settings
from swe_core.run.site import open_engine, open_site
from swe_core.system.descriptors import raise_descriptor_limit
from swe_core.system.event_loop import settled
from swe_core.system.files import is_locked, locked
from swe_core.system.printable import printable
from swe_core.system.redaction import Redactor

logger = logging.getLogger(__name__)

MAX_CLOCK = 30.0
"""Seconds that a node's clock may differ from the driver's: records have the times of the nodes."""
_POLL = 10.0
"""Seconds after which a poll without events returns."""
_GATHER = 0.05
"""Seconds in which events are gathered: each answer costs the driver more than an event."""


class RolloutNode:
    """Runs the rollouts of one run.

    Args:
        redactor: Removes secrets from what the node writes and logs.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._incarnation = secrets.token_hex(8)
        self._began: Begin | None = None
        self._begun, self._opened, self._closing = anyio.Event(), anyio.Event(), anyio.Event()
        self._failure = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._epoch = 0
        self._version = 0
        self._name = ""
        self._running: set[str] = set()
        self._early: dict[str, str | None] = {}
        self._events: deque[Event] = deque()
        self._number = 0
        self._news = anyio.Event()
        self._without: set[str] = set()
        self._engine: Engine | None = None
        self._methods: Mapping[str, Callable[[bytes], Awaitable[bytes]]] = {
            "begin": self._begin,
            "start": self._start,
            "cancel": self._cancel,
            "version": self._set_version,
            "take_out": self._take_out,
            "put_in": self._put_in,
            "poll": self._poll,
            "read": self._read,
            "acknowledge": self._acknowledge,
            "metrics": self._metrics,
            "close": self._close,
        }

    _site: LocalSite
    _tasks: TaskGroup
    _spool: Spool
    _folders: Path
    _held: ExitStack

    async def run(self) -> None:
        """Serve until `close` or `stop`. All sandboxes are closed then."""
        self._loop = asyncio.get_running_loop()
        handler = _Log(self._log, self._redactor)
        logging.getLogger().addHandler(handler)
        try:
            await self._begun.wait()
            async with AsyncExitStack() as stack:
                try:
                    await self._open(stack)
                except SweError as error:
                    self._failure = sentence(error)
                except Exception as error:  # the boundary of the node: the driver reports it
                    logger.exception("the node cannot open")
                    self._failure = sentence(error)
                else:
                    self._tasks = await stack.enter_async_context(anyio.create_task_group())
                    stack.callback(self._tasks.cancel_scope.cancel)
                self._opened.set()
                await self._closing.wait()
        finally:
            logging.getLogger().removeHandler(handler)

    def stop(self) -> None:
        """End all rollouts, because the driver is gone. What has finished stays in the spool."""
        self._begun.set()
        self._closing.set()

    async def answer(self, method: str, message: bytes) -> bytes:
        """Return the answer to a message of the driver: `+` and the content, or `-` and why it is refused.

        It is `?` where the driver has to begin first, because the node has started again.
        """
        if method != "begin" and not self._opened.is_set():
            return b"?"
        try:
            return b"+" + await self._methods[method](message)
        except SweError as error:
            return b"-" + self._redactor.text(sentence(error)).encode()
        except Exception as error:  # the boundary of the node: the driver reports it
            logger.exception("the node cannot answer %r", method)
            return b"-" + self._redactor.text(sentence(error)).encode()

    # opening

    async def _begin(self, message: bytes) -> bytes:
        begin = from_bytes(Begin, message)
        newest = begin.epoch > self._epoch
        self._epoch = max(self._epoch, begin.epoch)
        if self._began is None:
            _check_clock(begin.clock)
            check_versions(begin.versions)
            self._began = begin
            self._begun.set()
        await self._opened.wait()
        if self._failure:
            raise SweError(self._failure)
        self._apply(begin.version)
        if newest:  # else it is one that the driver has given up
            for url in self._without - set(begin.without):
                self._engine_put_in(url)
            for url in set(begin.without) - self._without:
                self._engine_take_out(url)
        return to_bytes(
            Joined(
                incarnation=self._incarnation,
                pid=os.getpid(),
                host=socket.gethostname(),
                notes=tuple(self._site.notes),
                running=tuple(self._running),
                offered=tuple(await run_sync(self._spool.ids)),
            )
        )

    async def _open(self, stack: AsyncExitStack) -> None:
        begin = self._began
        if begin is None:  # it was stopped before
            raise SweError("the driver has gone")
        raise_descriptor_limit()
        if begin.directory is not None:
            with suppress(OSError):  # another machine may not have it
                os.chdir(begin.directory)
        settings = Settings(**begin.settings)
        plugins = load_plugins(settings.run)
        for module in plugins.manager.get_plugins():
            logging.getLogger(str(getattr(module, "__name__", "")).partition(".")[0]).setLevel(logging.INFO)
        plan = await run_sync(lambda: plan_run(settings, plugins, read_tasks=False))
        self._spool = await run_sync(_spool, begin)
        self._name = begin.name
        self._folders = self._spool.path / f".{begin.name}.{self._incarnation}"
        stack.callback(shutil.rmtree, self._folders, ignore_errors=True)
        self._held = stack.enter_context(ExitStack())
        self._engine = await stack.enter_async_context(open_engine(plan, self._redactor))
        if self._engine is not None:
            await contracts.check(self._engine)
        site = open_site(plan, plugins, self._engine, self._folders, self._redactor)
        self._site = await stack.enter_async_context(site)
        stack.enter_context(settled())

    # rollouts

    async def _start(self, message: bytes) -> bytes:
        start = from_bytes(Start, message)
        known = start.request.id in self._running
        if start.epoch == self._epoch and not known and not self._closing.is_set():
            self._running.add(start.request.id)
            self._tasks.start_soon(self._rollout, start.request)
        return b""

    async def _rollout(self, request: RolloutRequest) -> None:
        ended: list[tuple[FinishedRollout, bytes]] = []
        observer = _Events(self._emit, self._end_early)

        def commit(finished: FinishedRollout) -> None:
            # Now, while the redactor knows the tokens of the rollout.
            rollout = finished.rollout.model_copy(update={"node": self._name})
            record = self._redactor.data(orjson.dumps(rollout.model_dump(mode="json")))
            ended.append((finished, record))

        try:
            if not self._folders.exists():
                self._folders.mkdir(parents=True)
                self._held.enter_context(locked(self._folders))  # another start of this node leaves it alone
            try:
                await self._site.run(request, observer, commit)
            finally:
                if ended and not await self._is_void(ended[0][0].rollout):
                    with anyio.CancelScope(shield=True):
                        (finished, record), folder = ended[0], self._folders / request.id
                        await run_sync(self._spool.add, request.id, record, finished.chains, folder)
        except OSError as error:
            why = f"it cannot write {str(self._spool.path)!r}: {error.strerror or error}"
            self._emit(FailedEvent, rollout=request.id, why=why)
        else:
            self._emit(FinishedEvent, rollout=request.id)
        finally:
            self._running.discard(request.id)
            self._early.pop(request.id, None)
        if self._engine is not None and self._engine.unfit is not None:
            self._emit(UnfitEvent, why=self._redactor.text(self._engine.unfit))

    async def _is_void(self, rollout: Rollout) -> bool:
        """Return whether a rollout was interrupted by the end of the node, or while a try of it is kept."""
        if rollout.outcome != "cancelled" or rollout.cancelled_as is not None:
            return False
        with anyio.CancelScope(shield=True):
            kept = await run_sync(self._spool.ids)
        return self._closing.is_set() or rollout.id in kept

    async def _cancel(self, message: bytes) -> bytes:
        end = from_bytes(End, message)
        if end.rollout in self._running:
            self._early[end.rollout] = end.why
            self._site.cancel(end.rollout, end.why)
        return b""

    def _end_early(self, rollout_id: str) -> None:
        """End a rollout that was cancelled before it began."""
        if rollout_id in self._early:
            self._site.cancel(rollout_id, self._early[rollout_id])

    async def _read(self, message: bytes) -> bytes:
        read = from_bytes(Read, message)
        try:
            return await run_sync(self._spool.read, read.rollout, read.offset)
        except OSError as error:
            raise SweError(f"it cannot read the rollout {read.rollout!r}: {error.strerror}") from None

    async def _acknowledge(self, message: bytes) -> bytes:
        for rollout_id in from_bytes(Acknowledge, message).rollouts:
            await run_sync(self._spool.remove, rollout_id)
        return b""

    async def _close(self, message: bytes) -> bytes:
        self._closing.set()
        return b""

    # the engine

    async def _set_version(self, message: bytes) -> bytes:
        self._apply(from_bytes(SetVersion, message))
        return b""

    def _apply(self, news: SetVersion | None) -> None:
        if news is not None and news.number > self._version and self._engine is not None:
            self._version = news.number
            self._engine.set_policy_version(news.version)

    async def _take_out(self, message: bytes) -> bytes:
        on_it = self._engine_take_out(from_bytes(Server, message).url)
        return to_bytes(Acknowledge(rollouts=tuple(on_it)))

    async def _put_in(self, message: bytes) -> bytes:
        self._engine_put_in(from_bytes(Server, message).url)
        return b""

    def _engine_take_out(self, url: str) -> Sequence[str]:
        self._without.add(url)
        return tuple(self._engine.take_out(url)) if self._engine is not None else ()

    def _engine_put_in(self, url: str) -> None:
        self._without.discard(url)
        if self._engine is not None:
            self._engine.put_in(url)

    async def _metrics(self, message: bytes) -> bytes:
        return self._site.counters

    # events

    async def _poll(self, message: bytes) -> bytes:
        after = from_bytes(Poll, message).after
        while self._events and self._events[0].number <= after:
            self._events.popleft()
        if not self._events:
            with anyio.move_on_after(_POLL):
                await self._news.wait()
                await anyio.sleep(_GATHER)
        return events_to_bytes(self._events)

    def _emit(self, kind: type[Event], **fields: Any) -> None:
        self._number += 1
        self._events.append(kind(number=self._number, **fields))
        self._news.set()
        self._news = anyio.Event()

    def _log(self, level: int, text: str) -> None:
        """Make an event of a line, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._emit(LogEvent, level=level, text=text))


class _Events:
    """An observer that makes events for the driver. The end of a rollout is one once it is in the spool."""

    def __init__(self, emit: Callable[..., None], started: Callable[[str], None]) -> None:
        self._emit = emit
        self._started = started

    def started(self, request: RolloutRequest) -> None:
        """Tell the node. The driver knows."""
        self._started(request.id)

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Make an event."""
        self._emit(PhaseEvent, rollout=rollout_id, phase=phase)

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Make an event."""
        self._emit(TurnEvent, rollout=rollout_id, turn=light(turn))

    def finished(self, rollout: Rollout) -> None:
        """Do nothing: it is not on disk yet."""


class _Log(logging.Handler):
    """Hands log records to the node, without secrets."""

    def __init__(self, log: Callable[[int, str], None], redactor: Redactor) -> None:
        super().__init__()
        self._emit_line = log
        self._redactor = redactor

    def emit(self, record: logging.LogRecord) -> None:
        """Hand over one record. An error of it is handled as in any handler."""
        try:
            self._emit_line(record.levelno, printable(self._redactor.text(self.format(record))))
        except Exception:  # a wrong call of the logger, or a loop that has ended
            self.handleError(record)


def _spool(begin: Begin) -> Spool:
    """Return the spool of a node, without what an earlier start of the node has left unfinished."""
    spool = Spool(Path(begin.spool).expanduser())
    for leftover in spool.path.glob(f".{begin.name}.*"):
        if not is_locked(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    return spool


def _check_clock(driver: float) -> None:
    ahead = time.time() - driver
    if abs(ahead) > MAX_CLOCK:
        which = "ahead of" if ahead > 0 else "behind"
        raise SweError(
            f"its clock is {abs(ahead):.0f} s {which} the driver's, and records have its times: synchronise "
            "the clocks, for example with NTP"
        )


def check_versions(expected: Mapping[str, str]) -> None:
    """Compare the versions of Python and of packages here with the driver's.

    Raises:
        SweError: One differs, or a package is not installed.
    """
    for name, version in expected.items():
        if name == "python":
            here = platform.python_version()
            if here.rpartition(".")[0] != version.rpartition(".")[0]:
                raise SweError(f"it has Python {here}, and the driver {version}: use the same minor version")
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise SweError(f"it has no {name}, and the driver has {version}: install the same") from None
        if found != version:
            raise SweError(f"it has {name} {found}, and the driver {version}: install the same version")
