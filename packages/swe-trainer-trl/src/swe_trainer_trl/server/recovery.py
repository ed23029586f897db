"""Guard: watches the server of the policy, and has it again where it dies.

A thread looks at the server. Where it is dead, the rollouts' process hears of it at once, so that no attempt
fails because of it, and the server is started again, or waited for where the user named it. A fresh server
has the weights that it was started with: the trainer sends the policy's, in its own thread, before rollouts
go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from swe_core.errors import EngineError, SweError, sentence
from swe_trainer_trl.config import ServerOptions
from swe_trainer_trl.server.health import LOOKS, ServerLost, dead
from swe_trainer_trl.server.vllm_server import VLLMServer

logger = logging.getLogger(__name__)

_EVERY = 1.0
"""Seconds between two looks."""
_NOTICED = 20.0
"""Seconds in which a death is noticed: so many looks, and time-outs of a few of them."""


class Guard:
    """Watches a server for as long as its block lasts.

    Args:
        url: Its base URL, without `/v1`.
        server: The server, where it is ours; None where the user named it.
        options: How often it is started again, or how long it may be away.
        lost: Called in the guard's thread when it has died.
        back: Called in the trainer's thread when it is there again and has the policy's weights.
    """

    def __init__(
        self,
        url: str,
        server: VLLMServer | None,
        options: ServerOptions,
        lost: Callable[[], None],
        back: Callable[[], None],
    ) -> None:
        self._url = url
        self._server = server
        self._options = options
        self._lost = lost
        self._back = back
        self._over = threading.Event()
        self._serving = threading.Event()
        self._serving.set()
        self._changing = threading.Lock()
        self._life = self._loaded = 0
        self._restarts = 0
        self._looks = 0
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="swe-guard", daemon=True)

    def __enter__(self) -> Guard:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._server is not None and not self._serving.is_set():
            self._server.close()  # it may just be starting
        self._thread.join()

    @property
    def needs_weights(self) -> bool:
        """Whether the server has died since it had the policy's weights, and serves again.

        Raises:
            ServerLost: It was not to be had again.
        """
        self._check()
        return self._serving.is_set() and self._loaded != self._life

    def wait(self) -> int:
        """Until the server is there. Returns how often it has died.

        Raises:
            ServerLost: It was not to be had again.
        """
        while not self._serving.wait(_EVERY):
            self._check()
        return self._life

    def has_weights(self, deaths: int, *, new: bool) -> None:
        """The server has the policy's weights: rollouts may go on.

        Args:
            deaths: What `wait` returned before they were sent; it may have died again since.
            new: They were trained since the last ones. One that dies of its requests never gets there.
        """
        with self._changing:
            if deaths == self._life:
                if new:
                    self._restarts = 0
                if self._loaded != deaths:
                    self._loaded = deaths
                    logger.info("the server has the policy's weights again: rollouts go on")
                    self._back()

    def explains(self, error: Exception) -> bool:
        """Whether the server is dead, or dies soon, so that whoever asked it got `error`."""
        if isinstance(error, SweError) and not isinstance(error, EngineError):
            return False
        until = time.monotonic() + _NOTICED
        while self._serving.is_set() and self._thread.is_alive() and time.monotonic() < until:
            if dead(self._url) is None:
                return False
            self._over.wait(_EVERY)
        return not self._serving.is_set()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _watch(self) -> None:
        try:
            while not self._over.wait(_EVERY):
                why = self._look()
                if why is not None:
                    with self._changing:
                        self._life += 1
                        self._serving.clear()
                        self._lost()
                    self._have_again(why)
                    if not self._over.is_set():
                        self._serving.set()
        except Exception as error:  # told by `wait`, in the trainer's thread
            self._problem = error

    def _look(self) -> str | None:
        """Why the server is dead, a sentence; None where it lives, or may only be busy."""
        ended = self._server.died() if self._server is not None else None
        if ended is not None:
            return ended
        why = dead(self._url)
        self._looks = self._looks + 1 if why else 0
        if self._looks < LOOKS:
            return None
        self._looks = 0
        # One of ours that never gets to its end is ended, and says why by its log.
        return self._server.end() if self._server is not None else f"the server {self._url!r} is dead ({why})"

    def _have_again(self, why: str) -> None:
        """Start the server again, or wait for it.

        Raises:
            ServerLost: It cannot be had.
        """
        if self._server is None:
            self._wait_for_users(why)
            return
        while not self._over.is_set():
            if self._restarts >= self._options.restarts:
                allowed = self._options.restarts
                again = f", also after {self._restarts} of {allowed} restarts" if self._restarts else ""
                raise ServerLost(f"{why}{again}; resume with --resume")
            self._restarts += 1
            logger.warning("%s; it is started again (%d of %d)", why, self._restarts, self._options.restarts)
            try:
                self._server.start()
                return
            except SweError as error:
                why = sentence(error)

    def _wait_for_users(self, why: str) -> None:
        allowed = self._options.away_timeout
        logger.warning("%s; waiting up to %.0f s until it is back", why, allowed)
        until = time.monotonic() + allowed
        while dead(self._url) is not None and not self._over.wait(_EVERY):
            if time.monotonic() > until:
                raise ServerLost(
                    f"{why}, for {allowed:.0f} s (worker.trl.server.away_timeout): start it again, then "
                    "resume with --resume"
                )
