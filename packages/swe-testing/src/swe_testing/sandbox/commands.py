"""Commands: exit codes, input and output, and kills."""

from __future__ import annotations

import os
import secrets
import time
import tracemalloc

import anyio
import pytest

from swe_core.api.sandbox import HOME_DIR, ExecResult, Sandbox, SandboxProvider, SandboxSpec
from swe_core.errors import SandboxTimeout
from swe_testing.sandbox.base import PATIENCE, SandboxSuite, drain, runs, unique_seconds, until_runs


class CommandTests(SandboxSuite):
    """`start`, `exec`, `kill`, `kill_all`."""

    @pytest.mark.parametrize(
        ("script", "code"),
        [("true", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
    )
    async def test_exit_code(self, sandbox: Sandbox, script: str, code: int) -> None:
        """128+N where signal N killed the command."""
        assert (await sandbox.exec(["sh", "-c", script])).exit_code == code

    async def test_program_not_found(self, sandbox: Sandbox) -> None:
        """A missing program is a command that failed with 127, not an exception."""
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        assert (await sandbox.exec(["/no/such/program"])).exit_code == 127

    async def test_program_not_executable(self, sandbox: Sandbox) -> None:
        """A file that cannot be executed gives 126."""
        await sandbox.write(f"{HOME_DIR}/data", b"no program", mode=0o644)
        assert (await sandbox.exec([f"{HOME_DIR}/data"])).exit_code == 126

    async def test_streams_are_kept_apart(self, sandbox: Sandbox) -> None:
        done = await sandbox.exec(["sh", "-c", "echo out; echo err >&2"])
        assert done == ExecResult(0, b"out\n", b"err\n")

    async def test_stdin(self, sandbox: Sandbox) -> None:
        data = os.urandom(2**20) + bytes(range(256))
        assert (await sandbox.exec(["cat"], stdin=data, timeout=PATIENCE)).stdout == data
        assert (await sandbox.exec(["cat"], stdin=b"", timeout=PATIENCE)).stdout == b""

    async def test_missing_stdin_is_empty(self, sandbox: Sandbox) -> None:
        """A reader sees the end at once instead of waiting."""
        done = await sandbox.exec(["cat"], timeout=PATIENCE)
        assert (done.exit_code, done.stdout) == (0, b"")

    async def test_unread_stdin(self, sandbox: Sandbox) -> None:
        """A command that ignores a long stdin ends well."""
        assert (await sandbox.exec(["true"], stdin=bytes(2**20), timeout=PATIENCE)).exit_code == 0

    async def test_arguments_arrive_as_they_are(self, sandbox: Sandbox) -> None:
        """No shell is involved: quotes, globs, newlines, other scripts and the empty string survive."""
        arguments = ["ünï → 🎉", "a  b", "*", "$HOME", "'\"\\", "line\nbreak", "", "-n"]
        done = await sandbox.exec(["printf", "%s\\0", *arguments])
        assert done.stdout == "".join(f"{one}\0" for one in arguments).encode()

    async def test_long_argument(self, sandbox: Sandbox) -> None:
        """One argument of 100 KB."""
        done = await sandbox.exec(["sh", "-c", 'printf %s "$1" | wc -c', "sh", "x" * 100_000])
        assert done.text.strip() == "100000"

    async def test_environment(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        """`spec.env` is for all commands, `env` for one, and it wins; HOME is private and writable."""
        spec = spec.model_copy(update={"env": {**spec.env, "OF_SPEC": "1", "BOTH": "spec"}})
        async with provider.open(spec) as sandbox:
            done = await sandbox.exec(["env"], env={"BOTH": "command", "ODD": "a=b c\n'\""})
            assert {"OF_SPEC=1", "BOTH=command"} <= set(done.text.splitlines())
            assert "ODD=a=b c\n'\"\n" in done.text
            plain = (await sandbox.exec(["env"])).text.splitlines()
            assert "BOTH=spec" in plain
            assert not any(line.startswith("ODD=") for line in plain)
            script = f'touch {HOME_DIR}/private && touch "$HOME/home" && command -v python3'
            assert (await sandbox.exec(["sh", "-c", script])).exit_code == 0

    async def test_host_environment_does_not_leak(
        self, provider: SandboxProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Keys in the host's environment stay outside."""
        secret = secrets.token_hex(8)
        monkeypatch.setenv("SWE_TEST_API_KEY", secret)
        async with provider.open(spec) as sandbox:
            script = "env; cat /proc/[0-9]*/environ 2>/dev/null" if self.isolates else "env"
            assert secret not in (await sandbox.exec(["sh", "-c", script])).text

    async def test_working_directory(self, sandbox: Sandbox) -> None:
        """`spec.workdir` unless a command asks for another."""
        assert (await sandbox.exec(["pwd"], cwd="/usr")).stdout == b"/usr\n"
        assert (await sandbox.exec(["sh", "-c", "echo yes >made-here"])).exit_code == 0
        assert await sandbox.read(f"{sandbox.spec.workdir}/made-here") == b"yes\n"

    async def test_output_comes_while_the_command_runs(self, sandbox: Sandbox) -> None:
        """The first line arrives before the command may print the second."""
        script = "echo one; until [ -e go ]; do sleep 0.02; done; echo two"
        process = await sandbox.start(["sh", "-c", script])
        chunks: list[bytes] = []
        with anyio.fail_after(PATIENCE):
            async for stream, chunk in process.output():
                assert stream == "stdout"
                if not chunks:
                    await sandbox.write(f"{sandbox.spec.workdir}/go", b"")
                chunks.append(chunk)
        assert chunks == [b"one\n", b"two\n"]
        assert await process.wait() == 0

    async def test_big_output_streams(self, sandbox: Sandbox) -> None:
        """100 MB pass through without being kept."""
        process = await sandbox.start(["head", "-c", "100000000", "/dev/zero"])
        total = 0
        tracemalloc.start()
        try:
            async for _, chunk in process.output():
                total += len(chunk)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (await process.wait(), total) == (0, 100_000_000)
        assert peak < 16 * 2**20

    async def test_output_is_cut(self, sandbox: Sandbox) -> None:
        """The start of a long stream is kept, the rest is read and dropped."""
        script = "echo start; head -c 5000000 /dev/zero; echo short >&2; exit 4"
        done = await sandbox.exec(["sh", "-c", script], max_output=1000, timeout=PATIENCE)
        assert done == ExecResult(4, b"start\n" + bytes(994), b"short\n", truncated=True)
        whole = await sandbox.exec(["echo", "123"], max_output=4)
        assert whole == ExecResult(0, b"123\n", b"")

    async def test_last_words_are_not_lost(self, sandbox: Sandbox) -> None:
        """Output right before the end of a command always arrives."""
        for _ in range(20):
            done = await sandbox.exec(["sh", "-c", "head -c 50000 /dev/zero; echo e >&2"])
            assert (len(done.stdout), done.stderr) == (50_000, b"e\n")

    async def test_timeout_kills_the_whole_tree(self, sandbox: Sandbox) -> None:
        """Children, grandchildren, and processes that left session and parent."""
        marks = [unique_seconds() for _ in range(3)]
        script = f"(setsid sleep {marks[0]} &); setsid sh -c 'sleep {marks[1]}' & sleep {marks[2]}"
        started = time.monotonic()
        with pytest.raises(SandboxTimeout, match="1 s") as caught:
            await sandbox.exec(["sh", "-c", script], timeout=1)
        assert isinstance(caught.value, TimeoutError)
        assert time.monotonic() - started < PATIENCE
        for mark in marks:
            assert not await runs(sandbox, mark)

    async def test_timeout_of_a_command_that_closed_its_streams(self, sandbox: Sandbox) -> None:
        """Closed streams are not the end of a command."""
        with pytest.raises(SandboxTimeout):
            await sandbox.exec(["sh", "-c", "exec >&- 2>&-; sleep 100"], timeout=0.5)

    async def test_cancellation_kills(self, sandbox: Sandbox) -> None:
        """A cancelled `exec` leaves nothing running."""
        mark = unique_seconds()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.exec, ["sh", "-c", f"setsid sleep {mark} & wait"])
            await until_runs(sandbox, mark)
            tasks.cancel_scope.cancel()
        assert not await runs(sandbox, mark)

    async def test_kill(self, sandbox: Sandbox) -> None:
        """`kill` ends one command with all its children and no other one; a second call does nothing."""
        mark, other = unique_seconds(), unique_seconds()
        bystander = await sandbox.start(["sleep", other])
        process = await sandbox.start(["sh", "-c", f"setsid sleep {mark} & wait"])
        await until_runs(sandbox, mark)
        await process.kill()
        assert await process.wait() == 137
        assert await drain(process) == b""
        await process.kill()
        assert not await runs(sandbox, mark)
        assert await runs(sandbox, other)
        await bystander.kill()
        assert not await runs(sandbox, other)

    async def test_background_child_survives(self, sandbox: Sandbox) -> None:
        """A child that keeps the streams open delays nothing, and dies with `kill_all`."""
        mark = unique_seconds()
        done = await sandbox.exec(["sh", "-c", f"sleep {mark} & echo started"], timeout=PATIENCE)
        assert done == ExecResult(0, b"started\n", b"")
        assert await runs(sandbox, mark)
        await sandbox.kill_all()
        assert not await runs(sandbox, mark)

    async def test_kill_all_ends_commands(self, sandbox: Sandbox) -> None:
        """Callers that wait for a killed command get its end."""
        process = await sandbox.start(["sleep", unique_seconds()])
        await sandbox.kill_all()
        with anyio.fail_after(PATIENCE):
            assert await process.wait() == 137
        assert (await sandbox.exec(["echo", "usable"])).stdout == b"usable\n"

    async def test_many_commands_at_once(self, sandbox: Sandbox) -> None:
        said: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            said[number] = (await sandbox.exec(["sh", "-c", f"sleep 0.2; echo {number}"])).stdout

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(ask, number)
        assert said == {number: b"%d\n" % number for number in range(20)}
