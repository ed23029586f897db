"""The task group that outlives the cancellation around it; needs no Docker Engine."""

from __future__ import annotations

from unittest.mock import AsyncMock

import anyio
import anyio.lowlevel
import pytest

from swe_core.sandboxing.background import background_task_group

PATIENCE = 60.0


async def test_background_tasks_outlive_outer_cancellation() -> None:
    """Both earlier tasks and those started in a shielded scope during the cancellation."""
    told: list[str] = []

    async def helper(name: str, go_on: anyio.Event) -> None:
        try:
            await go_on.wait()
            await anyio.lowlevel.checkpoint_if_cancelled()
            told.append(f"{name} went on")
            await anyio.sleep_forever()
        finally:
            told.append(f"{name} ended")

    with anyio.CancelScope() as scope:
        async with background_task_group() as tasks:
            go_on = anyio.Event()
            tasks.start_soon(helper, "first", go_on)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(helper, "second", go_on)
                go_on.set()
                with anyio.fail_after(PATIENCE):
                    await anyio.wait_all_tasks_blocked()
                told.append("body ended")
    assert told[:3] == ["first went on", "second went on", "body ended"]
    assert sorted(told[3:]) == ["first ended", "second ended"]


async def test_error_of_a_background_task_is_raised_on_exit() -> None:
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012  # the whole body is the test
        async with background_task_group() as tasks:
            tasks.start_soon(AsyncMock(side_effect=KeyError("theirs")))
            await anyio.wait_all_tasks_blocked()
    assert [str(error) for error in raised.value.exceptions] == ["'theirs'"]


async def test_cancelled_opening_leaves_no_task() -> None:
    before = len(anyio.get_running_tasks())
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with background_task_group():
            pytest.fail("it opened")
    assert len(anyio.get_running_tasks()) == before
