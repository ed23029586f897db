"""An engine reached by TCP and TLS that shares no files: what every sandbox must do, and assets."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import anyio
import docker
import pytest

from swe_core.api.sandbox import Asset, SandboxProvider, SandboxSpec
from swe_core.errors import ConfigError, SandboxError
from swe_core.system.process_owner import LABEL, current_owner
from swe_sandbox_docker.assets import KIND
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.sandbox import SandboxConformance

from .engines import SecondEngine, make_certificates
from .helpers import containers_of_this_process, gone_owner, sh
from .test_docker_sandbox import socket_directories

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture(scope="module")
def tls_provider(tls_engine: SecondEngine) -> DockerProvider:
    return DockerProvider(DockerConfig(hosts=(tls_engine.url,), tls=tls_engine.tls))


class TestDockerByTls(SandboxConformance):
    """What every sandbox must do, with the pull relay and assets in volumes."""

    limits_disk = False

    @pytest.fixture
    def provider(self, tls_engine: SecondEngine, tls_provider: DockerProvider) -> DockerProvider:
        self.engine = tls_engine
        return tls_provider

    @pytest.fixture
    def spec(self, docker_image: str) -> SandboxSpec:
        return SandboxSpec(image=docker_image, memory_mb=512, pids=128)

    def leftovers(self, provider: SandboxProvider) -> Collection[str]:
        with closing(self.engine.client()) as client:
            return containers_of_this_process(client) + socket_directories(os.getpid())


async def test_address_without_our_certificates_is_refused(tls_engine: SecondEngine, tmp_path: Path) -> None:
    """A client certificate of another authority, and a server of another authority."""
    make_certificates(tmp_path)
    provider = DockerProvider(DockerConfig(hosts=(tls_engine.url,), tls=tmp_path / "client"))
    says = f"no Docker Engine answers at '{tls_engine.url}': .*certificate verify failed.*; start one"
    with pytest.raises(SandboxError, match=says):
        await provider.list()


async def test_docker_host_of_the_environment_may_be_tls(
    tls_engine: SecondEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", tls_engine.url)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"the folder '/nowhere' lacks ca.pem and cert.pem and key.pem"):
        DockerProvider(DockerConfig())
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tls_engine.tls))
    assert await DockerProvider(DockerConfig()).list() == []


async def test_asset_is_copied_once_for_all(
    tls_engine: SecondEngine, docker_image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by several providers at once; and again after a user has removed it."""
    caplog.set_level(logging.INFO, "swe_sandbox_docker")
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    asset = Asset(name="tool", path=tmp_path, digest="1")
    spec = SandboxSpec(image=docker_image, memory_mb=512, assets=(asset,))
    config = DockerConfig(hosts=(tls_engine.url,), tls=tls_engine.tls)

    async def look(provider: DockerProvider) -> None:
        async with provider.open(spec) as sandbox:
            assert await sh(sandbox, "cat /opt/swe/tool/link; touch /opt/swe/tool/x 2>&1 || echo no") != ""
            assert await sh(sandbox, "ls /opt/swe/tool") == "file\nlink\n"

    with closing(tls_engine.client()) as client:
        before = volumes(client)
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(look, DockerProvider(config))
        made = volumes(client) - before
        assert len(made) == 2  # the files, and the name under which they are found
        provider = DockerProvider(config)
        await look(provider)
        assert volumes(client) - before == made
        client.remove_volume(max(made, key=len))
        await look(provider)
        assert len(volumes(client) - before) == 2


async def test_half_a_copy_is_reaped(tls_engine: SecondEngine, tls_provider: DockerProvider) -> None:
    """That of a killed run, not that of a living one or of another machine."""
    owners = {"gone": gone_owner(), "here": current_owner(), "elsewhere": "other/boot/1/1/1"}
    with closing(tls_engine.client()) as client:
        for name, owner in owners.items():
            client.create_volume(name, labels={KIND: "tool", LABEL: owner})
        await tls_provider.reap()
        assert volumes(client) & owners.keys() == {"here", "elsewhere"}
        for name in ("here", "elsewhere"):
            client.remove_volume(name)


def volumes(client: docker.APIClient) -> set[str]:
    return {volume["Name"] for volume in client.volumes()["Volumes"] or ()}
