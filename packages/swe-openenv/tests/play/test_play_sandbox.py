"""The sandbox `openenv` at servers of many kinds: their tools, their limits, and their failures."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from swe_core.api.sandbox import Asset, Sandbox, SandboxSpec
from swe_core.errors import PolicyRefused, SandboxBroken, SandboxDied, SandboxError
from swe_openenv.play import sandbox as module
from swe_openenv.play.config import PlaySandboxConfig
from swe_openenv.play.provider import PlayProvider
from swe_openenv.play.relay_client import PullTransport
from swe_testing.sandbox.base import python
from swe_testing.sandbox.network import hello
from swe_testing.sandbox.network import serving as endpoint_serving

from .playground import Played, Playground, plain, playing

pytestmark = pytest.mark.anyio

Shape = Callable[[Sandbox, str], Awaitable[Any]]


def provider(**settings: Any) -> PlayProvider:
    return PlayProvider(PlaySandboxConfig(**{"internet": True, **settings}))


@asynccontextmanager
async def opened(server: Played, **settings: Any) -> AsyncIterator[Sandbox]:
    async with provider(**settings).open(SandboxSpec(image=server.image())) as sandbox:
        yield sandbox


async def refusal(server: Played, **settings: Any) -> str:
    """What opening a sandbox raises: one line. It leaves no episode."""
    with pytest.raises(SandboxError) as caught:
        async with opened(server, **settings):
            pass
    assert "\n" not in str(caught.value)
    assert server.ground.open == set()
    return str(caught.value)


def keeping(count: int) -> Shape:
    """A tool that cuts its output in the middle, as many do."""

    async def shell(sandbox: Sandbox, command: str) -> str:
        said = await plain(sandbox, command)
        half = count // 2
        return said if len(said) <= count else f"{said[:half]}\n[{len(said)} characters]\n{said[-half:]}"

    return shell


def taking(count: int) -> Shape:
    """A tool that refuses long commands."""

    async def shell(sandbox: Sandbox, command: str) -> str:
        if len(command) > count:
            raise ValueError("the command is too long")
        return await plain(sandbox, command)

    return shell


async def terminal(sandbox: Sandbox, command: str) -> str:
    """A tool that shows what a terminal of 80 columns shows, command and all."""
    said = f"$ {command}\n{await plain(sandbox, command)}\n$ "
    return "\r\n".join(said[at : at + 80] for at in range(0, len(said), 80))


async def structured(sandbox: Sandbox, command: str) -> dict[str, Any]:
    """A tool with streams apart."""
    done = await sandbox.exec(["sh", "-c", command])
    return {"exit_code": done.exit_code, "stdout": done.text, "stderr": done.stderr.decode()}


async def in_json(sandbox: Sandbox, command: str) -> str:
    """A tool whose text is JSON."""
    return json.dumps(await structured(sandbox, command))


@pytest.mark.parametrize(
    "shell",
    [
        *(terminal, in_json, keeping(9_000), taking(13_000)),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (structured, keeping(30_000), taking(30_000))
        ),
    ],
)
async def test_tools_of_many_kinds(shell: Shape) -> None:
    """Bytes, streams, exit codes and long arguments survive them all."""
    data = os.urandom(60_000)
    with playing(Playground(shell)) as server:
        async with opened(server) as sandbox:
            await sandbox.write("/tmp/swe-home/data", data)
            script = 'cat /tmp/swe-home/data; printf %s "$1" | wc -c >&2; exit 7'
            done = await sandbox.exec(["sh", "-c", script, "sh", "x" * 40_000])
            assert (done.exit_code, done.stdout, done.stderr.strip()) == (7, data, b"40000")


async def no_shell(sandbox: Sandbox, command: str) -> str:
    """A tool that evaluates something else."""
    return "NameError: name 'sh' is not defined"


@pytest.mark.parametrize(
    ("shell", "why"),
    [
        (no_shell, "does not hold the output"),
        (keeping(500), "changed on the way"),
        (taking(2000), "too long"),
    ],
)
async def test_tool_that_runs_no_commands_in_full_is_named(shell: Shape, why: str) -> None:
    with playing(Playground(shell)) as server:
        said = await refusal(server)
    assert "'bash'" in said
    assert why in said
    assert "sandbox.openenv.tool" in said


async def test_absent_tool_is_named(played: Played) -> None:
    assert "its tools: 'bash', 'submit'" in await refusal(played, tool="run_code")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": "python:3.12"}, "'python:3.12'"),
        ({"image": None}, "URL/SPLIT/INDEX"),
        ({"repository": Path("/")}, "brings its own"),
        ({"workdir": "/no/such/place"}, "no directory /no/such/place"),
    ],
)
async def test_specs_that_no_environment_can_fulfil(played: Played, change: dict[str, Any], why: str) -> None:
    spec = SandboxSpec(image=played.image()).model_copy(update=change)
    with pytest.raises(SandboxError, match=why):
        async with provider().open(spec):
            pass


async def test_network_policy_needs_consent(played: Played) -> None:
    before = len(played.ground.resets)
    with pytest.raises(PolicyRefused, match=r"sandbox\.openenv\.internet"):
        async with provider(internet=False).open(SandboxSpec(image=played.image())):
            pass
    assert len(played.ground.resets) == before


async def test_absent_server_is_named() -> None:
    with playing(Playground()) as server:
        pass
    assert f"{server.url!r} cannot be reached" in await refusal(server)


async def test_full_server_is_waited_for() -> None:
    """A place that becomes free is taken at once, so a run with more rollouts than places ends well."""
    with playing(Playground(), most=1) as server:
        done: list[int] = []

        async def use(number: int) -> None:
            async with opened(server) as sandbox:
                await sandbox.exec(["true"])
                assert len(server.ground.open) == 1
                done.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(use, number)
        assert sorted(done) == [0, 1, 2]


async def test_full_server_is_named_in_the_end() -> None:
    with playing(Playground(), most=1) as server:
        async with opened(server):
            with pytest.raises(SandboxError, match="lower --concurrency"):
                async with opened(server, wait=0.2):
                    pass


async def test_server_that_vanishes_is_the_death_of_the_sandbox() -> None:
    """Also for a command that runs. A new environment on the same address is not taken for the old one."""
    with playing(Playground()) as server:
        context = opened(server)
        sandbox = await context.__aenter__()
        process = await sandbox.start(["sleep", "1000"])
        assert isinstance(sandbox, module.PlaySandbox)
        await sandbox.episode._client._ws.close()
        with pytest.raises(SandboxDied, match="is over"):
            await sandbox.exec(["true"])
        with pytest.raises(SandboxDied, match="is over"):
            await process.wait()
        assert len(server.ground.resets) == 1
        await context.__aexit__(None, None, None)


@contextmanager
def releasing(over: threading.Event) -> Iterator[None]:
    """Let go of what waits in the server, which would not end otherwise."""
    try:
        yield
    finally:
        over.set()


async def test_tool_that_hangs_is_the_death_of_the_sandbox() -> None:
    hangs, over = False, threading.Event()

    async def shell(sandbox: Sandbox, command: str) -> str:
        if hangs:
            await anyio.to_thread.run_sync(over.wait)  # the server has a loop of its own
        return await plain(sandbox, command)

    with playing(Playground(shell)) as server, releasing(over):
        async with opened(server, timeout=1) as sandbox:
            hangs = True
            with pytest.raises(SandboxDied, match="did not answer the tool 'bash' within 1 s"):
                await sandbox.exec(["true"])


async def test_failing_tool_names_its_words() -> None:
    fails = False

    async def shell(sandbox: Sandbox, command: str) -> str:
        if fails:
            raise ValueError("no\nmore \x1b[31mshells")
        return await plain(sandbox, command)

    with playing(Playground(shell)) as server:
        async with opened(server) as sandbox:
            fails = True
            with pytest.raises(SandboxError, match="no more shells") as caught:
                await sandbox.exec(["true"])
            assert caught.type is SandboxError  # nobody knows that the code inside is the cause
            fails = False
            assert (await sandbox.exec(["echo", "usable"])).stdout == b"usable\n"


@pytest.mark.parametrize(("lost", "kind"), [(1, SandboxError), (1000, SandboxDied)])
async def test_replies_without_an_answer_prove_nothing_about_the_code_inside(
    lost: int, kind: type[SandboxError]
) -> None:
    """A reply may be of a proxy, once or for ever."""
    left = 0

    async def shell(sandbox: Sandbox, command: str) -> str:
        nonlocal left
        left -= 1
        return "503 Service Unavailable" if left >= 0 else await plain(sandbox, command)

    with playing(Playground(shell)) as server:
        async with opened(server) as sandbox:
            left = lost
            with pytest.raises(SandboxError, match="does not hold the output") as caught:
                await sandbox.exec(["true"])
            assert caught.type is kind


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ("ln -s $(command -v sleep) /tmp/bin/", "removed base64, cat"),
        ("cp -s $(dirname $(command -v cat))/* /tmp/bin/; rm /tmp/bin/sh", "removed sh$"),
        (
            "cp -s $(dirname $(command -v cat))/* /tmp/bin/; rm /tmp/bin/base64; "
            "printf '#!/bin/sh\\necho b' >/tmp/bin/base64; chmod +x /tmp/bin/base64",
            "replaced sh, head",
        ),
    ],
)
async def test_code_inside_that_takes_the_programs_away_breaks_the_sandbox(inside: str, why: str) -> None:
    """The tool's own shell, which runs already, proves it."""
    broken = False

    async def shell(sandbox: Sandbox, command: str) -> str:
        return await plain(sandbox, f"PATH=/tmp/bin\n{command}" if broken else command)

    with playing(Playground(shell)) as server:
        async with opened(server) as sandbox:
            await sandbox.exec(["sh", "-c", f"mkdir -p /tmp/bin; {inside}"])
            broken = True
            with pytest.raises(SandboxBroken, match=why):
                await sandbox.exec(["true"])
            broken = False


