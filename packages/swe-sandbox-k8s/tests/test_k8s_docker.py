"""The k8s sandbox in an image of its own; the local Kubernetes runs its pods with Docker."""

from __future__ import annotations

import os

import pytest
from aiohttp import web

from swe_core.api.sandbox import HOME_DIR, SandboxSpec
from swe_core.errors import SandboxError
from swe_core.system.http_server import serve
from swe_sandbox_k8s.provider import K8sProvider

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.slow]

_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"


async def test_pod_in_a_container(provider: K8sProvider, docker_image: str) -> None:
    """Commands, files, the relay, and an end that leaves nothing running."""
    data = os.urandom(3_000_000)
    app = web.Application()

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app.router.add_get("/", hello)
    async with provider.open(SandboxSpec(image=docker_image)) as sandbox, serve(web.AppRunner(app)) as origin:
        await sandbox.write(f"{HOME_DIR}/data", data)
        assert await sandbox.read(f"{HOME_DIR}/data") == data
        async with sandbox.reach(origin) as url:
            done = await sandbox.exec(["python3", "-c", _FETCH, url], timeout=60)
        assert (done.text, done.exit_code) == ("hello\n", 0)
        process = await sandbox.start(["sleep", "600"])
        await sandbox.kill_all()
        assert await process.wait() == 137


async def test_image_that_neither_engine_nor_registry_has(provider: K8sProvider, docker_image: str) -> None:
    with pytest.raises(SandboxError, match="cannot pull it"):
        async with provider.open(SandboxSpec(image="no/such:image")):
            pass
