"""Session: one rollout, recorded through a gate. Sessions: those of a server, from their files on."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from swe_core.api.engine import EngineSession
from swe_core.api.limits import Budgets
from swe_core.api.records import Turn
from swe_core.errors import SweError, UsageError, sentence
from swe_core.interception.gate import Gate
from swe_core.interception.server import InterceptionServer
from swe_openenv.capture.documents import Capture
from swe_openenv.capture.engines import Choice, Engines, OpenEngine, plain, served_model
from swe_openenv.capture.options import BadSession, SessionRecord, SessionRequest
from swe_openenv.capture.shape import Shape
from swe_openenv.capture.store import OpenPart, SessionFolder, Store

T = TypeVar("T")

log = logging.getLogger(__name__)


class DamagedSession(Exception):
    """The session's files are damaged, so that it stays closed."""


class Session:
    """One open session. A part of it records while a gate is open.

    Attributes:
        record: What it was made with.
    """

    def __init__(self, record: SessionRecord, folder: SessionFolder, shape: Shape, parts: int) -> None:
        self.record = record
        self._folder = folder
        self._shape = shape
        self._parts = parts
        self._part: OpenPart | None = None
        self._gate: Gate | None = None
        self._budget_stops = 0
        self._stack = AsyncExitStack()

    async def open(self, server: InterceptionServer, opened: OpenEngine) -> None:
        """Open a gate for the next part, in place of the gate before it."""
        await self.close()
        number, self._parts = self._parts, self._parts + 1
        part = self._folder.part(number, self.record.part)
        who = EngineSession(f"{self._folder.name}-{number}", "capture", number, "openenv")
        most, budgets = self.record.max_model_calls, Budgets()
        if most:
            # Validation takes at least 1; here nothing may be left after a restart.
            budgets = Budgets.model_construct(turns=max(0, most - self._shape.calls))
        stack = AsyncExitStack()
        stack.callback(part.close)
        self._gate = await stack.enter_async_context(
            server.session(
                opened.engine,
                who,
                partial(self._add, part, number),
                budgets,
                token=self.record.session_id,
                on_delivered=partial(self._deliver, part, number),
            )
        )
        self._stack, self._part = stack, part

    async def close(self) -> None:
        """Refuse further calls, cancel those in flight and close the files."""
        stack, self._stack = self._stack, AsyncExitStack()
        if self._gate is not None:
            self._budget_stops += self._gate.spent_answers
            self._gate = None
        try:
            await stack.aclose()
        except (SweError, OSError) as error:  # of the engine or the disk: nobody waits for it
            log.warning("a session did not end properly: %s", sentence(error))

    async def forget(self) -> Path:
        """Close the session and give its files up; return their folder, which the caller removes.

        Raises:
            OSError: They are still the session's.
        """
        await self.close()
        return self._folder.forget()

    @property
    def answers(self) -> bool:
        """Return whether its gate is open, and neither its engine has failed for good nor its agent left."""
        return self._gate is not None and self._gate.failure is None and not self._gate.submitted

    def summary(self) -> dict[str, Any]:
        """Return its line of `GET /sessions`."""
        stats = self._shape.stats()
        return {
            "session_id": self.record.session_id,
            "turns": stats["n_turns"],
            "roots": stats["n_roots"],
            "idle_s": self._idle(),
            "upstream_errors": self._shape.errors,
            **self._shape.api_type,
            **self.record.metadata,
        }

    def status(self) -> dict[str, Any]:
        """Return the document of `GET /sessions/{id}`."""
        return {
            "session_id": self.record.session_id,
            "idle_s": self._idle(),
            "upstream_errors": self._shape.errors,
            **self._shape.stats(),
        }

    def capture(self) -> Capture:
        """Read what it has recorded so far. It takes long: call it in a thread.

        Raises:
            UsageError: A file is damaged.
            LedgerError: The records do not fit together.
        """
        return Capture(self.record, self._folder.parts(), self.budget_stops)

    @property
    def budget_stops(self) -> int:
        """Return how many calls got the answer that the budget is spent, since the server started."""
        return self._budget_stops + (self._gate.spent_answers if self._gate else 0)

    def _add(self, part: OpenPart, number: int, turn: Turn) -> None:
        part.add_turn(turn)
        self._shape.add(number, turn)

    def _deliver(self, part: OpenPart, number: int, index: int) -> None:
        part.add_delivered(index)
        self._shape.deliver(number, index)

    def _idle(self) -> float:
        return round(time.time() - (self._shape.last_turn_at or self.record.created_at), 1)