async def test_cancelled_reset_is_given_up_at_once() -> None:
    began, over = threading.Event(), threading.Event()

    async def starting() -> None:
        began.set()
        await anyio.to_thread.run_sync(over.wait)  # the server has a loop of its own

    async def use() -> None:
        async with opened(server, reset_timeout=20):
            pass

    with playing(Playground(starting=starting)) as server, releasing(over):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            await anyio.to_thread.run_sync(began.wait)
            cancelled = anyio.current_time()
            tasks.cancel_scope.cancel()
        assert anyio.current_time() - cancelled < 10


async def test_cancelled_step_ends_the_episode() -> None:
    """Its answer may still come, and would be taken for that of the next message."""
    began, over = threading.Event(), threading.Event()

    async def judge(sandbox: Sandbox) -> float:
        began.set()
        await anyio.to_thread.run_sync(over.wait)
        return 1.0

    with playing(Playground(judge=judge)) as server, releasing(over):
        async with opened(server) as sandbox:
            assert isinstance(sandbox, module.PlaySandbox)
            step = {"type": "call_tool", "tool_name": "submit", "arguments": {}}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sandbox.episode.step, step, 20)
                await anyio.to_thread.run_sync(began.wait)
                cancelled = anyio.current_time()
                tasks.cancel_scope.cancel()
            assert anyio.current_time() - cancelled < 10
            with pytest.raises(SandboxDied, match="a step was cancelled"):
                await sandbox.exec(["true"])
            assert sandbox.episode._client._ws is None


