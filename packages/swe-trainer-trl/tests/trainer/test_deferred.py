"""An error of a weight sync waits until the trainer processes have met."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from swe_core.errors import EngineError
from swe_trainer_trl.server.health import INTERRUPT
from swe_trainer_trl.trainer.deferred import Deferred


class Transfer:
    """Notes its calls, and fails in one of them."""

    weights = 3

    def __init__(self, failing: str | None = None) -> None:
        self.calls: list[str] = []
        self._failing = failing

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self._failing:
            raise EngineError(f"{name} failed")

    def pause(self) -> None:
        self._note("pause")

    def send_weights(self, iterator: Iterator[Any]) -> None:
        next(iterator)
        self._note("send")
        list(iterator)

    def load_lora_adapter(self, name: str) -> None:
        self._note(f"load {name}")

    def resume(self) -> None:
        self._note("resume")


def sync(deferred: Deferred) -> list[int]:
    """Do as TRL does, and return the weights that were gathered from all processes."""
    gathered: list[int] = []

    def gather() -> Iterator[tuple[str, Any]]:
        for number in range(3):
            gathered.append(number)
            yield f"weight-{number}", number

    deferred.pause()
    deferred.send_weights(gather())
    try:
        deferred.resume()
    finally:
        assert gathered == [0, 1, 2]
    return gathered


@contextmanager
def handling(*urls: str) -> Iterator[None]:
    """In place of `watched`: an error at its signal."""

    def interrupt(number: int, frame: object) -> None:
        raise EngineError("the server died")

    before = signal.signal(INTERRUPT, interrupt)
    try:
        yield
    finally:
        signal.signal(INTERRUPT, before)


def test_death_that_is_noticed_while_a_weight_is_gathered_loses_none(monkeypatch):
    """The signal of the watch does not end the generator, whose other steps would be missing."""

    class Receiving(Transfer):
        def send_weights(self, iterator: Iterator[Any]) -> None:
            list(iterator)

    def gather() -> Iterator[tuple[str, Any]]:
        for number in range(5):
            if number == 2:
                signal.pthread_kill(threading.get_ident(), INTERRUPT)
            gathered.append(number)
            yield f"weight-{number}", number

    monkeypatch.setattr("swe_trainer_trl.trainer.deferred.watched", handling)
    gathered: list[int] = []
    one = deferred(Receiving())
    one.pause()
    one.send_weights(gather())
    assert gathered == [0, 1, 2, 3, 4]
    with pytest.raises(EngineError, match="the server died"):
        one.resume()


def deferred(transfer: Transfer) -> Deferred:
    return Deferred(transfer, lambda: ["http://127.0.0.1:9"])


def test_sync_without_an_error_is_as_before():
    transfer = Transfer()
    sync(deferred(transfer))
    assert transfer.calls == ["pause", "send", "resume"]
    assert deferred(transfer).weights == 3


@pytest.mark.parametrize(("failing", "calls"), [("pause", ["pause"]), ("send", ["pause", "send"])])
def test_error_comes_after_all_weights_are_gathered(failing, calls):
    transfer = Transfer(failing)
    one = deferred(transfer)
    with pytest.raises(EngineError, match=f"{failing} failed"):
        sync(one)
    assert transfer.calls == calls
    transfer._failing = None
    sync(one)  # begins without the error
    assert transfer.calls == [*calls, "pause", "send", "resume"]
    transfer._failing = "pause"
    one.pause()
    with pytest.raises(EngineError, match="pause failed"):
        one.load_lora_adapter("v2")
    assert transfer.calls[-1] == "pause"  # no adapter is loaded after an error
