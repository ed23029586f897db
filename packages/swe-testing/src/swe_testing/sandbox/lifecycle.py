"""Opening and closing: concurrency, failures, and leftovers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import anyio
import pytest

from swe_core.api.contracts import notes_of, reap, unfit
from swe_core.api.sandbox import (
    HOME_DIR,
    Network,
    Process,
    Sandbox,
    SandboxEntry,
    SandboxProvider,
    SandboxSpec,
    SelectiveProvider,
)
from swe_core.errors import PolicyRefused, SandboxError
from swe_testing.sandbox.base import PATIENCE, SandboxSuite, runs, unique_seconds, until_runs

SLACK = timedelta(seconds=2)
"""Most seconds by which a provider's clock may be off; some report whole seconds."""


class LifecycleTests(SandboxSuite):
    """`open`, `refuse`, `reap`, `notes`."""

    async def test_closing_leaves_nothing(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """Also with commands running, and with orphans."""
        assert list(self.leftovers(provider)) == []
        async with provider.open(spec) as sandbox:
            mark = unique_seconds()
            await sandbox.start(["sh", "-c", f"(setsid sleep {mark} &); sleep 1000"])
            await until_runs(sandbox, mark)
            assert len(self.leftovers(provider)) > 0
        assert list(self.leftovers(provider)) == []

    async def test_contract(self, provider: SandboxProvider) -> None:
        """The provider has every method, and what they return has the types of the contract."""
        assert unfit(provider, "sandbox") == ""
        notes_of(provider)
        assert all(isinstance(entry, SandboxEntry) for entry in await provider.list())
        assert await reap(provider) >= 0

    async def test_error_in_the_body(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """The error is raised unchanged, and the sandbox is closed."""
        with pytest.raises(KeyError, match="mine"):  # noqa: PT012  # the whole body is the test
            async with provider.open(spec) as sandbox:
                await sandbox.start(["sleep", "1000"])
                raise KeyError("mine")
        assert list(self.leftovers(provider)) == []

    async def test_cancellation(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """Closing is shielded."""
        with anyio.CancelScope() as scope:
            async with provider.open(spec) as sandbox:
                await sandbox.start(["sleep", "1000"])
                scope.cancel()
                await anyio.sleep(PATIENCE)
        assert scope.cancelled_caught
        assert list(self.leftovers(provider)) == []

    async def test_serves_a_shielded_scope_to_its_end(
        self, provider: SandboxProvider, spec: SandboxSpec
    ) -> None:
        """Teardown kills commands, and may run some, after a cancellation around the sandbox."""
        mark = unique_seconds()
        seen: list[object] = []

        async def tear_down(sandbox: Sandbox, process: Process) -> None:
            try:
                seen.append((await sandbox.exec(["cat"], stdin=b"still here", timeout=PATIENCE)).stdout)
                await process.kill()
                seen.append(await process.wait())
                seen.append(await runs(sandbox, mark))
            except SandboxError as error:  # which the cancellation would replace
                seen.append(error)

        with anyio.CancelScope() as scope:
            async with provider.open(spec) as sandbox:
                process = await sandbox.start(["sleep", mark])
                await until_runs(sandbox, mark)
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await tear_down(sandbox, process)
        assert seen == [b"still here", 137, False]
        assert list(self.leftovers(provider)) == []

    @pytest.mark.parametrize("delay", [0.0, 0.01, 0.05, 0.1])
    async def test_cancellation_while_opening(
        self, provider: SandboxProvider, spec: SandboxSpec, delay: float
    ) -> None:
        """An interruption at any moment leaves nothing."""
        with anyio.move_on_after(delay):
            async with provider.open(spec):
                await anyio.sleep(PATIENCE)
        assert list(self.leftovers(provider)) == []

    async def test_sixteen_at_once(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """They open together, do not see each other, and close together."""
        ids: list[str] = []
        here = anyio.Event()

        async def use(number: int) -> None:
            async with provider.open(spec) as sandbox:
                ids.append(sandbox.id)
                await sandbox.write(f"{HOME_DIR}/number", b"%d" % number)
                if len(ids) == 16:
                    here.set()
                await here.wait()
                assert await sandbox.read(f"{HOME_DIR}/number") == b"%d" % number

        with anyio.fail_after(4 * PATIENCE):
            async with anyio.create_task_group() as tasks:
                for number in range(16):
                    tasks.start_soon(use, number)
        assert len(set(ids)) == 16
        assert list(self.leftovers(provider)) == []

    async def test_code_inside_cannot_end_the_sandbox(self, sandbox: Sandbox) -> None:
        """Process 1 is out of reach."""
        if not self.isolates:
            pytest.skip("this provider does not isolate")
        await sandbox.exec(["sh", "-c", "kill -9 1; kill -STOP 1; kill 1"], timeout=PATIENCE)
        assert (await sandbox.exec(["echo", "alive"], timeout=PATIENCE)).stdout == b"alive\n"

    async def test_lists_what_is_open(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """As this process's own, under the sandbox's id, while it is open."""
        before = datetime.now(UTC)
        async with provider.open(spec) as sandbox:
            (entry,) = [entry for entry in await provider.list() if entry.id == sandbox.id]
            assert (entry.owner, entry.flavor) == ("alive", sandbox.flavor)
            if entry.created is not None:
                assert before - SLACK <= entry.created <= datetime.now(UTC) + SLACK
        assert sandbox.id not in {entry.id for entry in await provider.list()}

    async def test_reap_spares_the_living(self, provider: SandboxProvider, sandbox: Sandbox) -> None:
        """Sandboxes of a running process are not touched."""
        await provider.reap()
        assert (await sandbox.exec(["echo", "alive"])).stdout == b"alive\n"
        await provider.reap()  # the count includes sandboxes of others that ended meanwhile
        assert sandbox.id in {entry.id for entry in await provider.list()}

    @pytest.mark.parametrize("network", get_args(Network))
    async def test_refuses_beforehand_what_it_refuses(
        self, provider: SandboxProvider, spec: SandboxSpec, network: str
    ) -> None:
        """`refuse` refuses exactly the network policies that `open` refuses."""
        asked = spec.model_copy(update={"network": network})
        of_all = SandboxSpec(**asked.model_dump(exclude={"image", "repository", "workdir", "assets"}))
        selective = provider if isinstance(provider, SelectiveProvider) else None
        refused = ""
        try:
            async with provider.open(asked):
                pass
        except PolicyRefused as error:
            refused = str(error)
        if refused:
            assert selective is not None, f"give your provider a method 'refuse' that says first: {refused}"
            with pytest.raises(PolicyRefused):
                selective.check_supported(of_all)
        elif selective is not None:
            selective.check_supported(of_all)

    def test_notes(self, provider: SandboxProvider) -> None:
        """Sentences, each about something that is not isolated."""
        for note in provider.notes():
            assert note.strip().endswith(".")
