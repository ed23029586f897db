"""Looking after the server while the trainer gives it new weights.

A vLLM whose engine has died may still hold the connections of requests that it will never answer, and a
weight sync waits half an hour for its answer. One that lives is paused meanwhile, and answers nobody.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

from swe_core.errors import EngineUnavailable

_GONE = (502, 503, 504)
"""What vLLM says of itself when its engine has died, and a proxy of a server that it does not reach."""
_EVERY = 3.0
"""Seconds between two looks."""
LOOKS = 3
"""So many in a row must find it dead."""
_TIMEOUT = 10.0
_UNPAUSE = 60.0
"""Seconds for each of: to connect to a server that is to go on, to send the request, and to be answered."""
_PARTING = 5.0
"""The same where nobody may wait long. A server that is busy goes on later, also where nobody waits."""
_INTERRUPT = signal.SIGURG
"""Its default is to be ignored: one that comes late does no harm. SIGINT is not heard in a background job."""


class ServerLost(EngineUnavailable):
    """The policy's server died, and was not to be had again."""


@contextmanager
def watched(url: str) -> Iterator[None]:
    """End the block where the server dies meanwhile. In the main thread only: it is interrupted by a signal,
    since nothing else reaches whoever waits for a socket there.

    Args:
        url: Its base URL, without `/v1`.

    Raises:
        EngineUnavailable: The server is dead.
    """
    main = threading.get_ident()
    lock, over = threading.Lock(), threading.Event()
    found: list[str] = []

    def look() -> None:
        looks = 0
        while not over.wait(_EVERY):
            why = dead(url)
            looks = looks + 1 if why else 0
            if why and looks == LOOKS:
                with lock:  # never after the block
                    if not over.is_set():
                        found.append(why)
                        signal.pthread_kill(main, _INTERRUPT)
                return

    def interrupt(signum: int, frame: object) -> None:
        raise EngineUnavailable(
            f"the server {url!r} died while it was given new weights ({found[0]}): see the server's log, "
            "then resume with --resume"
        )

    before = signal.signal(_INTERRUPT, interrupt)
    thread = threading.Thread(target=look, name="swe-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with lock:
            over.set()
        signal.signal(_INTERRUPT, before)


@contextmanager
def not_left_paused(url: str) -> Iterator[None]:
    """Let the server go on where the block, a weight sync, is broken off, as by Ctrl-C. TRL does it at the
    end of a whole one only.

    Args:
        url: Its base URL, without `/v1`.
    """
    try:
        yield
    except EngineUnavailable:  # it is dead
        raise
    except BaseException:  # whatever it was
        unpause(url, _PARTING)
        raise


def unpause(url: str, timeout: float = _UNPAUSE) -> None:
    """Let the server go on if it is paused. What is wrong with it otherwise is for others to say.

    Args:
        url: Its base URL, without `/v1`.
        timeout: Seconds for each of: to connect, to send the request, and to be answered.
    """
    with suppress(httpx.HTTPError):
        httpx.post(f"{url}/resume", timeout=timeout, trust_env=False)


def dead(url: str) -> str | None:
    """Why the server is dead, in words; None where it is not, or may only be busy.

    Args:
        url: Its base URL, without `/v1`.
    """
    try:
        status = httpx.get(f"{url}/health", timeout=_TIMEOUT, trust_env=False).status_code
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return "it accepts no connection"
    except httpx.TransportError:
        return None
    return f"/health says {status}" if status in _GONE else None
