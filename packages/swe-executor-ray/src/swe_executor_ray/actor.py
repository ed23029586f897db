"""NodeActor: the actor on a Ray node that runs rollouts."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import threading
import traceback
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from swe_core.rollout.nodes.spool import Spool
from swe_core.run.node import RolloutNode
from swe_core.system.event_loop import run
from swe_core.system.redaction import Redactor, redact, redaction_scope


@dataclass(frozen=True, slots=True)
class Welcome:
    """What an actor says of itself.

    Args:
        incarnation: Another one after each start of its process.
        spool: Where it keeps finished rollouts: a directory on its host.
        refusal: Why it cannot serve; "" if it can.
    """

    incarnation: str
    spool: str
    refusal: str = ""


class NodeActor:
    """Runs rollouts on the event loop of a thread of its own: Ray has a loop for each concurrency group.

    Args:
        run: Name of the run, which is the name of its spool on each host.
    """

    def __init__(self, run: str) -> None:
        self._incarnation = secrets.token_hex(8)
        self._spool = platformdirs.user_cache_path("swe-core") / "nodes" / run
        self._begun: Future[tuple[RolloutNode, asyncio.AbstractEventLoop]] = Future()
        self._environment: dict[str, str] = {}
        self._thread = threading.Thread(target=self._live, daemon=True)

    async def welcome(self, environment: dict[str, str]) -> Welcome:
        """Begin, or say that it has begun.

        Args:
            environment: Variables for its environment. They may be secret.
        """
        refusal = ""
        try:
            await asyncio.to_thread(_make, self._spool)
        except OSError as error:
            refusal = (
                f"it cannot write {str(self._spool)!r}: {error.strerror or error}; let XDG_CACHE_HOME name a "
                "place there that can be written"
            )
        if self._thread.ident is None:
            os.environ.update(environment)
            self._environment = environment
            self._thread.start()
        return Welcome(self._incarnation, str(self._spool), refusal)

    async def answer(self, method: str, message: bytes) -> bytes:
        """See `RolloutNode.answer`."""
        node, loop = await asyncio.wrap_future(self._begun)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(node.answer(method, message), loop))

    async def end(self) -> None:
        """Close all sandboxes of the node, and return when they are closed. `close` may have come before."""
        node, loop = await asyncio.wrap_future(self._begun)
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(node.stop)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(_remove_if_empty, self._spool)

    def _live(self) -> None:
        with redaction_scope() as redactor:
            for value in self._environment.values():
                redact(value)
            try:
                run(self._serve, redactor)
            except BaseException:  # whatever it is: Ray logs it, and starts the actor again
                traceback.print_exc()
                os._exit(1)

    async def _serve(self, redactor: Redactor) -> None:
        node = RolloutNode(redactor)
        self._begun.set_result((node, asyncio.get_running_loop()))
        await node.run()


def _remove_if_empty(spool: Path) -> None:
    """Remove a spool without rollouts; a resume takes those of another."""
    with suppress(FileNotFoundError):  # another actor on the host was faster
        if not Spool(spool).ids():
            shutil.rmtree(spool)


def _make(directory: Path) -> None:
    """Make a directory, and prove that it can be written.

    Raises:
        OSError: It cannot.
    """
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / f".{os.getpid()}.probe"
    probe.touch()
    probe.unlink()
