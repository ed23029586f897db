"""OpenEnvWorker: the worker that serves the rollouts of a run as episodes."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import uvicorn
from fastapi import FastAPI

from swe_core.api.worker import RolloutRunner
from swe_core.errors import ConfigError, UsageError
from swe_core.run.plan import Plan
from swe_openenv.config import ServerConfig
from swe_openenv.keys import key_from
from swe_openenv.server.app import make_app
from swe_openenv.server.episodes import Episodes, open_episodes

logger = logging.getLogger(__name__)

_CLOSING = 2
"""Seconds that connections have to close when the server stops."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the run has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class OpenEnvWorker:
    """Serves until it is cancelled.

    Attributes:
        config: Its settings.
        key: What each client needs; None lets all in.

    Raises:
        ConfigError: `key_env` names a variable that is not set.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.key = key_from(config.key_env, "worker.openenv.key_env")

    async def run(self, runner: RolloutRunner) -> None:
        """See `swe_core.api.worker.RolloutWorker`.

        Raises:
            ConfigError: The address cannot be listened on.
            SweError: The run directory cannot be written, or the engine does not fit.
        """
        config = self.config
        if self.key is None and not is_loopback(config.host):
            logger.warning("every client that reaches %s may run rollouts: set a key_env", config.host)
        with _listening(config.host, config.port) as listening:
            await serve_episodes(runner, config, listening, self.key)


def worker_of(plan: Plan) -> OpenEnvWorker:
    """Return the worker of a plan.

    Raises:
        UsageError: Another plugin's worker has its name.
        ConfigError: `key_env` names a variable that is not set.
    """
    worker = plan.worker.create()
    if not isinstance(worker, OpenEnvWorker):
        raise UsageError("the worker 'openenv' is another plugin's: block that plugin with run.extra_plugins")
    return worker


async def serve_episodes(
    runner: RolloutRunner, config: ServerConfig, listening: socket.socket, key: str | None = None
) -> None:
    """Serve the rollouts of `runner` on a listening socket until cancelled.

    Args:
        key: What each client needs; None lets all in.

    Raises:
        SweError: The run directory cannot be written, or the engine does not fit.
    """
    async with open_episodes(runner, config.split) as episodes:
        app = make_app(episodes, config, key)
        host, port = listening.getsockname()[:2]
        logger.info(
            "the environment %r has %d tasks; clients connect to http://%s:%d",
            config.name,
            len(episodes.tasks),
            f"[{host}]" if ":" in host else host,
            port,
        )
        await _serve(app, listening, episodes)


async def _serve(app: FastAPI, listening: socket.socket, episodes: Episodes) -> None:
    """Serve until cancelled; then end all waits, so that connections close at once."""
    config = uvicorn.Config(
        app, log_level="warning", lifespan="on", timeout_graceful_shutdown=_CLOSING, server_header=False
    )
    server = _Server(config)

    async def serve() -> None:
        with anyio.CancelScope(shield=True):
            await server.serve([listening])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        try:
            await anyio.sleep_forever()
        finally:
            episodes.stop()
            server.should_exit = True


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"the server cannot listen on port {port} of {host!r} ({error.strerror or error}): set "
            "worker.openenv.host and worker.openenv.port to an address that is free"
        ) from None
    with listening:
        yield listening


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address. A name counts as reachable, but for localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
