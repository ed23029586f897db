"""An engine that is reached by ssh: a real sshd on the loopback, with keys of its own."""

from __future__ import annotations

import gc
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from swe_core.api.sandbox import Asset, SandboxSpec
from swe_core.errors import SandboxError
from swe_core.system.ports import free_port
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.sandbox.network import _FETCH, hello, serving

from .engines import SecondEngine
from .helpers import containers_of_this_process, sh

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.slow]
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@dataclass
class Server:
    """An sshd that may be shot."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    def children(self) -> list[int]:
        """The processes that serve its connections."""
        told = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True
        )
        return [int(pid) for pid in told.stdout.split()]


@pytest.fixture
def server(tls_engine: SecondEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An sshd whose key and whose user's key our ssh knows, as after `ssh-copy-id`."""
    if SSHD is None or os.geteuid() != 0:
        pytest.skip("no sshd here: apt-get install openssh-server, and run as root")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    port = free_port()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
    (tmp_path / "config").write_text(
        f"Host *\n  IdentityFile {tmp_path}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  StrictHostKeyChecking yes\n"
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {
        "AuthorizedKeysFile": f"{tmp_path}/user.pub",
        "HostKey": f"{tmp_path}/host",
        "ListenAddress": "127.0.0.1",
        "PermitRootLogin": "yes",
        "PidFile": "none",
        "Port": str(port),
        "StrictModes": "no",
        "UsePAM": "no",
    }
    argv = [SSHD, "-D", "-e", "-f", "/dev/null"]
    argv += [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"Server listening" in line:
                break
        path = tls_engine.socket.removeprefix("unix://")
        yield Server(f"ssh://{getpass.getuser()}@127.0.0.1:{port}{path}", tmp_path, process)
        gc.collect()  # a forwarding, and its directory, end with their provider
        process.kill()


async def test_sandbox_by_ssh(server: Server, docker_image: str, tmp_path: Path) -> None:
    """Commands, standard input, assets and the endpoint; nothing of ssh is left afterwards."""
    (tmp_path / "asset").mkdir()
    (tmp_path / "asset" / "file").write_text("content")
    asset = Asset(name="tool", path=tmp_path / "asset", digest="1")
    spec = SandboxSpec(image=docker_image, memory_mb=512, assets=(asset,))
    provider = DockerProvider(DockerConfig(hosts=(server.url,)))
    data = os.urandom(1_000_000)
    async with provider.open(spec) as sandbox:
        assert (await sandbox.exec(["cat"], stdin=data)).stdout == data
        assert await sh(sandbox, "cat /opt/swe/tool/file") == "content"
        async with serving({"/path": hello}) as endpoint, sandbox.reach(endpoint) as url:
            done = await sandbox.exec(["python3", "-c", _FETCH, f"{url}/path"])
            assert done.text == "hello\n"
        async with anyio.create_task_group() as tasks:  # more connections than sshd has sessions
            for _ in range(30):
                tasks.start_soon(sh, sandbox, "sleep 1")
        assert len(server.children()) == 1
    del provider, sandbox
    gc.collect()
    server.process.kill()
    assert server.children() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # docker-py leaks a socket
async def test_connection_that_breaks_is_made_again(
    server: Server, docker_image: str, tls_engine: SecondEngine
) -> None:
    """What could not be removed meanwhile is removed then."""
    provider = DockerProvider(DockerConfig(hosts=(server.url,)))
    spec = SandboxSpec(image=docker_image, memory_mb=512)
    async with provider.open(spec) as sandbox:
        process = await sandbox.start(["sleep", "600"])
        for child in server.children():
            os.kill(child, 9)
        with pytest.raises(SandboxError, match="no longer answers"):
            await process.wait()
    async with provider.open(spec) as sandbox:
        await sh(sandbox, "true")
    with closing(tls_engine.client()) as client:
        assert containers_of_this_process(client) == []


async def test_ssh_that_does_not_log_in(server: Server) -> None:
    """It never asks: without a key, and of a machine that it does not know."""
    provider = DockerProvider(DockerConfig(hosts=(server.url,)))
    says = f"no Docker Engine answers at '{server.url}': ssh: .*; check that `ssh` logs in there without a"
    (server.folder / "user").unlink()
    with pytest.raises(SandboxError, match=says) as caught:
        await provider.list()
    assert "Permission denied (publickey" in str(caught.value)
    (server.folder / "known").write_text("")
    with pytest.raises(SandboxError, match="ssh: Host key verification failed; check"):
        await provider.list()


async def test_machine_without_an_engine(server: Server) -> None:
    url = f"{server.url}.no"
    provider = DockerProvider(DockerConfig(hosts=(url,)))
    with pytest.raises(SandboxError, match=f"no Docker Engine answers at '{url}': .*; check that `ssh`"):
        await provider.list()