async def test_huge_reply_is_the_death_of_the_sandbox() -> None:
    floods = False

    async def shell(sandbox: Sandbox, command: str) -> str:
        return "x" * 40 * 2**20 if floods else await plain(sandbox, command)

    with playing(Playground(shell)) as server:
        async with opened(server) as sandbox:
            floods = True
            with pytest.raises(SandboxDied, match="is over"):
                await sandbox.exec(["true"])


async def test_code_inside_that_removes_the_files_breaks_the_sandbox(played: Played) -> None:
    async with opened(played) as sandbox:
        process = await sandbox.start(["sleep", "1000"])
        with pytest.raises(SandboxBroken, match="removed or changed the files"):
            await sandbox.exec(["sh", "-c", "rm -rf /var/tmp/swe-core-* /tmp/swe-core-*"])
        with pytest.raises(SandboxBroken, match="removed or changed the files"):
            await process.wait()
        assert (await sandbox.exec(["echo", "usable"])).stdout == b"usable\n"


@pytest.mark.parametrize("code", ["256", "999", "99", "-01", "a[0", ""])
async def test_exit_code_that_no_command_has_breaks_the_sandbox(played: Played, code: str) -> None:
    """The file with it is inside."""
    async with opened(played) as sandbox:
        process = await sandbox.start(["sleep", "1000"])
        script = 'for file in /var/tmp/swe-core-*/*/exit /tmp/swe-core-*/*/exit; do echo "$1" >"$file"; done'
        with pytest.raises(SandboxBroken, match="removed or changed"):
            await sandbox.exec(["sh", "-c", f"{script}; sleep 1000", "sh", code])
        with pytest.raises(SandboxBroken, match="removed or changed"):
            await process.wait()
        await sandbox.kill_all()


