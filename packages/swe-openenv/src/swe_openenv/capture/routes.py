"""Routes: the HTTP interface of OpenEnv's capture server, beside the dialects that the gates serve."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio.to_thread
import orjson
from aiohttp import web

from swe_core.errors import SweError, sentence
from swe_core.interception.dialects.base import bearer
from swe_openenv.capture.documents import Capture, NotTrainable
from swe_openenv.capture.engines import Choice, Engines
from swe_openenv.capture.options import BadSession, Level, SessionRequest
from swe_openenv.capture.sessions import DamagedSession, Session, Sessions

_ADMIN = "this route requires the capture admin key"
_UNKNOWN = "unknown session"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")

log = logging.getLogger(__name__)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes:
    """The routes of one server.

    Args:
        engine: The server's own engine; None without one.
        admin_key: What the routes of sessions require; None requires nothing.

    Attributes:
        instance: Tells this server from others, in `/health`.
    """

    def __init__(
        self, sessions: Sessions, engines: Engines, engine: Choice | None, admin_key: str | None
    ) -> None:
        self.instance = secrets.token_hex(16)
        self._sessions = sessions
        self._engines = engines
        self._engine = engine
        self._admin_key = admin_key

    def all(self) -> Sequence[web.AbstractRouteDef]:
        """Return the routes."""
        one = "/sessions/{id}"
        return [
            web.get("/health", _guarded(self._health)),
            web.get("/v1/models", _guarded(self._models)),
            web.post("/sessions", self._gated(self._create)),
            web.get("/sessions", self._gated(self._list)),
            web.get(one, self._gated(self._of_one(self._status))),
            web.get(f"{one}/rollout", self._gated(self._of_one(self._rollout))),
            web.get(f"{one}/trace_entries", self._gated(self._of_one(self._entries))),
            web.delete(one, self._gated(self._delete)),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        engine = self._engine
        level: Level = self._engines.level(engine) if engine else "text"
        body = {
            "status": "ok",
            "instance": self.instance,
            "upstream": engine.url if engine else "",
            "engine": "vllm" if level == "tokens" else "unknown",
            "model": engine.model if engine else None,
            "sessions": len(self._sessions.all()),
            "require_registered": True,
            "capture_level": level,
            "rollout_type": "train" if level == "tokens" else "eval",
            "upstreams": self._engines.known() if self._may(request) else [],
            "upstream_auth": self._engines.has_key(level),
            "param_fixes": [],
        }
        return _json(body)

    async def _models(self, request: web.Request) -> web.Response:
        names = [self._engine.model] if self._engine else []
        cards = [{"id": name, "object": "model", "created": 0, "owned_by": "swe-core"} for name in names]
        return _json({"object": "list", "data": cards})

    async def _create(self, request: web.Request) -> web.Response:
        raw = await request.read()
        try:
            asked = SessionRequest.parse(orjson.loads(raw) if raw else {})
            if self._admin_key is not None and _same(asked.session_id, self._admin_key):
                raise BadSession("session_id must not be the admin key: agents get it")
            record = await self._sessions.create(asked)
        except orjson.JSONDecodeError:
            return _error("body must be JSON", 400)
        except BadSession as error:
            return _error(str(error), 400)
        except DamagedSession as error:
            return _error(str(error), 409)
        return _json(
            {
                "session_id": record.session_id,
                "capture_level": record.level,
                "rollout_type": record.rollout_type,
                "max_model_calls": record.max_model_calls,
                "llm_url": record.llm_url,
                "model": record.model,
            }
        )

    async def _list(self, request: web.Request) -> web.Response:
        return _json({"sessions": [session.summary() for session in self._sessions.all()]})

    async def _status(self, request: web.Request, session: Session) -> web.Response:
        return _json(session.status())

    async def _rollout(self, request: web.Request, session: Session) -> web.Response:
        try:
            wanted = {name: _flag(request, name) for name in ("include_discarded", "include_messages")}
        except ValueError as error:
            return _error(str(error), 400)
        return await _written(session, lambda capture: capture.rollout(**wanted))

    async def _entries(self, request: web.Request, session: Session) -> web.Response:
        name = session.record.session_id
        try:
            return await _written(session, lambda found: {"session_id": name, "entries": found.entries()})
        except NotTrainable as error:
            return _json({"error": f"ValueError: {error}", "session_id": name}, 409)

    async def _delete(self, request: web.Request) -> web.Response:
        return _json({"deleted": await self._sessions.delete(request.match_info["id"])})

    def _of_one(self, answer: Callable[[web.Request, Session], Awaitable[web.Response]]) -> _Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            session = self._sessions.get(request.match_info["id"])
            return _json({"error": _UNKNOWN}, 404) if session is None else await answer(request, session)

        return handler

    def _gated(self, answer: _Handler) -> _Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            return await answer(request) if self._may(request) else _error(_ADMIN, 401)

        return _guarded(handler)

    def _may(self, request: web.Request) -> bool:
        if self._admin_key is None:
            return True
        offered = (
            bearer(request.headers)
            or request.headers.get("x-api-key")
            or request.headers.get("x-goog-api-key")
        )
        return _same(offered or "", self._admin_key)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode())


def _guarded(answer: _Handler) -> _Handler:
    """Answer an unexpected error without the path, which holds a session's key, in the log."""

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await answer(request)
        except (web.HTTPException, web.RequestPayloadError, ConnectionError):
            raise  # the server answers them
        except (SweError, OSError) as error:
            log.error("a request for a session failed: %s", sentence(error))
        except Exception as error:  # the boundary: a client gets a sentence, and no traceback
            log.error("a request for a session failed", exc_info=error)
        return _error("the capture server failed to answer; its log says why", 500)

    return handler


async def _written(session: Session, make: Callable[[Capture], object]) -> web.Response:
    """Read a session and write a document of it, both in a thread."""

    def work() -> bytes:
        return orjson.dumps(make(session.capture()))

    body = await anyio.to_thread.run_sync(partial(work), abandon_on_cancel=True)
    return web.Response(body=body, content_type="application/json")


def _flag(request: web.Request, name: str) -> bool:
    given = request.query.get(name, "").lower()
    if given not in (*_TRUE, *_FALSE):
        raise ValueError(f"{name} must be true or false")
    return given in _TRUE


def _error(message: str, status: int) -> web.Response:
    return _json({"error": {"message": message, "type": "invalid_request_error"}}, status)


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
