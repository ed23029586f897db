"""The ASGI application of the environment server."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig

from swe_core.errors import ConfigError, SandboxError, SweError, UsageError, sentence
from swe_openenv.config import ServerConfig
from swe_openenv.models import SweAction, SweObservation, SweState
from swe_openenv.server.connections import App, Receive, Scope, Send, WatchConnections
from swe_openenv.server.environment import SweEnvironment
from swe_openenv.server.episodes import Episodes, ServerStops
from swe_openenv.trace import trace_entries

_OPEN = ("/health",)
"""Paths that need no key: a container's health check has none."""
_POLICY_VIOLATION = 1008


def make_app(episodes: Episodes, config: ServerConfig, key: str | None = None) -> FastAPI:
    """Return OpenEnv's application over `episodes`, with the routes of traces.

    Args:
        key: What each request must carry as bearer token; None needs no key.

    Raises:
        ConfigError: OPENENV_MODE is no mode.
    """
    environment = partial(SweEnvironment, episodes, config.name, config.interactive)
    _check_mode()
    app: FastAPI = create_app(
        environment,
        SweAction,
        SweObservation,
        env_name=config.name,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=config.sessions, session_timeout=config.session_timeout
        ),
        state_cls=SweState,
    )
    app.add_exception_handler(SweError, _answer_error)
    for kind in (RequestValidationError, HTTPException):  # OpenEnv's own are of the second kind
        app.add_exception_handler(kind, _answer_invalid)
    app.add_exception_handler(Exception, _answer_failure)
    app.add_middleware(WatchConnections)
    app.add_api_route(
        "/sessions/{episode_id}/trace_entries", partial(_trace_entries, episodes), methods=["GET"]
    )
    app.add_api_route("/sessions/{episode_id}", partial(_cancel, episodes), methods=["DELETE"])
    if key is not None:
        app.add_middleware(RequireKey, key=key)
    return app


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    kinds = {UsageError: 400, SandboxError: 400, ServerStops: 503}
    status = next((status for kind, status in kinds.items() if isinstance(error, kind)), 500)
    return JSONResponse({"detail": sentence(error)}, status_code=status)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """Answer without what was sent: it may be huge, or no JSON."""
    if isinstance(error, HTTPException) and not isinstance(error.detail, list):
        return await http_exception_handler(request, error)
    found = error.errors() if isinstance(error, RequestValidationError) else getattr(error, "detail", ())
    kept = [{"loc": list(each["loc"]), "msg": each["msg"], "type": each["type"]} for each in found]
    return JSONResponse({"detail": kept}, status_code=422)


async def _answer_failure(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": f"the server failed: {sentence(error)}"}, status_code=500)


def _check_mode() -> None:
    mode = os.environ.get("OPENENV_MODE", "simulation")
    if mode not in ("simulation", "production"):
        raise ConfigError(f"OPENENV_MODE is {mode!r}: set it to simulation or production, or unset it")


async def _trace_entries(episodes: Episodes, episode_id: str) -> JSONResponse:
    """Answer with the trained calls of a finished episode, as OpenEnv's capture server does."""
    episode = episodes.known(episode_id)
    if episode is None:
        return JSONResponse({"error": "unknown session"}, status_code=404)
    if episode.rollout is None or episode.rollout.ledger is None:
        why = "the episode has not ended"
        if episode.rollout is not None:
            why = f"the engine {episode.rollout.engine!r} does not record tokens"
        return JSONResponse({"error": why, "session_id": episode_id}, status_code=409)
    store = episodes.runner.store
    entries: Sequence[Any] = trace_entries([*store.turns(episode_id)], store.chains(episode_id))
    return JSONResponse({"session_id": episode_id, "entries": entries})


async def _cancel(episodes: Episodes, episode_id: str) -> JSONResponse:
    """End an episode; one that has a verdict keeps it."""
    episode = episodes.known(episode_id)
    if episode is None:
        return JSONResponse({"error": "unknown session"}, status_code=404)
    episodes.cancel(episode, "stopped")
    return JSONResponse({"session_id": episode_id})


class RequireKey:
    """Middleware that refuses requests and connections without the key."""

    def __init__(self, app: App, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what carries the key."""
        offered = dict(scope.get("headers", ())).get(b"authorization", b"")
        if (
            scope["type"] not in ("http", "websocket")
            or scope["path"] in _OPEN
            or hmac.compare_digest(offered, self._expected)
        ):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = JSONResponse(
                {"detail": "this server needs its key: send it as bearer token in Authorization"},
                status_code=401,
            )
            await refusal(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "wrong key"})
