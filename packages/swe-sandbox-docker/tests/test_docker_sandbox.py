"""The docker sandbox, on a real engine: what every sandbox must do, and what only containers have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import docker
import pytest
from anyio.abc import ByteStream
from docker import APIClient

from swe_core.api.sandbox import Asset, SandboxSpec
from swe_core.errors import PolicyRefused, SandboxBroken, SandboxDied, SandboxError
from swe_core.system.process_owner import LABEL
from swe_sandbox_docker.client import EngineLimits
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.container import require_limits
from swe_sandbox_docker.process import DockerProcess
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.sandbox import SandboxConformance

from .helpers import OnAnEngine, sh, socket_directories

pytestmark = pytest.mark.docker


class TestDocker(OnAnEngine, SandboxConformance):
    """What every sandbox must do."""

    limits_disk = False  # unless its storage has quotas, the engine bounds each file: `notes` says so

    @pytest.fixture
    def provider(self, docker_engine: str) -> DockerProvider:
        return DockerProvider(DockerConfig())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git work tree with a test that passes."""
    path = tmp_path / "repository"
    path.mkdir()
    (path / "test_it.py").write_text("def test_it():\n    assert True\n")
    script = "git init -q; git add .; git -c user.name=a -c user.email=a@b commit -qm x"
    subprocess.run(["sh", "-euc", script], cwd=path, check=True)
    return path


