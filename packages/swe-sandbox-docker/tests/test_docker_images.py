"""Images: absent, bad, built, and pulled from a registry on loopback that speaks the real protocol."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import docker
import pytest
from aiohttp import web

from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import ImageNotFound, SandboxError
from swe_core.system.http_server import serve
from swe_sandbox_docker import images
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.waiting import until

pytestmark = pytest.mark.docker

_TYPE = "application/vnd.docker"


@dataclass
class Registry:
    """One image of one layer, 2 MB of noise without a shell. `name` is what to pull; `layers` counts who
    asked for the layer.

    Args:
        pause: Seconds between two pieces of the layer.
        stall: Never send the end of the layer.
    """

    pause: float = 0.0
    stall: bool = False
    layers: int = 0
    host: str = ""

    @property
    def name(self) -> str:
        return f"{self.host}/noise:1"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def described(data: bytes, media_type: str) -> dict[str, str | int]:
    return {"mediaType": media_type, "size": len(data), "digest": digest(data)}


@asynccontextmanager
async def serving(registry: Registry) -> AsyncIterator[Registry]:
    """Serve until the end of the context. Docker takes a registry on loopback without TLS."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        file = tarfile.TarInfo("noise")
        file.size = 2_000_000
        archive.addfile(file, io.BytesIO(os.urandom(file.size)))
    layer = packed.getvalue()
    rootfs = {"type": "layers", "diff_ids": [digest(layer)]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    kind = f"{_TYPE}.distribution.manifest.v2+json"
    parts = {"config": described(config, f"{_TYPE}.container.image.v1+json")}
    layers = [described(layer, f"{_TYPE}.image.rootfs.diff.tar")]
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, **parts, "layers": layers}).encode()
    known = {"1": manifest, **{digest(body): body for body in (manifest, config, layer)}}

    async def answer(asked: web.BaseRequest) -> web.StreamResponse:
        if asked.path == "/v2/":
            return web.json_response({})
        body = known.get(asked.path.rpartition("/")[2]) if "/noise/" in asked.path else None
        if body is None:
            unknown = {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}
            return web.json_response({"errors": [unknown]}, status=404)
        said = {"Content-Type": kind if body is manifest else "application/octet-stream"}
        said |= {"Content-Length": str(len(body)), "Docker-Content-Digest": digest(body)}
        response, step = web.StreamResponse(headers=said), 200_000
        await response.prepare(asked)
        if asked.method == "GET":
            registry.layers += body is layer
            stalls = registry.stall and body is layer
            for at in range(0, len(body) - stalls * step, step):
                await response.write(body[at : at + step])
                await anyio.sleep(registry.pause)
            if stalls:
                await anyio.sleep_forever()
        return response

    server = web.Server(answer, handler_cancellation=True)
    async with serve(web.ServerRunner(server, shutdown_timeout=0.1)) as origin:
        registry.host = origin.removeprefix("http://")
        yield registry


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

    async with serving(Registry(pause=0.1)) as registry:
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
    async with serving(Registry()) as registry:
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
    async with serving(Registry(stall=True)) as registry:
        with anyio.fail_after(60):  # the end of the layer never comes
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(opening, provider, registry.name)
                await until(lambda: registry.layers)
                tasks.cancel_scope.cancel()
        registry.stall = False
        with pytest.raises(SandboxError, match=r"its shell \(sh\) does not run"):
            await opening(provider, registry.name)
        engine.remove_image(registry.name)
