"""The base class of processes: reading, waiting and killing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.sandbox import Stream
from swe_core.errors import SandboxBroken, SandboxDied
from swe_core.sandboxing.process import BUFFERED, FedProcess

PATIENCE = 60.0
"""Seconds until a test that hangs fails."""


class Scripted(FedProcess):
    """Says what a script says; a kill ends it with 137 where the script waits for that."""

    def __init__(self, script: Callable[[Scripted], Awaitable[int]]) -> None:
        super().__init__("box")
        self._script = script
        self.killed = anyio.Event()
        self.condemned_first = False

    async def follow(self) -> int:
        return await self._script(self)

    async def kill_tree(self) -> None:
        self.condemned_first = self.condemned
        self.killed.set()


def says(chunks: list[tuple[Stream, bytes]], code: int = 0) -> Callable[[Scripted], Awaitable[int]]:
    async def script(process: Scripted) -> int:
        for stream, chunk in chunks:
            await process.put(stream, chunk)
        return code

    return script


def numbered(count: int) -> list[tuple[Stream, bytes]]:
    return [("stderr" if number % 3 else "stdout", b"%d" % number) for number in range(count)]


@asynccontextmanager
async def fed(process: FedProcess) -> AsyncIterator[FedProcess]:
    """As a sandbox does: a task follows the process, and is cancelled at the end."""
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.run)
            yield process
            tasks.cancel_scope.cancel()


@given(count=st.integers(0, 3 * BUFFERED), wanted=st.integers(1, 3 * BUFFERED), code=st.integers(0, 255))
def test_reader_may_stop_while_the_command_runs(count: int, wanted: int, code: int) -> None:
    chunks = numbered(count)

    async def check() -> None:
        async with fed(Scripted(says(chunks, code))) as process:
            got: list[tuple[Stream, bytes]] = []
            output = process.output()
            async for chunk in output:
                got.append(chunk)
                if len(got) == wanted:
                    break
            await output.aclose()
            assert got == chunks[:wanted]
            assert await process.wait() == code
            assert process.over

    anyio.run(check)


async def test_output_beyond_the_buffer_waits_for_its_reader() -> None:
    put = 0

    async def script(process: Scripted) -> int:
        nonlocal put
        for stream, chunk in numbered(BUFFERED + 5):
            await process.put(stream, chunk)
            put += 1
        return 0

    async with fed(Scripted(script)) as process:
        await anyio.wait_all_tasks_blocked()
        assert (put, process.over) == (BUFFERED, False)
        output = process.output()
        assert await anext(output) == ("stdout", b"0")
        await anyio.wait_all_tasks_blocked()
        assert (put, process.over) == (BUFFERED + 1, False)
        assert [chunk async for chunk in output] == numbered(BUFFERED + 5)[1:]
        assert (put, process.over) == (BUFFERED + 5, True)


async def until_killed(process: Scripted) -> int:
    for stream, chunk in numbered(2 * BUFFERED):
        await process.put(stream, chunk)
    await process.killed.wait()
    await process.put("stderr", b"Killed")
    return 137


async def test_kill_discards_unread_output() -> None:
    """A command that waits for its reader must not hang."""
    process = Scripted(until_killed)
    async with fed(process):
        await anyio.wait_all_tasks_blocked()
        await process.kill()
        assert await process.wait() == 137
        assert [chunk async for chunk in process.output()] == []
        assert process.condemned_first
        await process.kill()


async def test_kill_leaves_buffered_output_to_its_reader() -> None:
    async with fed(Scripted(until_killed)) as process:
        output = process.output()
        got = [await anext(output)]
        await process.kill()
        got += [chunk async for chunk in output]
        assert got == [*numbered(2 * BUFFERED), ("stderr", b"Killed")]
        assert await process.wait() == 137


async def test_error_is_raised_after_the_output_each_time() -> None:
    async def script(process: Scripted) -> int:
        await process.put("stdout", b"last words")
        raise SandboxBroken("it broke")

    async with fed(Scripted(script)) as process:
        output = process.output()
        assert await anext(output) == ("stdout", b"last words")
        with pytest.raises(SandboxBroken, match="it broke"):
            await anext(output)
        for _ in range(2):
            with pytest.raises(SandboxBroken, match="it broke"):
                await process.wait()


async def test_output_has_one_reader() -> None:
    async with fed(Scripted(says([("stdout", b"one")]))) as process:
        assert [chunk async for chunk in process.output()] == [("stdout", b"one")]
        with pytest.raises(RuntimeError, match="only once"):
            await anext(process.output())
        assert await process.wait() == 0


async def test_closed_sandbox_ends_the_process() -> None:
    async with fed(Scripted(until_killed)) as process:
        await anyio.wait_all_tasks_blocked()
    assert process.over
    with pytest.raises(SandboxDied, match="'box' was closed"):
        await process.wait()
