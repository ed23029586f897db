"""What `swe-core doctor` says of the Docker Engine."""

from __future__ import annotations

import socket
import tempfile
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import pytest

from swe_core.api.checks import Finding
from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import PolicyRefused
from swe_core.plugins.manager import PluginSet
from swe_sandbox_docker import checks
from swe_sandbox_docker.client import _limits
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider


def look(number: int) -> Finding:
    """The finding of one of the checks, by its number."""
    return list(checks.checks())[number].look()


def test_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = f"unix://{tmp_path}/none.sock"
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = look(0)
    assert found.state == "missing"
    assert found.text == f"no Docker Engine answers at {host!r}: No such file or directory"
    assert found.remedy.startswith("Start one, or set DOCKER_HOST to unix:///PATH")
    assert look(1).state == "info"
    (tmp_path / "podman").mkdir()
    path = tmp_path / "podman" / "podman.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert look(0).remedy == f"Set DOCKER_HOST to unix://{path}, where Podman listens."
    monkeypatch.setenv("DOCKER_HOST", "ssh://far")
    assert "forward its socket" in look(0).text


def test_replies_of_podman_are_understood() -> None:
    """As Podman 4.3.1 gave them: it names architectures as Go does."""
    info = {
        "NCPU": 2, "MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True, "Driver": "overlay",
        "Architecture": "amd64", "SecurityOptions": ["name=seccomp,profile=default"],
    }  # fmt: skip
    limits = _limits(info, {"Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}]})
    assert (limits.seccomp, limits.podman, limits.missing) == (True, True, ())
    docker = {"Components": [{"Name": "Engine"}]}
    for options, machine, seccomp in (
        (["name=apparmor", "name=seccomp"], "x86_64", True),
        (["name=seccomp,profile=builtin"], "aarch64", True),
        (["name=seccomp,profile=builtin"], "riscv64", False),
        (["name=apparmor"], "x86_64", False),
        (None, "x86_64", False),
    ):
        limits = _limits({**info, "Architecture": machine, "SecurityOptions": options}, docker)
        assert (limits.seccomp, limits.podman) == (seccomp, False)


def test_hanging_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The check ends before the doctor's patience does."""
    monkeypatch.setattr(checks, "_SECONDS", 0.2)
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        assert look(0).state == "missing"


def test_temporary_directory_that_is_too_long_is_refused_before_an_engine_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exactly where a socket below it would be."""
    for length in range(60, 110):
        monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * length)
        fits = len(f"/{'x' * length}/swe-docker-12345678/s/00000000.sock") <= 107
        with nullcontext() if fits else pytest.raises(PolicyRefused, match="set TMPDIR to a shorter"):
            DockerProvider(DockerConfig()).check_supported(SandboxSpec())


def test_plugin_is_asked() -> None:
    (impl,) = PluginSet(["docker"]).manager.hook.swe_checks.get_hookimpls()[-1:]
    assert impl.plugin_name == "docker"
    assert [check.name for check in impl.function()] == ["Docker Engine", "disk for images"]


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
def test_engine_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look(0)
    assert found.state == "ok"
    assert found.text.startswith("Engine ")
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage(2**40))
    room = look(1)
    if room.state != "info":  # the engine's files may be another machine's
        assert "1024.0 GiB free" in room.text
        monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage(2**20))
        assert look(1).remedy == "Make room, such as with `docker image prune --all`."
