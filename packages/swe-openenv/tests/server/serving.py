"""A real environment server in a thread of the test's process, on a loopback port."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from openenv.core.generic_client import GenericEnvClient

from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.execute import open_run
from swe_openenv.config import ServerConfig
from swe_openenv.plans import begun, load_plan, observe
from swe_openenv.server.worker import serve_episodes
from swe_testing.waiting import until

BASIC = ("run.plugins=[]", "sandbox.local.unisolated=true")


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    out: Path
    portal: BlockingPortal

    def client(self, **more: Any) -> GenericEnvClient:
        """A client that waits as long as a rollout takes."""
        return GenericEnvClient(base_url=self.url, message_timeout_s=120, **more)

    @property
    def outcomes(self) -> dict[str, str]:
        """Episode → outcome, of what is on disk."""
        return dict(RunDirectory.open(self.out).finished())


@contextmanager
def serving(out: Path, sets: Sequence[str] = (), key: str | None = None, **config: Any) -> Iterator[Served]:
    """Serve the demo tasks as `swe-core openenv serve` does, to clients or with the agent "oracle"."""
    agent = "run.agent=nop" if config.get("interactive") else "run.agent=oracle"
    plan, plugins = load_plan(None, (*BASIC, agent, *sets))
    with socket.create_server(("127.0.0.1", 0)) as listening, start_blocking_portal() as portal:
        resume = begun(plan, out)
        opened = open_run(plan, plugins, out, observe, resume=resume, again=["cancelled"])
        with portal.wrap_async_context_manager(opened) as runner:
            task = portal.start_task_soon(serve_episodes, runner, ServerConfig(**config), listening, key)
            try:
                yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", out, portal)
            finally:
                task.cancel()


wait_until = partial(anyio.run, until)
"""Wait for what no event tells."""
