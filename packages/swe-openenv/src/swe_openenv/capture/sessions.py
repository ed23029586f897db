"""Session: one rollout, recorded through a gate. Sessions: those of a server, from their files on."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

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

log = logging.getLogger(__name__)


class Session:
    """One open session. A part of it records while a gate is open.

    Attributes:
        record: What it was made with.
        changing: Held while its gate is closed or replaced; taken without a pause while it is free.
    """

    def __init__(self, record: SessionRecord, folder: SessionFolder, shape: Shape, parts: int) -> None:
        self.record = record
        self._folder = folder
        self._shape = shape
        self._parts = parts
        self._part: OpenPart | None = None
        self._gate: Gate | None = None
        self._budget_stops = 0
        self.changing = anyio.Lock(fast_acquire=True)
        self._stack = AsyncExitStack()

    async def open(self, server: InterceptionServer, opened: OpenEngine) -> None:
        """Open a gate for the next part, in place of the gate before it."""
        await self.close()
        number, self._parts = self._parts, self._parts + 1
        part = self._folder.part(number)
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

    async def remove(self) -> None:
        """Close the session and remove its files."""
        self._folder.forget()
        await self.close()
        await anyio.to_thread.run_sync(self._folder.remove)

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
        self._server: InterceptionServer | None = None
        self._tasks: TaskGroup | None = None
        self._open = AsyncExitStack()
        self._loaded: list[tuple[Session, OpenEngine]] = []

    async def load(self) -> None:
        """Read the sessions on disk.

        Raises:
            UsageError: A file is damaged, or an engine cannot be made with these settings.
        """

        def read() -> list[Session]:
            found = []
            for folder, record in self._store.sessions():
                parts = folder.parts()
                number = parts[-1].number + 1 if parts else 0
                found.append(Session(record, folder, Shape.of(parts), number))
            return found

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

        Raises:
            BadSession: Its engine cannot be used, or cannot train.
            OSError: It cannot be written.
        """
        if self._server is None:
            raise RuntimeError("the sessions are not open")
        session = self._sessions.get(request.session_id)
        opened, record = await self._resolved(request, session)
        # Another request may have made it during the probe. No await from here to the end of `open`.
        session = self._sessions.get(request.session_id)
        if session is None:
            folder = self._store.folder(record.session_id)
            folder.write(record)
            session = Session(record, folder, Shape(), 0)
            await session.open(self._server, opened)
            self._sessions[record.session_id] = session
            return record
        before = session.record
        record = record.model_copy(
            update={"metadata": {**before.metadata, **record.metadata}, "created_at": before.created_at}
        )
        self._store.folder(record.session_id).write(record)
        session.record = record
        if _engine_of(record) != _engine_of(before):
            await self._apart(partial(self._reopen, self._server, session, opened))
        return record

    async def delete(self, session_id: str) -> bool:
        """End a session and remove its files; return whether there was one."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return False
        await self._apart(partial(self._remove, session))
        return True

    def get(self, session_id: str) -> Session | None:
        """Return an open session."""
        return self._sessions.get(session_id)

    def all(self) -> list[Session]:
        """Return the open sessions."""
        return list(self._sessions.values())

    async def _apart(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` in a task of its own: a client that leaves does not stop it half-way."""
        if self._tasks is None:
            raise RuntimeError("the sessions are not open")
        done = anyio.Event()

        async def task() -> None:
            try:
                await work()
            finally:
                done.set()

        self._tasks.start_soon(task)
        await done.wait()

    async def _reopen(self, server: InterceptionServer, session: Session, opened: OpenEngine) -> None:
        async with session.changing:
            if self._sessions.get(session.record.session_id) is session:  # else it was deleted meanwhile
                await session.open(server, opened)

    async def _remove(self, session: Session) -> None:
        async with session.changing:
            await session.remove()

    async def _resolved(
        self, request: SessionRequest, before: Session | None
    ) -> tuple[OpenEngine, SessionRecord]:
        try:
            choice = await self._chosen(request, before)
            opened = await self._engines.probe(choice)
        except UsageError as error:
            raise BadSession(sentence(error)) from None
        why = f": {opened.why}" if opened.why else ""
        if request.purpose == "train" and opened.level != "tokens":
            raise BadSession(f"training requires exact engine token capture{why}")
        if request.sampling and opened.level != "tokens":
            raise BadSession(f"training sampling requires an endpoint with token capture{why}")
        for key, value in request.sampling.items():
            if opened.submitted[key] != value:
                raise BadSession(
                    f"the server's settings change the training policy: {key} is {opened.submitted[key]} "
                    f"there; leave it out of the settings of the engine"
                )
        budget = request.max_model_calls
        if budget is None:
            budget = before.record.max_model_calls if before else self._max_model_calls
        return opened, SessionRecord(
            session_id=request.session_id,
            created_at=time.time(),
            llm_url=choice.url,
            model=choice.model,
            level=opened.level,
            purpose=request.purpose,
            max_model_calls=budget,
            sampling=dict(request.sampling),
            eval_sampling=dict(request.eval_sampling),
            submitted=dict(opened.submitted),
            output_cap=choice.output_cap,
            metadata=dict(request.metadata),
        )

    async def _chosen(self, request: SessionRequest, before: Session | None) -> Choice:
        caps = [cap for cap in (request.output_cap, self._output_cap) if cap]
        policy = _policy(request.sampling or request.eval_sampling)
        if request.llm_url is not None:
            url = plain(request.llm_url)
            model = request.model or await self._model_at(url)
        elif before is not None:
            url, model = before.record.llm_url, before.record.model
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
    return _choice(record), record.level, record.max_model_calls


def _choice(record: SessionRecord) -> Choice:
    return Choice(record.llm_url, record.model, _policy(record.policy), record.output_cap)


def _policy(sampling: Mapping[str, float | int]) -> tuple[tuple[str, float | int], ...]:
    return tuple(sorted(sampling.items()))