async def test_no_secret_of_a_command_stays_in_a_file(played: Played) -> None:
    secret = secrets.token_hex()
    async with opened(played) as sandbox:
        process = await sandbox.start(["sleep", "1000"], env={"KEY": secret}, stdin=secret.encode())
        found = await sandbox.exec(["grep", "-r", "-l", secret, "/var/tmp", "/tmp"])
        assert found.text == ""
        await process.kill()


async def test_assets_are_brought_in(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed once, and read-only. The place is one that the shell of this server may write."""
    monkeypatch.setattr(module, "ASSETS_DIR", "/tmp/assets")
    tool = tmp_path / "asset" / "bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho tool\n")
    tool.chmod(0o755)
    (tool.parent / "big").write_bytes(os.urandom(300_000))
    spec = SandboxSpec(
        image=played.image(), assets=(Asset(name="mine", path=tmp_path / "asset", digest="1"),)
    )
    mine = provider()
    for _ in range(2):
        async with mine.open(spec) as sandbox:
            assert (await sandbox.exec(["/tmp/assets/mine/bin/tool"])).stdout == b"tool\n"
            big = await sandbox.read("/tmp/assets/mine/bin/big")
            assert big == (tool.parent / "big").read_bytes()
            script = "echo x >/tmp/assets/mine/bin/tool || touch /tmp/assets/mine/new"
            assert (await sandbox.exec(["sh", "-c", script])).exit_code != 0


async def test_assets_without_a_place_are_named(played: Played, tmp_path: Path) -> None:
    spec = SandboxSpec(image=played.image(), assets=(Asset(name="mine", path=tmp_path, digest="1"),))
    with pytest.raises(SandboxError, match="takes no files of the agent"):
        async with provider().open(spec):
            pass


async def test_node_relays_where_there_is_no_python(played: Played) -> None:
    """The requests to the relay, by the program for Node."""
    async with opened(played) as sandbox, endpoint_serving({"/": hello}) as endpoint:
        if (await sandbox.exec(["node", "--version"])).exit_code != 0:
            pytest.skip("the sandbox has no node")
        bare = 'mkdir -p /tmp/bare && ln -sf "$(command -v node)" "$(command -v sh)" /tmp/bare/'
        await sandbox.exec(["sh", "-c", bare])
        with pytest.MonkeyPatch.context() as patch:
            start = sandbox.start

            async def bare_start(argv: Any, **more: Any) -> Any:
                env = {**(more.pop("env", None) or {}), "PATH": "/tmp/bare"}
                return await start(argv, env=env, **more)

            patch.setattr(sandbox, "start", bare_start)
            context = sandbox.reach(endpoint)
            url = await context.__aenter__()
        fetch = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
        assert await python(sandbox, fetch, f"{url}/") == "hello\n"
        await context.__aexit__(None, None, None)


async def test_request_to_a_closed_port_fails(played: Played) -> None:
    async with opened(played) as sandbox:
        with pytest.raises(SandboxError, match="Connection refused"):
            await PullTransport(sandbox, 1).push("/push", b"", {})
