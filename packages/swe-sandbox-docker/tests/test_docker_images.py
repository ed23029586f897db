"""Images: absent, bad, built, and pulled from a registry on loopback that speaks the real protocol."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import anyio.to_thread
import docker
import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import ImageNotFound, SandboxError
from swe_sandbox_docker import images
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

_TYPE = "application/vnd.docker"


class Registry:
    """One image of one layer, 2 MB of noise without a shell. `name` is what to pull; `layers` counts who
    asked for the layer.

    Args:
        pause: Seconds between two pieces of the layer.
        stall: Never send the end of the layer.
    """

    def __init__(self, pause: float = 0.0, stall: bool = False) -> None:
        self.pause = pause
        self.stopped = threading.Event()
        self.stall = stall
        self.layers = 0
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            file = tarfile.TarInfo("noise")
            content = os.urandom(2_000_000)
            file.size = len(content)
            archive.addfile(file, io.BytesIO(content))
        self.layer = layer.getvalue()
        rootfs = {"type": "layers", "diff_ids": [digest(self.layer)]}
        config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}
        self.config = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.distribution.manifest.v2+json",
            "config": described(self.config, f"{_TYPE}.container.image.v1+json"),
            "layers": [described(self.layer, f"{_TYPE}.image.rootfs.diff.tar")],
        }
        self.manifest = json.dumps(manifest).encode()
        self.host = ""

    @property
    def name(self) -> str:
        return f"{self.host}/noise:1"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def described(data: bytes, media_type: str) -> dict[str, str | int]:
    return {"mediaType": media_type, "size": len(data), "digest": digest(data)}


@contextmanager
def serve(registry: Registry) -> Iterator[Registry]:
    """Serve until the end of the context. Docker takes a registry on loopback without TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/v2/":
                self.reply(b"{}", "application/json")
            elif self.path == "/v2/noise/manifests/1" or self.path.endswith(digest(registry.manifest)):
                self.reply(registry.manifest, f"{_TYPE}.distribution.manifest.v2+json")
            elif self.path.endswith(digest(registry.config)):
                self.reply(registry.config, "application/octet-stream")
            elif self.path.endswith(digest(registry.layer)):
                registry.layers += self.command == "GET"
                self.reply(registry.layer, "application/octet-stream", slowly=True)
            else:
                body = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
                self.reply(json.dumps(body).encode(), "application/json", status=404)

        do_HEAD = do_GET  # noqa: N815 (the base class's name)

        def reply(self, body: bytes, kind: str, *, status: int = 200, slowly: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if kind.endswith("+json"):
                self.send_header("Docker-Content-Digest", digest(body))
            self.end_headers()
            if self.command == "HEAD":
                return
            step = 200_000 if slowly else len(body)
            try:
                for at in range(0, len(body) - registry.stall * slowly * step, step):
                    self.wfile.write(body[at : at + step])
                    time.sleep(registry.pause * slowly)
                if slowly and registry.stall:
                    registry.stopped.wait()
            except ConnectionError:
                return  # the client has closed the connection

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.host = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield registry
    finally:
        registry.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


async def opening(provider: DockerProvider, image: str | None) -> None:
    async with provider.open(SandboxSpec(image=image)):
        pytest.fail("it opened")


BUILT = "swe-core-test-built:1"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder with the Dockerfile of `BUILT`."""
    monkeypatch.setattr(images, "BUILT", {BUILT: tmp_path})
    return tmp_path


@pytest.mark.parametrize(
    ("image", "pull", "kind", "says"),
    [
        ("127.0.0.1:1/x:1", "missing", ImageNotFound, "/x:1'.*cannot be pulled: .*refused.*; check its name"),
        ("127.0.0.1:1/x:1", "never", ImageNotFound, "/x:1' is not on this host and sandbox.docker"),
        ("No Name!", "missing", SandboxError, "'No Name!' cannot be"),
        (None, "missing", SandboxError, "needs an image and the task names none"),
        (BUILT, "missing", ImageNotFound, "cannot be built: .*refused.* `docker build -t {} {}`"),
        (BUILT, "never", ImageNotFound, "'never'; build it: `docker build -t {} {}`, or set"),
    ],
)
async def test_image_that_is_unavailable(
    docker_engine: str, folder: Path, image: str | None, pull: str, kind: type[SandboxError], says: str
) -> None:
    (folder / "Dockerfile").write_text("FROM 127.0.0.1:1/none:1\n")
    provider = DockerProvider(DockerConfig.model_validate({"pull": pull}))
    with pytest.raises(kind, match=says.format(BUILT, folder)):
        await opening(provider, image)


@pytest.mark.slow
async def test_image_of_the_demo_is_built_once_for_all_who_wait(
    provider: DockerProvider,
    engine: docker.APIClient,
    docker_image: str,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (folder / "Dockerfile").write_text(f"FROM {docker_image}\nLABEL made=here\n")
    caplog.set_level(logging.INFO, "swe_sandbox_docker")

    async def one() -> None:
        async with provider.open(SandboxSpec(image=BUILT)) as sandbox:
            assert sandbox.image_id == engine.inspect_image(BUILT)["Id"]

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
        assert engine.inspect_image(BUILT)["Config"]["Labels"] == {"made": "here"}
    finally:
        engine.remove_image(BUILT)
    lines = [record.message for record in caplog.records if BUILT in record.message]
    assert len(lines) == 4, "one who builds says its start, each step and its end"


@pytest.mark.slow
async def test_pull_once_with_progress_for_all_who_wait(
    provider: DockerProvider,
    engine: docker.APIClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The image has no shell, so each of them then fails to start, in one sentence."""
    monkeypatch.setattr(images, "REPORT_EVERY", 0.2)
    caplog.set_level(logging.INFO, "swe_sandbox_docker")
    problems: list[str] = []

    async def one(image: str) -> None:
        with pytest.raises(SandboxError) as caught:
            await opening(provider, image)
        problems.append(str(caught.value))

    with serve(Registry(pause=0.1)) as registry:
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(one, registry.name)
        engine.remove_image(registry.name)
    assert registry.layers == 1
    assert len(problems) == 4
    says = rf"cannot open .* {registry.name!r}: .*its shell \(sh\) does not run .*No such file or directory"
    assert all(re.match(says, problem) for problem in problems)
    lines = [record.message for record in caplog.records]
    assert any("of 1 layers done, " in line and "of 2.0 MB downloaded" in line for line in lines[1:-1])


async def test_failed_pull_is_reported_to_all_and_retried_later(provider: DockerProvider) -> None:
    with serve(Registry()) as registry:
        name = f"{registry.host}/other:1"
        says = f"{name}' is not on this host and cannot be pulled: .*unknown"

        async def one() -> None:
            with pytest.raises(ImageNotFound, match=says):
                await opening(provider, name)

        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(one)


@pytest.mark.slow
async def test_cancelled_pull_ends_at_once_and_can_be_done_again(
    provider: DockerProvider, engine: docker.APIClient
) -> None:
    with serve(Registry(stall=True)) as registry:
        with anyio.fail_after(60):  # the end of the layer never comes
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(opening, provider, registry.name)
                while not registry.layers:  # noqa: ASYNC110 (it counts in another thread)
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
        registry.stall = False
        with pytest.raises(SandboxError, match=r"its shell \(sh\) does not run"):
            await opening(provider, registry.name)
        engine.remove_image(registry.name)
