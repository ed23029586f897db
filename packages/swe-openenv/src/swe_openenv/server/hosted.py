"""The environment server as an ASGI application, for a process that another program starts."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from swe_core.errors import SweError, UsageError, sentence
from swe_core.run.execute import open_run
from swe_core.system.redaction import redaction_scope
from swe_openenv.plans import begun, load_plan, log_to_stderr, observe
from swe_openenv.server.app import make_app
from swe_openenv.server.connections import Receive, Scope, Send
from swe_openenv.server.episodes import open_episodes
from swe_openenv.server.worker import worker_of

logger = logging.getLogger(__name__)


class HostedApp:
    """Serves the settings of a file: `app = HostedApp(…)`, `uvicorn module:app`.

    The run opens when the server starts, and closes when it stops. A start that fails ends the server with
    one sentence in its log.

    Args:
        config: TOML file with settings. It names files relative to the working directory.
        out: Run directory; a server that starts again on it answers for its episodes.
        name: Name of the environment.
    """

    def __init__(self, config: Path, out: Path, name: str) -> None:
        self._config = config
        self._out = out
        self._name = name
        self._app: FastAPI | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection, or live as long as the server.

        Raises:
            UsageError: The server has not called the lifespan.
        """
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is None:
            raise UsageError("the run is not open: start the ASGI server with its lifespan on")
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        phase = "startup"
        try:
            async with self._opened() as self._app:
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()  # lifespan.shutdown
        except Exception as error:  # a server would take it for an application without a lifespan
            if not isinstance(error, SweError):
                logger.exception("the run ended with an error of the program")
            if phase == "shutdown":
                logger.error("the run ended: %s", sentence(error))
                signal.raise_signal(signal.SIGTERM)  # nothing else ends a server whose run has ended
            await send({"type": f"lifespan.{phase}.failed", "message": sentence(error)})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[FastAPI]:
        plan, plugins = load_plan(self._config, (), {"worker": {"openenv": {"name": self._name}}})
        worker = worker_of(plan)
        with redaction_scope() as redactor:
            log_to_stderr(plugins, redactor)
            resume = begun(plan, self._out)
            opened = open_run(plan, plugins, self._out, observe, resume=resume, again=["cancelled"])
            async with opened as runner, open_episodes(runner, worker.config.split) as episodes:
                app = make_app(episodes, worker.config, worker.key)
                async with app.router.lifespan_context(app):
                    logger.info("the environment %r has %d tasks", self._name, len(episodes.tasks))
                    yield app
