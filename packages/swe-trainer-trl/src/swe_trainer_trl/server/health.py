"""Health checks of the server, and supervision of a weight sync.

A vLLM whose engine has died may keep connections open without an answer, and a weight sync waits half an hour
for its answer. During a sync a healthy server is paused and answers no requests.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import httpx

from swe_core.errors import EngineUnavailable
from swe_trainer_trl.server.parallel import in_parallel

_GONE = (502, 503, 504)
"""Statuses of a vLLM with a dead engine, and of a proxy that does not reach the server."""
_EVERY = 3.0
"""Seconds between two checks."""
LOOKS = 3
"""Number of consecutive checks that must find the server dead."""
_TIMEOUT = 10.0
_UNPAUSE = 60.0
"""Seconds for each step of a request to resume: connect, send, receive."""
_PARTING = 5.0
"""The same after an interrupted sync. A busy server resumes later, even without a waiting client."""
INTERRUPT = signal.SIGURG
"""Ignored by default, so a late signal does no harm. A background job does not receive SIGINT."""


class ServerLost(EngineUnavailable):
    """The policy's server died and did not recover."""


@contextmanager
def watched(*urls: str) -> Iterator[None]:
    """Interrupt the block if a server dies. Only for the main thread, which a signal interrupts, because
    nothing else wakes a thread that waits for a socket.

    Args:
        urls: Base URLs of the servers, without `/v1`.

    Raises:
        EngineUnavailable: A server died.
    """
    main = threading.get_ident()
    lock, over = threading.Lock(), threading.Event()
    found: list[str] = []

    def look(url: str) -> None:
        looks = 0
        while not over.wait(_EVERY):
            why = dead(url)
            looks = looks + 1 if why else 0
            if why and looks == LOOKS:
                with lock:  # no signal after the end of the block, or a second one
                    if not over.is_set() and not found:
                        found.append(f"the server {url!r} died while it was given new weights ({why})")
                        signal.pthread_kill(main, INTERRUPT)
                return

    def interrupt(signum: int, frame: object) -> None:
        raise EngineUnavailable(f"{found[0]}: see the server's log, then resume with --resume")

    before = signal.signal(INTERRUPT, interrupt)
    for url in urls:
        threading.Thread(target=look, args=(url,), name="swe-watch", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            over.set()
        signal.signal(INTERRUPT, before)


@contextmanager
def not_left_paused(*urls: str) -> Iterator[None]:
    """Resume the servers if the block, a weight sync, is interrupted, for example by Ctrl-C.

    TRL resumes them only after a complete sync.

    Args:
        urls: Base URLs of the servers, without `/v1`.
    """
    try:
        yield
    except BaseException:  # also Ctrl-C: the servers must not stay paused
        in_parallel([partial(unpause, url, _PARTING) for url in urls])
        raise


def unpause(url: str, timeout: float = _UNPAUSE) -> None:
    """Resume a paused server. Errors are ignored, because others report them.

    Args:
        url: Base URL of the server, without `/v1`.
        timeout: Seconds for each step of the request: connect, send, receive.
    """
    with suppress(httpx.HTTPError):
        httpx.post(f"{url}/resume", timeout=timeout, trust_env=False)


def dead(url: str) -> str | None:
    """Return why the server is dead; None if it runs or may only be busy.

    Args:
        url: Base URL of the server, without `/v1`.
    """
    try:
        status = httpx.get(f"{url}/health", timeout=_TIMEOUT, trust_env=False).status_code
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return "it accepts no connection"
    except httpx.TransportError:
        return None
    return f"/health says {status}" if status in _GONE else None
