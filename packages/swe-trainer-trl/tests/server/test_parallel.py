"""Requests to several servers at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from swe_trainer_trl.server.parallel import in_parallel


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_calls_run_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=60)

    def meet(number: int) -> int:
        together.wait()
        return number

    assert in_parallel([partial(meet, number) for number in range(3)]) == [0, 1, 2]


def test_single_call_runs_in_this_thread() -> None:
    assert in_parallel([threading.get_ident]) == [threading.get_ident()]
    assert in_parallel([]) == []


def test_first_error_is_raised_when_all_calls_have_ended() -> None:
    failed, ended = threading.Event(), []

    def first() -> None:
        failed.set()
        raise ValueError("first")

    def second() -> None:
        failed.wait(60)
        ended.append(True)
        raise KeyError("second")

    def third() -> None:
        failed.wait(60)
        ended.append(True)

    with pytest.raises(ValueError, match="first"):
        in_parallel([second, third, first])
    assert ended == [True, True]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, which it does not in a background job of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_signal_interrupts_the_wait(gate: threading.Event) -> None:
    """As of a server that never answers."""
    main = threading.get_ident()

    def act() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        gate.wait(60)

    with pytest.raises(KeyboardInterrupt):
        in_parallel([act, partial(gate.wait, 60)])
