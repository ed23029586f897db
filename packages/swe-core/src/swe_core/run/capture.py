"""A capture: sessions of agents that the user starts, each with its own key and a folder for its calls."""

from __future__ import annotations

import hmac
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import fields
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio
import anyio.to_thread
import orjson
from aiohttp import web

from swe_core.api.chain import Chain
from swe_core.api.engine import Engine, EngineSession
from swe_core.api.limits import MAX_BODY, Budgets
from swe_core.errors import SweError, UsageError, sentence
from swe_core.interception.dialects.base import bearer
from swe_core.interception.gate import Gate
from swe_core.interception.server import InterceptionServer
from swe_core.rollout.run_directory import FOLDERS, RUN_FILE, RolloutFolder, RunDirectory, new_run_info
from swe_core.system.files import locked
from swe_core.system.http_server import LOOPBACK
from swe_core.system.redaction import Redactor
from swe_core.tokens.chains import build_chains, step_of
from swe_core.tokens.ledger import prove

_SETTINGS = {"capture": {"format": 1}}
"""Settings in `run.json`: what a capture directory is known by. `swe-core run --resume` refuses them."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"


@contextmanager
def opened(path: Path, redactor: Redactor) -> Iterator[RunDirectory]:
    """Open the capture directory, or make it, for this process alone.

    Raises:
        UsageError: Another process uses it, it is no capture directory, or it cannot be written.
    """
    if not (path / RUN_FILE).exists():
        RunDirectory.create(
            path, new_run_info({"swe-core": version("swe-core")}, _SETTINGS, None, ()), redactor
        )
    directory = RunDirectory.open(path)
    if directory.info.settings != _SETTINGS:
        raise UsageError(f"{str(path)!r} is a run's and no capture directory: give another with --out")
    directory.redactor = redactor
    with locked(path):
        yield directory


class Sessions:
    """The sessions of a capture, each a gate with a key of its own, recorded in a folder of its own.

    Args:
        key: What the routes need as bearer token; None for nothing.
    """

    def __init__(self, directory: RunDirectory, engine: Engine, budgets: Budgets, key: str | None) -> None:
        self._directory = directory
        self._engine = engine
        self._budgets = budgets
        self._key = key
        self._open: dict[str, tuple[Gate, AsyncExitStack]] = {}
        self._ending = anyio.Lock()
        self._told: set[str] = set()
        self._server: InterceptionServer | None = None

    @asynccontextmanager
    async def served(
        self, host: str = LOOPBACK, port: int = 0, max_body: int = MAX_BODY
    ) -> AsyncIterator[str]:
        """Serve in the context, and yield the server's URL; leaving ends all sessions.

        Raises:
            ConfigError: The port is taken, or the host is none of this machine's.
        """
        server = InterceptionServer(
            port=port,
            host=host,
            max_body=max_body,
            redactor=self._directory.redactor,
            routes=[
                web.post("/sessions", self._post),
                web.delete(f"/sessions/{{name:{_NAME}}}", self._delete),
            ],
            keyed=True,
        )
        async with server:
            self._server = server
            try:
                yield server.url
            finally:
                self._server = None
                for name in [*self._open]:
                    await self._end(name)

    def rest(self) -> Iterator[bytes]:
        """Yield the documents of the sessions, also of earlier processes, that no client got."""
        for name in self._names():
            if name not in self._told:
                try:
                    yield self._document(name)
                except SweError as error:
                    yield orjson.dumps({"name": name, "error": sentence(error)})

    async def _post(self, request: web.Request) -> web.Response:
        if not self._may(request):
            return _refused(401, "opening a session needs the key of --key-env as bearer token")
        try:
            name = orjson.loads(await request.read())["name"]
        except (ValueError, TypeError, KeyError):
            name = None
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            return _refused(400, 'expected {"name": NAME}, of at most 128 letters, digits, ".", "_" and "-"')
        if self._server is None:
            return _refused(503, "the capture ends")
        if name not in self._open:
            try:
                folder = self._directory.folder(name)
            except FileExistsError:
                return _refused(409, f"the session {name!r} has ended: choose another name")
            self._open[name] = await self._session(self._server, name, folder)
        return _answer({"name": name, "key": self._open[name][0].token})

    async def _session(
        self, server: InterceptionServer, name: str, folder: RolloutFolder
    ) -> tuple[Gate, AsyncExitStack]:
        stack = AsyncExitStack()
        stack.callback(folder.close)
        who = EngineSession(name, name, 0, "capture")
        # It does not suspend, so a client that leaves cannot stop it half-way.
        gate = await stack.enter_async_context(
            server.session(self._engine, who, folder.add_turn, self._budgets, folder.add_undelivered)
        )
        gate.start()
        self._directory.redactor.add(gate.token)
        return gate, stack

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not self._may(request):
            return _refused(401, "ending a session needs the key of --key-env as bearer token")
        if name not in self._names():
            return _refused(404, f"there is no session {name!r}")
        with anyio.CancelScope(shield=True):
            await self._end(name)
            try:
                document = await anyio.to_thread.run_sync(partial(self._document, name))
            except SweError as error:
                return _refused(500, sentence(error))
        self._told.add(name)
        return _answer(document)

    async def _end(self, name: str) -> None:
        """End an open session: its calls are cancelled, and its records are on disk."""
        async with self._ending:
            if name in self._open:
                await self._open.pop(name)[1].aclose()

    def _names(self) -> list[str]:
        return sorted(path.name for path in (self._directory.path / FOLDERS).iterdir())

    def _document(self, name: str) -> bytes:
        turns = self._directory.turns(name)
        steps = [step_of(turn.index, turn.tokens) for turn in turns if turn.tokens is not None]
        chains = build_chains(steps)
        ledger = prove(sum(len(step.completion) for step in steps), steps, chains)
        found = {
            "name": name,
            "turns": len(turns),
            "chains": [{one.name: getattr(chain, one.name) for one in fields(Chain)} for chain in chains],
            "ledger": ledger.model_dump(mode="json"),
        }
        return orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)

    def _may(self, request: web.Request) -> bool:
        offered = (bearer(request.headers) or "").encode("utf-8", "surrogateescape")
        return self._key is None or hmac.compare_digest(offered, self._key.encode())


def _answer(document: object) -> web.Response:
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    return web.Response(body=body, content_type="application/json")


def _refused(status: int, why: str) -> web.Response:
    body = orjson.dumps({"error": {"message": why, "type": "invalid_request_error"}})
    return web.Response(status=status, body=body, content_type="application/json")
