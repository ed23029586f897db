"""What signals do to a training that starts: nothing swallows them, and the second one lets nothing hang."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from swe_trainer_trl import interrupts
from swe_trainer_trl.interrupts import Interrupts

PATIENCE = 60.0


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set where the process would end."""
    event = threading.Event()
    monkeypatch.setattr(interrupts, "_exit_now", event.set)
    monkeypatch.setattr(interrupts, "_HURRY", 0.0)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    yield event
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_first_signal_is_raised_and_a_library_that_swallows_it_changes_nothing(
    ended: threading.Event,
) -> None:
    with Interrupts() as found:
        found.check()
        with suppress(BaseException):  # as some imports do
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            found.check()
        assert found.count == 1
    assert not ended.is_set()


@pytest.mark.parametrize("hurry", [0.0, PATIENCE])
def test_second_signal_ends_what_hangs(
    ended: threading.Event, monkeypatch: pytest.MonkeyPatch, hurry: float
) -> None:
    """And not what ends in time."""
    monkeypatch.setattr(interrupts, "_HURRY", hurry)
    with Interrupts() as found:
        for number in (signal.SIGINT, signal.SIGINT):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        assert hurry or ended.wait(PATIENCE)
    if found._end.is_alive():
        found._end.join()
    assert ended.is_set() == (not hurry)


def test_signals_are_counted_where_no_handler_of_ours_runs(ended: threading.Event) -> None:
    """The main thread is in a library that runs no Python, or has set a handler of its own."""
    with Interrupts() as found:
        signal.signal(signal.SIGINT, lambda *_: None)
        for _ in range(2):
            assert not ended.is_set()
            signal.raise_signal(signal.SIGINT)
        assert ended.wait(PATIENCE)
        assert found.count == 0


class Interrupted:
    """Its destructor is interrupted, where Python raises nothing."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # here the handler runs
            pass


@pytest.mark.slow
def test_interrupt_in_a_destructor_is_raised_all_the_same(
    ended: threading.Event, capfd: pytest.CaptureFixture[str]
) -> None:
    def destroy() -> None:
        thing = Interrupted()
        del thing
        gc.collect()
        threading.Event().wait(PATIENCE)

    with Interrupts() as found, pytest.raises(KeyboardInterrupt):
        destroy()
    assert found.count == 1
    assert "Traceback" not in capfd.readouterr().err