class _Job(Generic[T]):
    """Work whose error reaches who waits for it, or the log; it never ends the server."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._done = anyio.Event()
        self._found: list[T] = []
        self._error: Exception | None = None
        self._awaited = True

    async def run(self) -> None:
        """Do the work."""
        try:
            self._found.append(await self._work())
        except Exception as error:  # raised where the result is awaited
            self._error = error
            if not self._awaited:
                log.error("a change of a session failed, and its client had left: %s", sentence(error))
        finally:
            self._done.set()

    async def result(self) -> T:
        """Wait for the result, or raise the error."""
        try:
            await self._done.wait()
        except anyio.get_cancelled_exc_class():
            self._awaited = False
            raise
        if self._error is not None:
            raise self._error
        return self._found[0]


class Sessions:
    """The sessions of one server: `load`, `begin`, and `end` in one task.

    Args:
        engine: URL and model of the server's own engine, without `/v1`; None without one.
        max_model_calls: The limit of sessions that name none; 0 is no limit.
        output_cap: Maximum tokens of one reply; None is no limit.
    """

    def __init__(
        self,
        store: Store,
        engines: Engines,
        engine: Choice | None,
        max_model_calls: int = 0,
        output_cap: int | None = None,
    ) -> None:
        self._store = store
        self._engines = engines
        self._engine = engine
        self._max_model_calls = max_model_calls
        self._output_cap = output_cap
        self._sessions: dict[str, Session] = {}
        self._changing = WeakValueDictionary[str, anyio.Lock]()
        self._server: InterceptionServer | None = None
        self._tasks: TaskGroup | None = None
        self._open = AsyncExitStack()
        self._loaded: list[tuple[Session, OpenEngine]] = []

    async def load(self) -> None:
        """Read the sessions on disk.

        Raises:
            UsageError: An engine cannot be made with these settings.
            OSError: The directory cannot be read.
        """

        def read() -> list[Session]:
            return [
                Session(record, folder, Shape.of(parts), folder.next_part())
                for folder, record, parts in self._store.sessions()
            ]

        for session in await anyio.to_thread.run_sync(read):
            record = session.record
            self._loaded.append((session, await self._engines.open(_choice(record), record.level)))

    async def begin(self, server: InterceptionServer) -> None:
        """Open the loaded sessions on `server`, which has just begun to listen. `end` closes them.

        It does not suspend, so that no request comes before its session.
        """
        self._server, self._tasks = server, await self._open.enter_async_context(anyio.create_task_group())
        for session, opened in self._loaded:
            await session.open(server, opened)
            self._sessions[session.record.session_id] = session
        self._loaded = []

    async def end(self) -> None:
        """Close all gates; the sessions stay on disk."""
        with anyio.CancelScope(shield=True):
            for session in self._sessions.values():
                await session.close()
        await self._open.aclose()

    async def create(self, request: SessionRequest) -> SessionRecord:
        """Make a session, or change the one that has its id.

        A change of the limit of calls alone counts once the session is opened again: calls in flight go on.

        Raises:
            BadSession: Its engine cannot be used, or cannot train.
            DamagedSession: It has damaged files.
            OSError: It cannot be written.
        """
        record = None
        while record is None:  # again where another request changed the session during the probe
            before = self._sessions.get(request.session_id)
            seen = before.record if before else None
            opened, wanted = await self._resolved(request, seen)
            record = await self._apart(partial(self._put, before, seen, opened, wanted))
        return record

    async def delete(self, session_id: str) -> bool:
        """End a session and remove its files; return whether there was one.

        Raises:
            OSError: Its files are still there, and it is closed.
        """
        return await self._apart(partial(self._remove, session_id))

    def get(self, session_id: str) -> Session | None:
        """Return an open session."""
        return self._sessions.get(session_id)

    def all(self) -> list[Session]:
        """Return the open sessions."""
        return list(self._sessions.values())

    async def _apart(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` in a task of its own: a client that leaves does not stop it half-way."""
        if self._tasks is None:
            raise RuntimeError("the sessions are not open")
        job = _Job(work)
        self._tasks.start_soon(job.run)
        return await job.result()

    async def _put(
        self, session: Session | None, seen: SessionRecord | None, opened: OpenEngine, record: SessionRecord
    ) -> SessionRecord | None:
        """Write and open what was resolved for a session as it was `seen`; None where it has changed."""
        name = record.session_id
        async with self._lock(name):
            if self._server is None or self._sessions.get(name) is not session:
                return None
            if session is not None and session.record is not seen:
                return None
            folder = self._store.folder(name)
            if session is None:
                if folder.has_files():
                    raise DamagedSession(
                        "the files of this session are damaged, as the server's log says: "
                        "use another session_id, or move its folder away"
                    )
                folder.write(record)
                session = Session(record, folder, Shape(), 0)
                await session.open(self._server, opened)
                self._sessions[name] = session
                return record
            folder.write(record)
            session.record = record
            if seen is None or _engine_of(record) != _engine_of(seen) or not session.answers:
                await session.open(self._server, opened)
            return record

    async def _remove(self, session_id: str) -> bool:
        async with self._lock(session_id):
            session = self._sessions.get(session_id)
            if session is None:
                return False
            folder = await session.forget()
            del self._sessions[session_id]
        await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
        return True

    def _lock(self, session_id: str) -> anyio.Lock:
        """Return the lock of an id: one change at a time."""
        return self._changing.setdefault(session_id, anyio.Lock())

    async def _resolved(
        self, asked: SessionRequest, before: SessionRecord | None
    ) -> tuple[OpenEngine, SessionRecord]:
        request = asked.after(before)
        try:
            choice = await self._chosen(request, before)
            opened = await self._engines.probe(choice)
            if not opened.reached and _has_tokens(before, choice):
                opened = await self._engines.open(choice, "tokens")  # as it was before the server there left
        except UsageError as error:
            raise BadSession(sentence(error)) from None
        why = f": {opened.why}" if opened.why else ""
        if request.purpose == "train" and opened.level != "tokens":
            raise BadSession(f"training requires exact engine token capture{why}")
        if request.sampling and opened.level != "tokens":
            raise BadSession(f"training sampling requires an endpoint with token capture{why}")
        for key, value in (request.sampling or {}).items():
            if opened.submitted[key] != value:
                raise BadSession(
                    f"the server's settings change the training policy: {key} is {opened.submitted[key]} "
                    f"there; leave it out of the settings of the engine"
                )
        budget = request.max_model_calls
        return opened, SessionRecord(
            session_id=request.session_id,
            created_at=before.created_at if before else time.time(),
            llm_url=choice.url,
            model=choice.model,
            level=opened.level,
            purpose=request.purpose or "auto",
            max_model_calls=self._max_model_calls if budget is None else budget,
            sampling=dict(request.sampling or {}),
            eval_sampling=dict(request.eval_sampling or {}),
            submitted=dict(opened.submitted),
            output_cap=choice.output_cap,
            metadata=dict(request.metadata),
        )

    async def _chosen(self, request: SessionRequest, before: SessionRecord | None) -> Choice:
        caps = [cap for cap in (request.output_cap, self._output_cap) if cap]
        policy = _policy(request.policy)
        if request.llm_url is not None:
            url = plain(request.llm_url)
            known = before.model if before is not None and before.llm_url == url else ""
            model = request.model or known or await self._model_at(url)
        elif before is not None:
            url, model = before.llm_url, before.model
        elif self._engine is not None:
            url, model = self._engine.url, self._engine.model
        else:
            raise UsageError(
                "no inference engine for this session: name one as 'llm_url', or start the server with "
                "--engine-url"
            )
        return Choice(url, model, policy, min(caps, default=None))

    async def _model_at(self, url: str) -> str:
        if self._engine is not None and url == self._engine.url:
            return self._engine.model
        return await served_model(url)


def _engine_of(record: SessionRecord) -> tuple[object, ...]:
    return _choice(record), record.level


def _has_tokens(record: SessionRecord | None, choice: Choice) -> bool:
    """Return whether the session's engine is that of `choice` and has given tokens."""
    if record is None or record.level != "tokens":
        return False
    return (record.llm_url, record.model) == (choice.url, choice.model)


def _choice(record: SessionRecord) -> Choice:
    return Choice(record.llm_url, record.model, _policy(record.policy), record.output_cap)


def _policy(sampling: Mapping[str, float | int]) -> tuple[tuple[str, float | int], ...]:
    return tuple(sorted(sampling.items()))
