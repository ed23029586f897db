"""ServerRecovery: watches the policy's server, and recovers from its death.

A thread checks the server. When the server dies, the rollout process stops its attempts at once, so that none
fails because of it. The guard restarts its own server, and waits for a server of the user. A restarted server
has its original weights, so the trainer sends the policy's in its own thread before rollouts resume.
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
"""Seconds between two checks."""
_NOTICED = 20.0
"""Seconds within which the guard notices a death: `LOOKS` checks, some of which time out."""


class ServerRecovery:
    """Watches a server while its context is open.

    Args:
        url: Base URL of the server, without `/v1`.
        server: The server to restart; None for a server of the user.
        options: Limits of restarts and waiting.
        lost: Called in the guard's thread after a death.
        back: Called in the trainer's thread when the server has the policy's weights again.
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

    def __enter__(self) -> ServerRecovery:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._server is not None and not self._serving.is_set():
            self._server.close()  # it may be starting
        self._thread.join()

    @property
    def needs_weights(self) -> bool:
        """Return whether the server runs again after a death and lacks the policy's weights.

        Raises:
            ServerLost: The server did not recover.
        """
        self._check()
        return self._serving.is_set() and self._loaded != self._life

    def wait(self) -> int:
        """Wait until the server runs; return the number of its deaths.

        Raises:
            ServerLost: The server did not recover.
        """
        while not self._serving.wait(_EVERY):
            self._check()
        return self._life

    def has_weights(self, deaths: int, *, new: bool) -> None:
        """Record that the server has the policy's weights, and let rollouts resume.

        Args:
            deaths: Result of `wait` before the weights were sent. A later death voids them.
            new: Whether the weights are newly trained, which resets the count of restarts. A server that its
                requests kill never gets such weights.
        """
        with self._changing:
            if deaths == self._life:
                if new:
                    self._restarts = 0
                if self._loaded != deaths:
                    self._loaded = deaths
                    logger.info("the server has the policy's weights again: rollouts resume")
                    self._back()

    def explains(self, error: Exception) -> bool:
        """Return whether the death of the server, now or soon, explains `error` of a request."""
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
        except Exception as error:  # `wait` raises it in the trainer's thread
            self._problem = error

    def _look(self) -> str | None:
        """Return why the server is dead, as a sentence; None if it runs or may only be busy."""
        ended = self._server.died() if self._server is not None else None
        if ended is not None:
            return ended
        why = dead(self._url)
        self._looks = self._looks + 1 if why else 0
        if self._looks < LOOKS:
            return None
        self._looks = 0
        # A dead server whose process hangs is killed, and its log has the reason.
        return self._server.end() if self._server is not None else f"the server {self._url!r} is dead ({why})"

    def _have_again(self, why: str) -> None:
        """Restart the server, or wait for it.

        Raises:
            ServerLost: The server did not recover.
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
            logger.warning("%s; restarting it (%d of %d)", why, self._restarts, self._options.restarts)
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
