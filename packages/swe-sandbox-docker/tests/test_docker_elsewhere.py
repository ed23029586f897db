"""An engine that shares no files with this process: files, relay, assets, and addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import docker
import pytest
from pydantic import ValidationError

from swe_core.api.sandbox import Asset, SandboxSpec
from swe_core.errors import ConfigError
from swe_core.system.process_owner import LABEL, current_owner
from swe_sandbox_docker import sharing
from swe_sandbox_docker.address import resolve
from swe_sandbox_docker.assets import KIND
from swe_sandbox_docker.client import Client
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.sandbox.files import FileTests
from swe_testing.sandbox.lifecycle import LifecycleTests
from swe_testing.sandbox.network import NetworkTests

from .helpers import OnAnEngine, containers_of_this_process, gone_owner, sh


@pytest.fixture
def elsewhere(docker_engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine as one whose containers see nothing of this machine."""
    monkeypatch.setattr("swe_sandbox_docker.engine.shares_files", lambda client, image: False)


@pytest.mark.docker
class TestDockerElsewhere(OnAnEngine, FileTests, NetworkTests, LifecycleTests):
    """What differs of that which every sandbox must do: the pull relay, and files in volumes."""

    @pytest.fixture
    def provider(self, elsewhere: None) -> DockerProvider:
        return DockerProvider(DockerConfig())


@pytest.fixture
def unused(engine: docker.APIClient) -> Iterator[set[str]]:
    """The volumes of before; those that a test makes are removed."""
    before = volumes(engine)
    yield before
    for name in volumes(engine) - before:
        engine.remove_volume(name)


@pytest.mark.docker
@pytest.mark.slow
async def test_asset_is_copied_once_for_all(
    elsewhere: None, engine: docker.APIClient, unused: set[str], docker_image: str, tmp_path: Path
) -> None:
    """Also by several providers at once; and again after a user has removed it."""
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    asset = Asset(name="tool", path=tmp_path, digest="1")
    spec = SandboxSpec(image=docker_image, memory_mb=512, assets=(asset,))

    async def look(provider: DockerProvider) -> None:
        async with provider.open(spec) as sandbox:
            assert await sh(sandbox, "cat /opt/swe/tool/link; touch /opt/swe/tool/x 2>&1 || echo no") != ""
            assert await sh(sandbox, "ls /opt/swe/tool") == "file\nlink\n"

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(look, DockerProvider(DockerConfig()))
    made = volumes(engine) - unused
    assert len(made) == 2  # the files, and the name under which they are found
    provider = DockerProvider(DockerConfig())
    await look(provider)
    assert volumes(engine) - unused == made
    engine.remove_volume(max(made, key=len))
    await look(provider)
    assert len(volumes(engine) - unused) == 2


@pytest.mark.docker
async def test_half_a_copy_is_reaped(engine: docker.APIClient, unused: set[str]) -> None:
    """That of a killed run, not that of a living one or of another machine."""
    owners = {"gone": gone_owner(), "here": current_owner(), "elsewhere": "other/boot/1/1/1"}
    for name, owner in owners.items():
        engine.create_volume(name, labels={KIND: "tool", LABEL: owner})
    await DockerProvider(DockerConfig()).reap()
    assert volumes(engine) & owners.keys() == {"here", "elsewhere"}


@pytest.mark.docker
def test_engine_is_asked_whether_it_shares_files(
    docker_image: str, engine: docker.APIClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with closing(Client(resolve())) as client:
        assert sharing.shares_files(client, docker_image) is True
        monkeypatch.setattr(sharing, "_BOOT_ID", str(tmp_path / "boot"))
        (tmp_path / "boot").write_text("of another kernel\n")
        assert sharing.shares_files(client, docker_image) is False
        assert sharing.shares_files(client, "no/image:1") is None
    assert containers_of_this_process(engine) == []


def volumes(client: docker.APIClient) -> set[str]:
    return {volume["Name"] for volume in client.volumes()["Volumes"] or ()}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No variable of Docker, and a configuration of nobody."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return monkeypatch


def test_address_is_that_of_docker_py(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for host, path, tcp in (
        (None, "/var/run/docker.sock", ("", 0)),
        ("unix:///run/user/1/docker.sock", "/run/user/1/docker.sock", ("", 0)),
        ("tcp://docker:2375", "", ("docker", 2375)),
    ):
        if host is not None:
            environment.setenv("DOCKER_HOST", host)
        address = resolve()
        assert (address.path, (address.host, address.port)) == (path, tcp)
    environment.delenv("DOCKER_HOST")
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "mine"}))
    docker.ContextAPI.create_context("mine", host="unix:///run/mine.sock")
    assert resolve().path == "/run/mine.sock"


def test_address_that_cannot_be_used(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).touch()
    for host, certificates, says in (
        ("ssh://me@far", None, r"forward its socket \(`ssh -fNL .*DOCKER_HOST=unix:///tmp/docker"),
        ("tcp://far:port", None, "cannot be read: "),
        ("/var/run/docker.sock", None, "'/var/run/docker.sock' is no address .*unix:///PATH"),
        ("tcp://far:2376", str(tmp_path), "forward its socket"),
        ("tcp://far:2376", "/nowhere", "cannot be read: .*TLS"),
    ):
        environment.setenv("DOCKER_HOST", host)
        if certificates is not None:
            environment.setenv("DOCKER_CERT_PATH", certificates)
        with pytest.raises(ConfigError, match=says):
            resolve()


def test_settings_of_several_hosts_name_what_to_use_instead() -> None:
    with pytest.raises(ValidationError, match="hosts and tls no longer exist: set DOCKER_HOST"):
        DockerConfig.model_validate({"hosts": ["ssh://far"]})
