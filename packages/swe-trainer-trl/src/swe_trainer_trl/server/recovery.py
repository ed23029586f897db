"""ServerRecovery: watches the policy's servers, and recovers from their deaths.

A thread checks each server. When a server dies, the rollout process stops the attempts on it at once, so that
none fails because of it. The guard restarts its own server, and waits for a server of the user. A restarted
server has its original weights, so the trainer sends the policy's in its own thread before rollouts ask it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from swe_core.errors import EngineError, SweError, sentence
from swe_trainer_trl.config import ServerOptions
from swe_trainer_trl.server.health import LOOKS, ServerLost, dead
from swe_trainer_trl.server.vllm_server import VLLMServer

logger = logging.getLogger(__name__)

_EVERY = 1.0
"""Seconds between two checks."""
_NOTICED = 20.0
"""Seconds within which the guard notices a death: `LOOKS` checks, some of which time out."""


class _Watched:
    """One server.

    Attributes:
        serving: Whether it runs.
        life: Number of its deaths.
        loaded: The life in which it got the policy's weights.
        restarts: Restarts since it got newly trained weights.
        looks: Consecutive checks that found it dead.
        problem: Why it will not be back; None while it runs or may be back.
    """

    def __init__(self, url: str, server: VLLMServer | None) -> None:
        self.url = url
        self.server = server
        self.serving = True
        self.life = self.loaded = 0
        self.restarts = 0
        self.looks = 0
        self.problem: Exception | None = None

    @property
    def lacks_weights(self) -> bool:
        return self.serving and self.loaded != self.life


class ServerRecovery:
    """Watches servers while its context is open. It fails only when none of them is left.

    Attributes:
        urls: The servers that ran at the last `wait`: those that get the weights.

    Args:
        servers: Base URL, without `/v1` → the server to restart; None for a server of the user.
        options: Limits of restarts and waiting.
        lost: Called in the guard's thread after the death of the server of a URL.
        back: Called in the trainer's thread when that server has the policy's weights again.
    """

    def __init__(
        self,
        servers: Mapping[str, VLLMServer | None],
        options: ServerOptions,
        lost: Callable[[str], None],
        back: Callable[[str], None],
    ) -> None:
        self._watched = [_Watched(url, server) for url, server in servers.items()]
        self._options = options
        self._lost = lost
        self._back = back
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._changes = 0
        self._lives = {watched.url: 0 for watched in self._watched}
        self._threads = [
            threading.Thread(target=self._watch, args=(watched,), name="swe-guard", daemon=True)
            for watched in self._watched
        ]

    def __enter__(self) -> ServerRecovery:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for watched in self._watched:
            if watched.server is not None and not watched.serving:
                watched.server.close()  # it may be starting
        for thread in self._threads:
            thread.join()

    @property
    def urls(self) -> Sequence[str]:
        return list(self._lives)

    @property
    def all_urls(self) -> Sequence[str]:
        """Return all servers, also the dead ones."""
        return [watched.url for watched in self._watched]

    @property
    def needs_weights(self) -> bool:
        """Return whether a server runs again after a death and lacks the policy's weights.

        Raises:
            ServerLost: No server is left.
        """
        with self._changed:
            self._check()
            return any(watched.lacks_weights for watched in self._watched)

    @property
    def none_has_weights(self) -> bool:
        """Return whether no server that runs has the policy's weights."""
        with self._changed:
            return not any(one.serving and one.loaded == one.life for one in self._watched)

    def wait(self) -> int:
        """Wait until a server runs; return how often one died or came back. `urls` then names those that run.

        Raises:
            ServerLost: No server is left.
        """
        with self._changed:
            while not any(watched.serving for watched in self._watched):
                self._check()
                self._changed.wait(_EVERY)
            self._lives = {watched.url: watched.life for watched in self._watched if watched.serving}
            return self._changes

    def has_weights(self, changes: int, *, new: bool) -> None:
        """Record that the servers of `urls` have the policy's weights, and let rollouts ask them.

        Args:
            changes: Result of `wait` before the weights were sent. A server that died since has none.
            new: Whether the weights are newly trained, which resets the count of restarts. A server that its
                requests kill never gets such weights.
        """
        with self._changed:
            for watched in self._watched:
                if self._lives.get(watched.url) != watched.life:
                    continue
                if new:
                    watched.restarts = 0
                if watched.loaded != watched.life:
                    watched.loaded = watched.life
                    logger.info("the server %r has the policy's weights again: rollouts resume", watched.url)
                    self._back(watched.url)

    def explains(self, error: Exception) -> bool:
        """Return whether the death of a server of `urls`, now or soon, explains `error` of a request."""
        if isinstance(error, SweError) and not isinstance(error, EngineError):
            return False
        until = time.monotonic() + _NOTICED
        while not self._died() and time.monotonic() < until:
            if all(dead(url) is None for url in self._lives):
                break
            self._over.wait(_EVERY)
        return self._died()

    def _died(self) -> bool:
        """Return whether a server of `urls` has died since the last `wait`."""
        with self._changed:
            lives = {watched.url: watched.life for watched in self._watched}
            return any(lives[url] != life for url, life in self._lives.items())

    def _check(self) -> None:
        problems = [watched.problem for watched in self._watched if watched.problem is not None]
        if len(problems) == len(self._watched):
            raise problems[-1]

    def _watch(self, watched: _Watched) -> None:
        try:
            while not self._over.wait(_EVERY):
                why = self._look(watched)
                if why is not None:
                    self._change(watched, serving=False)
                    self._have_again(watched, why)
                    if not self._over.is_set():
                        self._change(watched, serving=True)
        except Exception as error:  # `wait` raises it in the trainer's thread, if no server is left
            with self._changed:
                watched.problem = error
                self._changed.notify_all()
                if any(other.problem is None for other in self._watched):
                    logger.warning("%s; until then the training continues without it", sentence(error))

    def _change(self, watched: _Watched, *, serving: bool) -> None:
        with self._changed:
            self._changes += 1
            watched.serving = serving
            if not serving:
                watched.life += 1
                self._lost(watched.url)
            self._changed.notify_all()

    def _look(self, watched: _Watched) -> str | None:
        """Return why the server is dead, as a sentence; None if it runs or may only be busy."""
        server = watched.server
        ended = server.died() if server is not None else None
        if ended is not None:
            return ended
        why = dead(watched.url)
        watched.looks = watched.looks + 1 if why else 0
        if watched.looks < LOOKS:
            return None
        watched.looks = 0
        # A dead server whose process hangs is killed, and its log has the reason.
        return server.end() if server is not None else f"the server {watched.url!r} is dead ({why})"

    def _have_again(self, watched: _Watched, why: str) -> None:
        """Restart the server, or wait for it.

        Raises:
            ServerLost: The server did not recover.
        """
        if watched.server is None:
            self._wait_for_users(watched, why)
            return
        while not self._over.is_set():
            if watched.restarts >= self._options.restarts:
                allowed = self._options.restarts
                again = f", also after {watched.restarts} of {allowed} restarts" if watched.restarts else ""
                raise ServerLost(f"{why}{again}; resume with --resume")
            watched.restarts += 1
            logger.warning("%s; restarting it (%d of %d)", why, watched.restarts, self._options.restarts)
            try:
                watched.server.start()
                return
            except SweError as error:
                why = sentence(error)

    def _wait_for_users(self, watched: _Watched, why: str) -> None:
        """Wait for a server of the user; while another one serves, without a limit."""
        allowed = self._options.away_timeout
        others = [other for other in self._watched if other is not watched]
        more = " if no other server runs" if others else ""
        logger.warning("%s; waiting up to %.0f s until it is back%s", why, allowed, more)
        until = time.monotonic() + allowed
        while dead(watched.url) is not None and not self._over.wait(_EVERY):
            if any(other.serving for other in others):
                until = time.monotonic() + allowed
            elif time.monotonic() > until:
                raise ServerLost(
                    f"{why}, for {allowed:.0f} s (worker.trl.server.away_timeout): start it again, then "
                    "resume with --resume"
                )
