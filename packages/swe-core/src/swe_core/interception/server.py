"""InterceptionServer: where the agents of all rollouts find their LLM, one HTTP server per host process.

    POST /rollout/{id}/v1/chat/completions     GET /rollout/{id}/v1/models     GET /healthz

Every rollout has its own id and token. What the agent is told of a failure is one fixed sentence: the
engine's own names hosts and accounts, and belongs into the rollout's record, not into a sandbox.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import orjson
from aiohttp import web
from anyio.lowlevel import checkpoint

from swe_core.engine import Completion, Delta, Engine, EngineSession
from swe_core.errors import EngineError, RequestRefused, sentence
from swe_core.interception.dialects import chat
from swe_core.interception.events import EventStream
from swe_core.interception.session import Gate, RolloutOver
from swe_core.record import Turn

MAX_BODY = 32 * 1024 * 1024
ENGINE_FAILED = "the model behind this endpoint failed for good and answers no more calls of this rollout"
_NO_RETRY = {"x-should-retry": "false"}


class InterceptionServer:
    """An async context manager: listens on loopback while it is open.

    Args:
        max_body: Bytes that a request body may have.
        keepalive: Seconds between the comments that keep a waiting stream alive. The first one commits the
            HTTP status, so an engine that fails sooner is answered with an HTTP error.
    """

    def __init__(self, *, max_body: int = MAX_BODY, keepalive: float = 3.0) -> None:
        self._max_body = max_body
        self._keepalive = keepalive
        self._gates: dict[str, Gate] = {}
        self._decoy = secrets.token_urlsafe(32)
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def __aenter__(self) -> InterceptionServer:
        app = web.Application(client_max_size=self._max_body, middlewares=[_errors_in_shape])
        app.router.add_post("/rollout/{id}/v1/chat/completions", self._chat)
        app.router.add_get("/rollout/{id}/v1/models", self._models)
        app.router.add_get("/healthz", _healthz)
        # handler_cancellation: a client that closes its connection aborts the generation it waits for.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()
            raise
        host, port = runner.addresses[0][:2]
        self._runner, self._url = runner, f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, without a path."""
        if self._runner is None:
            raise RuntimeError("the interception server is not open: use it as an async context manager")
        return self._url

    @asynccontextmanager
    async def session(
        self, engine: Engine, session: EngineSession, on_turn: Callable[[Turn], None]
    ) -> AsyncIterator[Gate]:
        """Register one rollout; leaving unregisters it and aborts what is in flight.

        Args:
            engine: Answers its calls; open, and open for longer than the session.
            session: Who asks; `rollout_id` is unique among the open sessions.
            on_turn: Called in the event loop with each call's record, before the agent has the whole reply,
                and for aborted calls before the session is left. If it raises, the rollout fails.

        Raises:
            ValueError: A session with this `rollout_id` is open.
            EngineError: On leaving: `engine.end` failed.
        """
        if session.rollout_id in self._gates:
            raise ValueError(f"the rollout {session.rollout_id!r} is registered already: ids are unique")
        gate = Gate(engine, session, on_turn)
        self._gates[session.rollout_id] = gate
        try:
            yield gate
        finally:
            del self._gates[session.rollout_id]
            with anyio.CancelScope(shield=True):
                await gate.close()
                try:
                    await engine.end(session)
                except EngineError:
                    raise
                except Exception as error:  # whatever a plugin's engine raises is the engine's failure
                    raise EngineError(sentence(error)) from error

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return _json(chat.models_body(self._authorised(request).engine.model))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        gate = self._authorised(request)
        try:
            body = chat.parse(await request.read())
        except chat.BadRequest as error:
            return _error(400, str(error), "invalid_request_error")
        reply = chat.Reply(body, gate.engine.model)
        try:
            if body.get("stream"):
                return await self._stream(request, gate, body, reply)
            return _json(reply.body(await gate.answer(body)))
        except (EngineError, RolloutOver) as error:
            return _error(*_told(error))

    async def _stream(
        self, request: web.Request, gate: Gate, body: dict[str, Any], reply: chat.Reply
    ) -> web.StreamResponse:
        events = EventStream(request)
        outcome: Completion | EngineError | RolloutOver | None = None

        async with anyio.create_task_group() as group:

            async def send(data: bytes) -> None:
                try:
                    await events.send(data)
                except ConnectionError:  # nobody listens: abort the generation
                    group.cancel_scope.cancel()
                    await checkpoint()

            async def emit(delta: Delta) -> None:
                await send(reply.delta(delta))

            async def keep_alive() -> None:
                while True:
                    await anyio.sleep(self._keepalive)
                    await send(chat.KEEPALIVE)

            group.start_soon(keep_alive)
            try:
                outcome = await gate.answer(body, emit)
            except (EngineError, RolloutOver) as error:  # carried out of the group, which would wrap it
                outcome = error
            group.cancel_scope.cancel()

        if isinstance(outcome, Completion):
            end = reply.end(outcome)
        elif outcome is None:  # the client is gone, and with it whoever could be told
            return events.response or web.Response(status=499)
        elif events.response is None:
            raise outcome
        else:
            _, message, kind = _told(outcome)
            end = chat.event(chat.error_body(message, kind))
        with suppress(ConnectionError):  # gone at the last moment; the call is recorded
            await events.send(end)
        return events.response or web.Response(status=499)

    def _authorised(self, request: web.Request) -> Gate:
        """The gate that the request's id and token open; which of the two is wrong is not told."""
        gate = self._gates.get(request.match_info["id"])
        scheme, _, offered = request.headers.get("Authorization", "").partition(" ")
        token = offered.strip().encode("utf-8", "surrogateescape")
        expected = (gate.token if gate else self._decoy).encode()
        if not hmac.compare_digest(token, expected) or gate is None or scheme.lower() != "bearer":
            raise web.HTTPUnauthorized(text="no such rollout, or not its token")
        return gate


async def _healthz(request: web.Request) -> web.StreamResponse:
    return _json({"status": "ok"})


def _told(error: EngineError | RolloutOver) -> tuple[int, str, str]:
    """HTTP status, sentence and type of `error` for the agent, none of which invites a retry."""
    if isinstance(error, RolloutOver):
        return 410, str(error), "rollout_over"
    if isinstance(error, RequestRefused):  # about the agent's own request: it may know what to do
        return error.status, sentence(error), "invalid_request_error"
    return error.status, ENGINE_FAILED, "engine_error"


@web.middleware
async def _errors_in_shape(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer aiohttp's own errors in the dialect's shape, so that SDKs can show them."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        kind = "authentication_error" if error.status == 401 else "invalid_request_error"
        return _error(error.status, error.text or error.reason, kind)


def _error(status: int, message: str, kind: str) -> web.Response:
    return _json(chat.error_body(message, kind), status=status, headers=_NO_RETRY)


def _json(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )
