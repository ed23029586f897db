"""InterceptionServer: one HTTP server per host process for the LLM calls of all agents.

docs/internals/gate.md lists its routes. Every rollout has its own id and token. An agent gets one fixed
sentence for a failure of the engine: the engine's own message names hosts and accounts, and is only recorded.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio
import orjson
from aiohttp import web
from aiohttp.http import HttpProcessingError
from anyio.abc import TaskGroup

from swe_core.api.deltas import merge
from swe_core.api.engine import ChatRequest, Completion, Engine, EngineSession
from swe_core.api.limits import MAX_BODY, Budgets
from swe_core.api.records import Turn
from swe_core.errors import (
    ConfigError,
    ContextOverflow,
    EngineError,
    EngineProtocolError,
    RequestRefused,
    raised_as,
    sentence,
)
from swe_core.interception.bodies import Bodies
from swe_core.interception.calls import Call, Listener, RolloutOver
from swe_core.interception.dialects import DIALECTS
from swe_core.interception.dialects.base import (
    BadRequest,
    Dialect,
    ParsedRequest,
    Problem,
    Reply,
    Route,
    Target,
    bearer,
)
from swe_core.interception.gate import Gate
from swe_core.interception.host_tools import BadArguments, ToolFailed, UnknownTool
from swe_core.interception.metrics import CONTENT_TYPE, Metrics
from swe_core.interception.redaction import RedactedPieces
from swe_core.interception.sse import EventStream
from swe_core.system import callers
from swe_core.system.detached import closed
from swe_core.system.http_server import LOOPBACK, serve
from swe_core.system.redaction import Redactor

ENGINE_FAILED = "the model behind this endpoint failed for good and answers no more calls of this rollout"
ENDPOINT_FAILED = "this endpoint failed to answer the request"
UNREADABLE = "the request body is not encoded as its headers say"
_FIRST_KEEPALIVE = 1.0
_PACE = 0.025
"""Seconds between the events of a stream at least: more events cost too much."""
_NO_RETRY = {"x-should-retry": "false"}
_RETRY_COUNTS = ("x-stainless-retry-count", "x-retry-count")
_CLOSED = 499
"""Status in logs for a request whose client left."""

_ROUTES = {
    f"/rollout/{{key}}{route.path}": (dialect, route) for dialect in DIALECTS for route in dialect.routes
}
_KEYED_ROUTES = {
    f"/{{prefix:(?:.*/)?}}{route.unversioned}": (dialect, route)
    for dialect in DIALECTS
    for route in dialect.routes
}

log = logging.getLogger(__name__)
_http_log = logging.getLogger(f"{__name__}.http")
"""Messages of aiohttp about connections."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether an error is ours. Invalid HTTP of an agent is answered, not logged."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


_http_log.addFilter(_is_ours)


class InterceptionServer:
    """An async context manager that listens while it is open.

    Args:
        port: 0 takes a free port.
        host: Interface to listen on; the default is loopback.
        max_body: Bytes that a request body may have.
        redactor: Removes secrets from replies; None removes nothing.
        keepalive: Seconds between the comments that keep a waiting stream alive. The first one comes within
            a second and commits the HTTP status: later errors of an engine are events.
        routes: Further routes of the server; a handler authorises its own requests.
        keyed: Whether the dialects' paths are served without `/rollout/{key}` too, after any prefix. There
            the token alone names the rollout.

    Attributes:
        token: The bearer token of `/metrics`; no sandbox has it.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        max_body: int = MAX_BODY,
        redactor: Redactor | None = None,
        keepalive: float = 3.0,
        host: str = LOOPBACK,
        routes: Iterable[web.AbstractRouteDef] = (),
        keyed: bool = False,
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        self._port = port
        self._host = host
        self._routes = routes
        self._paths = _ROUTES | _KEYED_ROUTES if keyed else _ROUTES
        self._bodies = Bodies(max_body)
        self._redactor = redactor or Redactor()
        self._keepalive = keepalive
        self._gates: dict[str, Gate] = {}
        self._open_ids: set[str] = set()
        self._by_token: dict[bytes, Gate] = {}
        self._decoy = secrets.token_urlsafe(32)
        self._metrics = Metrics()
        self._open = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._url = ""

    async def __aenter__(self) -> InterceptionServer:
        """Listen.

        Raises:
            ConfigError: The port is taken, or the host is none of this machine's.
        """
        app = web.Application(middlewares=[_leave_rest, self._answer_errors])
        for path, (dialect, route) in self._paths.items():
            answer = self._count if route.kind == "count" else self._generate
            app.router.add_post(path, partial(answer, dialect, route))
        app.router.add_get("/rollout/{key}/v1/models", self._models)
        app.router.add_get("/rollout/{key}/v1/tools", self._list_tools)
        app.router.add_post("/rollout/{key}/v1/tools/{name}", self._run_tool)
        app.router.add_post("/rollout/{key}/exit", self._exit)
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_routes(self._routes)
        # handler_cancellation: a client that closes its connection stops listening to its call.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0, logger=_http_log
        )
        async with AsyncExitStack() as stack:
            try:
                self._url = await stack.enter_async_context(serve(runner, self._port, self._host))
            except OSError as error:
                raise ConfigError(
                    f"the interception server cannot listen on port {self._port} of {self._host} "
                    f"({error.strerror}): set server.port to a free one, or to 0 for any"
                ) from None
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            self._open = stack.pop_all()
        self._tasks = tasks
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._tasks = None
        await self._open.aclose()

    @property
    def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return self._metrics.text()

    @property
    def url(self) -> str:
        """Return `http://HOST:PORT`."""
        self._running()
        return self._url

    @asynccontextmanager
    async def session(
        self,
        engine: Engine,
        session: EngineSession,
        on_turn: Callable[[Turn], None],
        budgets: Budgets | None = None,
        on_undelivered: Callable[[Sequence[int]], None] = lambda indices: None,
        auxiliary: Callable[[ChatRequest], str | None] = lambda request: None,
        summary: Callable[[ChatRequest], bool] = lambda request: False,
        summaries: bool = True,
        own: Callable[[ChatRequest], bool] = lambda request: False,
        on_foreign: Callable[[Sequence[int]], None] | None = None,
    ) -> AsyncIterator[Gate]:
        """Register one rollout; leaving unregisters it and cancels its calls.

        Args:
            engine: Answers the calls; it stays open for longer than the session.
            session: Describes the rollout; `rollout_id` is unique among the open sessions.
            on_turn: Called in the event loop with each call's record, before the reply is complete,
                and for cancelled calls before the session is left. If it raises, the rollout fails.
            budgets: Limits of the calls; None is no limit.
            on_undelivered: Called on leaving with the indices of the turns that are not trained because their
                reply was not delivered, if there are any. If it raises, the rollout fails.
            auxiliary: Returns what a call is for, if it is not the policy's work (`AgentSpec.auxiliary`).
            summary: Returns whether a call asks for the summary of a compaction (`AgentSpec.summary`).
            summaries: Whether the tokens of such calls are trained; otherwise they are dropped as `summary`.
            own: Returns whether a call begins a conversation of the agent's own (`AgentSpec.own`).
            on_foreign: Called on leaving, before `on_undelivered`, with the indices of the turns that are not
                the agent's own and so not trained, if there are any. None: all calls are the agent's.

        Raises:
            ValueError: A session with this `rollout_id` is open.
            EngineError: On leaving: `engine.end` failed.
        """
        if session.rollout_id in self._open_ids:
            raise ValueError(f"the rollout {session.rollout_id!r} is registered already: ids are unique")
        gate = Gate(
            engine,
            session,
            on_turn,
            on_undelivered,
            on_foreign,
            self._running(),
            budgets or Budgets(),
            self._metrics,
            self._redactor,
            auxiliary,
            summary,
            summaries,
            own,
        )
        name = _digest(gate.token)
        self._gates[gate.key] = self._by_token[name] = gate
        self._open_ids.add(session.rollout_id)
        try:
            with self._metrics.rollouts.track_inprogress():
                yield gate
        finally:
            del self._gates[gate.key], self._by_token[name]
            self._open_ids.discard(session.rollout_id)
            with anyio.CancelScope(shield=True):
                await gate.close()
            with raised_as(EngineError):
                await closed(partial(engine.end, session), "the end of the engine's session", EngineError)

    def _running(self) -> TaskGroup:
        if self._tasks is None:
            raise RuntimeError("the interception server is not open: use it as an async context manager")
        return self._tasks

    async def _generate(self, dialect: Dialect, route: Route, request: web.Request) -> web.StreamResponse:
        async def answer(gate: Gate, key: bytes, asked: ParsedRequest) -> web.StreamResponse:
            peer = request.transport and request.transport.get_extra_info("peername")
            born = callers.born(peer)
            call = gate.submit_request(
                key, asked, retried=_is_retry(request), dialect=dialect.name, born=born
            )
            with call.listen() as listener, _writing(gate):
                reply = dialect.reply(asked, gate.engine.model)
                if asked.stream:
                    return await self._stream(request, dialect, call, listener, reply)
                return await self._whole(request, call, listener, reply)

        return await self._answer(dialect, route, request, answer)

    async def _count(self, dialect: Dialect, route: Route, request: web.Request) -> web.StreamResponse:
        async def answer(gate: Gate, key: bytes, asked: ParsedRequest) -> web.StreamResponse:
            return _json(dialect.count(await gate.count_tokens(asked)))

        return await self._answer(dialect, route, request, answer)

    async def _answer(
        self,
        dialect: Dialect,
        route: Route,
        request: web.Request,
        answer: Callable[[Gate, bytes, ParsedRequest], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Parse a request, and answer it or its error in its dialect."""
        gate = self._authorised(request, dialect)
        target = Target(route, request.match_info, request.query, gate.memory(dialect.name))
        try:
            async with self._bodies.parsed_request(request, gate, dialect, target) as (key, asked):
                return await answer(gate, key, asked)
        except (web.HTTPRequestEntityTooLarge, web.HTTPRequestTimeout) as error:
            gate.reject(error.text or error.reason)
            raise
        except web.RequestPayloadError:
            gate.reject(UNREADABLE)
            raise
        except BadRequest as error:
            gate.reject(str(error))
            return _error(dialect, Problem(400, "invalid_request", str(error), error.code))
        except (EngineError, RolloutOver) as error:
            return _error(dialect, self._problem(error))
        except (anyio.get_cancelled_exc_class(), ConnectionError):
            self._metrics.dropped.inc()
            raise

    async def _whole(
        self, request: web.Request, call: Call, listener: Listener, reply: Reply
    ) -> web.StreamResponse:
        await listener.next()
        response = _json(reply.body(_completed(call)))
        await response.prepare(request)  # here, to learn whether it was sent
        await response.write_eof()
        call.deliver()
        return response

    async def _stream(
        self, request: web.Request, dialect: Dialect, call: Call, listener: Listener, reply: Reply
    ) -> web.StreamResponse:
        events, shown = EventStream(request, reply.content_type), RedactedPieces(self._redactor)
        due = anyio.current_time() + min(_FIRST_KEEPALIVE, self._keepalive)
        while True:
            pieces = None
            with anyio.CancelScope(deadline=due):
                pieces = await listener.next()
            if pieces is not None and not pieces:
                break
            news = b"".join(map(reply.delta, shown.add(merge(pieces or ()))))
            if news or anyio.current_time() >= due:
                await events.send(news or dialect.keepalive)
                due = anyio.current_time() + self._keepalive
            if pieces:
                with anyio.move_on_after(_PACE):
                    await call.ended.wait()
        rest = b"".join(map(reply.delta, shown.rest()))
        try:
            end = reply.end(_completed(call))
        except (EngineError, RolloutOver) as error:
            if events.response is None:
                raise
            return await events.end(rest + reply.failed(self._problem(error)))
        response = await events.end(rest + end)
        call.deliver()
        return response

    async def _models(self, request: web.Request) -> web.StreamResponse:
        model = self._authorised(request).engine.model
        # The fields of OpenAI's list and of Anthropic's.
        listed = {"id": model, "object": "model", "created": 0, "owned_by": "swe-core"}
        listed |= {"type": "model", "display_name": model, "created_at": "1970-01-01T00:00:00Z"}
        ends = {"has_more": False, "first_id": model, "last_id": model}
        return _json(orjson.dumps({"object": "list", "data": [listed], **ends}))

    async def _list_tools(self, request: web.Request) -> web.StreamResponse:
        return _json(orjson.dumps({"tools": self._authorised(request).tools.listed()}))

    async def _run_tool(self, request: web.Request) -> web.StreamResponse:
        gate = self._authorised(request)
        try:
            async with self._bodies.raw_body(request, gate) as arguments:
                content = await gate.tools.run(request.match_info["name"], arguments)
        except UnknownTool as error:
            return _error(DIALECTS[0], Problem(404, "invalid_request", str(error.args[0])))
        except (BadArguments, BadRequest) as error:
            return _error(DIALECTS[0], Problem(400, "invalid_request", str(error)))
        except ToolFailed as error:
            return _error(DIALECTS[0], Problem(500, "tool", str(error)))
        except RolloutOver as error:
            return _error(DIALECTS[0], self._problem(error))
        return _json(orjson.dumps({"content": content}))

    async def _exit(self, request: web.Request) -> web.StreamResponse:
        self._authorised(request).submit()
        return _json(b'{"ok":true}')

    async def _show_metrics(self, request: web.Request) -> web.StreamResponse:
        if not _is_same(bearer(request.headers), self.token):
            raise web.HTTPUnauthorized(text="not the token of this server's metrics")
        return web.Response(body=self.metrics, headers={"Content-Type": CONTENT_TYPE})

    def _authorised(self, request: web.Request, dialect: Dialect | None = None) -> Gate:
        """Return the gate of the request's path and token; the error does not say which of both is wrong.

        Args:
            dialect: Reads the key in its own header; None takes a key in the header of any dialect.
        """
        if "key" not in request.match_info:
            return self._named_by_key(request, dialect)
        gate = self._gates.get(request.match_info["key"])
        keys = [one.key(request.headers, request.query) for one in ((dialect,) if dialect else DIALECTS)]
        offered = next((key for key in keys if key is not None), None)
        if offered is None and dialect is not None:
            raise web.HTTPUnauthorized(
                text=f"the request has no key in {dialect.key_header}: send the rollout's token there"
            )
        if not _is_same(offered, gate.token if gate else self._decoy) or gate is None:
            raise web.HTTPUnauthorized(text="no such rollout, or not its token")
        return gate

    def _named_by_key(self, request: web.Request, dialect: Dialect | None) -> Gate:
        """Return the gate whose token is the request's key, in the header of any dialect, its own first."""
        for one in (dialect, *DIALECTS) if dialect else DIALECTS:
            key = one.key(request.headers, request.query)
            # By digest: how long the search takes says nothing of other tokens.
            gate = None if key is None else self._by_token.get(_digest(key))
            if gate is not None:
                return gate
        raise web.HTTPUnauthorized(text="no open session has this key")

    def _problem(self, error: EngineError | RolloutOver) -> Problem:
        """Return `error` for the agent, with a status that causes no retry."""
        if isinstance(error, RolloutOver):
            return Problem(410, "rollout_over", str(error))
        if isinstance(error, RequestRefused):  # the agent's own request: the agent may correct it
            overflow = error if isinstance(error, ContextOverflow) else None
            code = "context_length_exceeded" if overflow else None
            return Problem(
                error.status, "invalid_request", self._redactor.text(sentence(error)), code, overflow
            )
        return Problem(error.status, "engine", ENGINE_FAILED)

    @web.middleware
    async def _answer_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count requests, and answer unexpected errors so that SDKs show them and do not retry."""
        status = _CLOSED
        try:
            response = await handler(request)
            status = response.status
        except ConnectionError:  # the client has left
            return web.Response(status=_CLOSED)
        except web.HTTPException as error:
            kind: Any = "authentication" if error.status == 401 else "invalid_request"
            status = error.status
            said = error.text or error.reason
            if status in (404, 405):
                said = f"{request.method} {request.path} is not served by this endpoint"
            return _error(_dialect_of(request), Problem(status, kind, said))
        except web.RequestPayloadError:
            status = 400
            return _error(_dialect_of(request), Problem(status, "invalid_request", UNREADABLE))
        except Exception as error:  # the boundary: unexpected errors stay on the host
            status = 500
            if request.writer.output_size:  # aiohttp logs the error and closes the connection
                raise
            log.error("the endpoint failed to answer %s", request.path, exc_info=error)
            return _error(_dialect_of(request), Problem(status, "server", ENDPOINT_FAILED))
        finally:
            route = request.match_info.route.resource
            self._metrics.requests.labels(route.canonical if route else "none", status).inc()
        return response


@web.middleware
async def _leave_rest(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Close the connection after a reply to the beginning of a compressed body.

    aiohttp would decompress the rest, which may be a thousand times as long, and drop it.
    """
    response = await handler(request)
    if "Content-Encoding" in request.headers and not request.content.at_eof():
        await response.prepare(request)
        await response.write_eof()
        request.protocol.force_close()
    return response


async def _healthz(request: web.Request) -> web.StreamResponse:
    return _json(b'{"status":"ok"}')


def _is_same(offered: str | None, expected: str) -> bool:
    """Compare a key with `expected` in constant time."""
    return hmac.compare_digest((offered or "").encode("utf-8", "surrogateescape"), expected.encode())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


@contextmanager
def _writing(gate: Gate) -> Iterator[None]:
    """Write a reply in the context; a failure fails the rollout."""
    try:
        yield
    except (EngineError, RolloutOver, ConnectionError):
        raise
    except Exception as error:  # a dialect trusts the engine's pieces, which may be anything
        gate.fail(EngineProtocolError(f"a reply of the engine cannot be written: {sentence(error)}"))
        raise


def _is_retry(request: web.Request) -> bool:
    """Return whether the client's SDK marks the request as a retry."""
    return any(request.headers.get(name, "0").strip() not in ("", "0") for name in _RETRY_COUNTS)


def _completed(call: Call) -> Completion:
    """Return the completion of a call that has ended, or raise its error."""
    if isinstance(call.outcome, Completion):
        return call.outcome
    raise call.outcome or RuntimeError("the call has not ended")


def _dialect_of(request: web.Request) -> Dialect:
    """Return the dialect whose path is in the request's; that of chat completions on other paths."""
    path = request.path.removeprefix("/rollout/").partition("/")[2]
    for dialect in DIALECTS:
        if any(f"/{route.unversioned.partition('{')[0]}" in f"/{path}" for route in dialect.routes):
            return dialect
    return DIALECTS[0]


def _error(dialect: Dialect, problem: Problem) -> web.Response:
    return _json(dialect.error(problem), status=problem.status, headers=_NO_RETRY)


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