async def test_container_is_made_as_asked(
    provider: DockerProvider, spec: SandboxSpec, engine: APIClient
) -> None:
    labels = {"task": "demo-1", LABEL: "somebody else"}
    update = {"cpus": 0.5, "labels": labels, "env": {"A": "b"}}
    async with provider.open(spec.model_copy(update=update)) as sandbox:
        found = engine.inspect_container(sandbox.id)
        assert await sh(sandbox, 'echo "$A $PWD $HOME"; touch "$HOME/x"') == "b /testbed /tmp/swe-home\n"
    host = found["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 512 * 2**20
    assert host["NanoCpus"] == 5 * 10**8
    assert host["NetworkMode"] == "none"
    assert host["Init"] is True
    assert found["Config"]["Labels"]["task"] == "demo-1"
    assert found["Config"]["Labels"][LABEL] != "somebody else"


async def test_file_that_is_too_large(provider: DockerProvider, spec: SandboxSpec) -> None:
    async with provider.open(spec.model_copy(update={"disk_mb": 8})) as sandbox:
        done = await sandbox.exec(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=9"], timeout=60)
        assert done.exit_code in (1, 128 + signal.SIGXFSZ)
        assert await sh(sandbox, "wc -c <big; rm big") == f"{8 * 2**20}\n"
    (note,) = [note for note in provider.notes() if "disk_mb" in note]
    assert "bounds each file" in note


@pytest.mark.slow
async def test_promised_quota_that_is_refused_falls_back(
    provider: DockerProvider, spec: SandboxSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine whose storage may have quotas, such as xfs, and then has none."""
    connected = provider._connect()
    if connected.quota:
        pytest.skip("this engine's storage has quotas")
    connected.quota = True
    assert not any("disk_mb" in note for note in provider.notes())
    async with provider.open(spec) as sandbox:
        assert int(await sh(sandbox, "ulimit -f")) > 0
    assert any("disk_mb" in record.message for record in caplog.records)
    assert any("disk_mb" in note for note in provider.notes())


async def test_engine_without_limits_is_refused(docker_engine: str, spec: SandboxSpec) -> None:
    provider = DockerProvider(DockerConfig())
    provider.check_supported(spec)  # nobody has talked to it yet
    connected = provider._connect()
    connected.client.limits = EngineLimits(
        1, ("memory", "processor time"), swap=True, storage="vfs", quota=False, version="28.0.0", seccomp=True
    )
    for refused in (lambda: provider.check_supported(spec), lambda: require_limits(connected.client)):
        with pytest.raises(PolicyRefused, match="cannot limit memory or processor time"):
            refused()


@pytest.fixture(params=["root", "games", "4711:4711"])
def user_image(request: pytest.FixtureRequest, docker_image: str, engine: APIClient) -> Iterator[str]:
    """The image, made for a user: root, one of /etc/passwd, or one that no file names."""
    container = engine.create_container(docker_image)["Id"]
    name = f"swe-core-test-{os.getpid()}-{request.param.split(':')[0]}"
    engine.commit(container, name, "1", changes=[f"USER {request.param}"])
    engine.remove_container(container)
    yield f"{name}:1"
    engine.remove_image(f"{name}:1")


@pytest.mark.slow
async def test_tools_of_a_task_work_for_whichever_user(
    provider: DockerProvider, spec: SandboxSpec, user_image: str, repository: Path
) -> None:
    """git, pytest, tar, apply and files, without a single capability."""
    update = {"image": user_image, "repository": repository}
    async with provider.open(spec.model_copy(update=update)) as sandbox:
        assert await sh(sandbox, "git status --porcelain && git log --format=%s") == "x\n"
        assert "1 passed" in await sh(sandbox, "python3 -m pytest -q -p no:cacheprovider")
        await sandbox.write("/testbed/new/file.py", b"x = 1\n", mode=0o640)
        assert await sh(sandbox, "stat -c %a new/file.py") == "640\n"
        await sh(sandbox, "git add -A && git -c user.name=a -c user.email=a@b commit -qm more")
        await sh(sandbox, "git diff --binary HEAD~ >/tmp/p && git reset -q --hard HEAD~ && git apply /tmp/p")
        assert await sandbox.read("/testbed/new/file.py") == b"x = 1\n"
        await sh(sandbox, "tar -c . | (mkdir ../tmp/copy && tar -x -C ../tmp/copy) && rm -rf /testbed/*")
        await sh(sandbox, 'test "$(stat -c %u "$HOME")" = "$(id -u)" && touch "$HOME/file"')
    assert (repository / "test_it.py").exists()
    assert not (repository / "new").exists()
    # The keeper of protected files owns the top of the repository, and git refuses one of another user.
    async with provider.open(spec.model_copy(update=update | {"write_protect": True})) as sandbox:
        assert await sandbox.protect(["/testbed/test_it.py"])
        await sh(sandbox, "echo new >new && git add -A && git -c user.name=a -c user.email=a@b commit -qm y")
        assert await sh(sandbox, "git status --porcelain && git log --format=%s") == "y\nx\n"


NO_DIRECTORY = "is not a directory of this host: '/nowhere'"


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"image": "swe-core-test-nobody:1"}, "user or group 'ghost' is not in its /etc/passwd"),
        ({"repository": Path("/nowhere")}, NO_DIRECTORY),
        ({"assets": (Asset(name="tool", path=Path("/nowhere"), digest="1"),)}, NO_DIRECTORY),
    ],
    ids=("user", "repository", "asset"),
)
async def test_what_is_missing_is_named(
    provider: DockerProvider, spec: SandboxSpec, engine: APIClient, update: dict[str, Any], says: str
) -> None:
    container = engine.create_container(spec.image)["Id"]
    engine.commit(container, "swe-core-test-nobody", "1", changes=["USER ghost"])
    engine.remove_container(container)
    try:
        with pytest.raises(SandboxError, match=says):
            async with provider.open(spec.model_copy(update=update)):
                pass
    finally:
        engine.remove_image("swe-core-test-nobody:1")


@pytest.mark.parametrize(
    ("deed", "says"),
    [
        ("rm -f /bin/sh /bin/dash /bin/bash", "its shell .* exec sh failed: No such file"),
        ("cd / && rm -rf /testbed && touch /testbed", "does not start again: .*/testbed is not a directory"),
        pytest.param("chmod 000 /", "does not start again: .*permission denied", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
async def test_code_that_breaks_its_sandbox(
    provider: DockerProvider, spec: SandboxSpec, deed: str, says: str
) -> None:
    """It differs from a sandbox that died by itself, every time, and killing still works."""
    async with provider.open(spec) as sandbox:
        process = await sandbox.start(["sh", "-c", f"{deed}; echo done; exec sleep 600"])
        async for stream, chunk in process.output():
            if stream == "stdout":  # after what sleep's failure says on stderr, or before it
                assert chunk == b"done\n"
                break
        else:
            pytest.fail("the deed was not done")
        await process.kill()
        for _ in range(2):
            with pytest.raises(SandboxBroken, match=f"the code inside broke the sandbox .*{says}"):
                await sandbox.kill_all()


@pytest.mark.slow
@pytest.mark.parametrize("does", ["import os; os.kill(os.getpid(), 9)", "import time; time.sleep(600)"])
async def test_shell_of_the_agents_own(
    provider: DockerProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """One that says nothing keeps the sandbox up; a kill, as out of memory, is no deed of the code."""
    monkeypatch.setattr("swe_sandbox_docker.sandbox.START_TIMEOUT", 6.0)
    async with provider.open(spec) as sandbox:
        await sh(sandbox, f"printf '#!/usr/bin/python3\n{does}\n' >/tmp/x")
        await sh(sandbox, "chmod 755 /tmp/x && ln -sf /tmp/x /bin/sh")
        if "kill" in does:
            with pytest.raises(SandboxDied, match="was killed while it started again") as caught:
                await sandbox.kill_all()
            assert not isinstance(caught.value, SandboxBroken)
        else:
            await sandbox.kill_all()
            assert (await sandbox.exec(["true"])).exit_code == 0


@pytest.mark.slow
async def test_command_that_is_killed_while_it_starts_was_killed(
    provider: DockerProvider, spec: SandboxSpec
) -> None:
    """Of such a command the runtime says 126 at times, without a word."""
    async with provider.open(spec) as sandbox:
        process = await sandbox.start(["sh", "-c", "exit 126"])
        assert isinstance(process, DockerProcess)
        process.condemned = True
        assert await process.wait() == 137


@pytest.mark.slow
async def test_program_may_print_what_the_runtime_says(provider: DockerProvider, spec: SandboxSpec) -> None:
    async with provider.open(spec) as sandbox:
        text = "OCI runtime exec failed: executable file not found"
        assert await sh(sandbox, f"echo {text!r}; exit 126", code=126) == f"{text}\n"
        refused = await sandbox.exec(["/no/such/program"])
        assert (refused.exit_code, refused.stdout) == (127, b"")
        assert b"/no/such/program" in refused.stderr
        assert (await sandbox.exec(["true"], cwd="/no/such/directory")).exit_code == 126


@pytest.mark.slow
async def test_sandbox_that_dies(provider: DockerProvider, spec: SandboxSpec, engine: APIClient) -> None:
    async with provider.open(spec) as sandbox:
        process = await sandbox.start(["sleep", "60"])
        engine.kill(sandbox.id)
        with pytest.raises(SandboxDied, match=f"{sandbox.id}.*: its container ended with exit code 137"):
            await process.wait()
        with pytest.raises(SandboxDied, match="'true'"):
            await sandbox.exec(["true"])
        engine.remove_container(sandbox.id)
        with pytest.raises(SandboxDied):
            await sandbox.kill_all()


_KILLED = """
import sys, anyio
from swe_core.api.sandbox import SandboxSpec
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider

async def main():
    async with DockerProvider(DockerConfig()).open(SandboxSpec(image=sys.argv[1])) as sandbox:
        if "again" in sys.argv:
            await sandbox.kill_all()
        await sandbox.start(["sleep", "600"])
        print(sandbox.id, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@contextmanager
def run_that_holds_a_sandbox(image: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of its own with an open sandbox in which a command runs, and the sandbox's id."""
    command = [sys.executable, "-c", _KILLED, image, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        yield run, run.stdout.readline().strip()
        run.kill()


@pytest.mark.parametrize("more", [(), pytest.param(("again",), marks=pytest.mark.slow)])
async def test_containers_die_with_the_program(
    provider: DockerProvider, spec: SandboxSpec, engine: APIClient, more: tuple[str, ...]
) -> None:
    """A container that was started again does, too."""
    with run_that_holds_a_sandbox(str(spec.image), *more) as (run, left):
        (command,) = engine.inspect_container(left)["ExecIDs"]
        assert engine.exec_inspect(command)["Running"]
        run.kill()
        assert engine.wait(left, timeout=20)["StatusCode"] == 0
        assert not engine.exec_inspect(command)["Running"]
        run.wait()
        assert await provider.reap() >= 1


@pytest.mark.slow
async def test_container_whose_connection_is_closed_says_so(
    provider: DockerProvider, spec: SandboxSpec, engine: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the engine restarts, or what stands between it and this program."""
    closing = anyio.Event()

    async def hold(connection: ByteStream) -> None:
        await closing.wait()
        await connection.aclose()

    monkeypatch.setattr("swe_sandbox_docker.lifeline._hold", hold)
    says = "the connection that keeps its container up was closed, as when the Docker Engine restarts"
    async with provider.open(spec) as sandbox:
        closing.set()
        await anyio.to_thread.run_sync(lambda: engine.wait(sandbox.id, timeout=20))
        with pytest.raises(SandboxDied, match=f"cannot run 'true' .*: {says}"):
            await sandbox.exec(["true"])


async def test_only_leftovers_of_a_killed_run_are_reaped(
    provider: DockerProvider, spec: SandboxSpec, engine: APIClient
) -> None:
    with run_that_holds_a_sandbox(str(spec.image)) as (run, left):
        assert len(socket_directories(run.pid)) == 1
        async with provider.open(spec) as sandbox:
            await provider.reap()
            assert engine.inspect_container(left)["State"]["Running"]
            run.kill()
            run.wait()
            assert await provider.reap() >= 1
            with pytest.raises(docker.errors.NotFound):
                engine.inspect_container(left)
            await sh(sandbox, "true")
            assert socket_directories(run.pid) == []
            assert len(socket_directories(os.getpid())) == 1


async def test_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = f"unix://{tmp_path}/none.sock"
    monkeypatch.setenv("DOCKER_HOST", host)
    provider = DockerProvider(DockerConfig())
    assert list(provider.notes()) == []
    with pytest.raises(SandboxError, match=rf"no Docker Engine answers at '{host}': .*DOCKER_HOST"):
        async with provider.open(SandboxSpec(image="x")):
            pass
    with pytest.raises(SandboxError, match="no Docker Engine answers"):
        await provider.reap()
