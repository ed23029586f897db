"""The event loop of a run: frozen objects, ignored defects, and signals."""

from __future__ import annotations

import asyncio
import gc
import signal

import anyio
import pytest

from swe_core.system.event_loop import ending_signals, run, settled


def fail(hidden: list[int]) -> None:
    with settled():
        hidden.append(gc.get_freeze_count())
        raise ValueError("odd")


@pytest.mark.slow
def test_frozen_objects_are_restored_also_after_a_failure() -> None:
    """Some libraries report objects that are still frozen when the process exits."""
    hidden = [gc.get_freeze_count()]
    with pytest.raises(ValueError, match="odd"):
        fail(hidden)
    assert hidden[1] > hidden[0]
    assert gc.get_freeze_count() == 0


def test_only_the_known_anyio_defect_is_silenced(caplog: pytest.LogCaptureFixture) -> None:
    async def flawed() -> None:
        loop = asyncio.get_running_loop()
        cancelled = loop.create_future()
        cancelled.cancel()
        loop.call_soon(cancelled.set_result, None)
        await anyio.sleep(0.01)
        assert caplog.records == []
        loop.call_soon(lambda: 1 / 0)
        await anyio.sleep(0.01)

    run(flawed)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("hangup", "ends"), [(signal.SIG_DFL, [signal.SIGHUP]), (signal.SIG_IGN, [])], ids=["as it is", "nohup"]
)
def test_ignored_sighup_stays_ignored(hangup: signal.Handlers, ends: list[signal.Signals]) -> None:
    before = signal.signal(signal.SIGHUP, hangup)
    try:
        assert ending_signals() == [signal.SIGINT, signal.SIGTERM, *ends]
    finally:
        signal.signal(signal.SIGHUP, before)
