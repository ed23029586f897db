"""tests/with-docker: what it does where an engine answers, and where none can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "with-docker"


def run(*command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command with no other environment than this."""
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def with_docker(*command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # As another user, because root would start an engine.
    other = ["setpriv", "--reuid=65534", "--clear-groups"] if os.getuid() == 0 and env else []
    return run(*other, str(SCRIPT), *command, env={**os.environ, **env})


def programs(folder: Path, **scripts: str) -> None:
    """Make programs that do what these lines of shell say."""
    for name, script in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def tools_with_apt(folder: Path, apt_get: str, *more: str) -> None:
    """Make a folder of programs, with an engine that answers and an apt-get of these lines, and without what
    that installs.
    """
    folder.mkdir()
    for name in ("bash", "sh", "id", "flock", *more):
        (folder / name).symlink_to(shutil.which(name) or name)
    programs(folder, docker="exit 0", apt_get=apt_get)


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).symlink_to("/bin/sh")


@pytest.mark.docker
def test_engine_that_answers_is_used(docker_engine: str) -> None:
    done = with_docker(str(SCRIPT), "sh", "-c", 'echo "$DOCKER_HOST"; exit 7', env={})
    assert done.returncode == 7
    assert "skipped" not in done.stderr
    assert done.stdout == f"{os.environ.get('DOCKER_HOST', '')}\n"


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.skipif(os.getuid() != 0, reason="only root starts an engine")
def test_concurrent_starts_both_get_an_engine(docker_engine: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    command = [str(SCRIPT), "docker", "version"]
    both = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]


def test_without_an_engine_the_command_runs_with_a_note(tmp_path: Path) -> None:
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = with_docker("sh", "-c", "echo ran; exit 7", env=nowhere)
    assert (done.returncode, done.stdout) == (7, "ran\n")
    assert done.stderr.count("\n") == 1
    assert "Docker tests will be skipped" in done.stderr


def test_no_command() -> None:
    done = with_docker(env={})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: with-docker")


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts an engine")
def test_command_can_be_ended_if_the_engine_does_not_start(tmp_path: Path) -> None:
    """What a shell ignores, all that it starts ignores."""
    programs(tmp_path, docker="exit 1", dockerd="echo no luck >&2; exit 1", iptables="exit 0")
    ignored = (
        "import signal as s; print([n.name for n in (s.SIGHUP, s.SIGTERM) if s.getsignal(n) == s.SIG_IGN])"
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    # The tests may run where signals are ignored already, as under nohup.
    done = run("env", "--default-signal=HUP,TERM", str(SCRIPT), "python3", "-c", ignored, env=env)
    assert "dockerd does not start here (no luck)" in done.stderr
    assert done.stdout == "[]\n"


needs_apt = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/etc/debian_version").exists(),
    reason="only root on Debian installs anything",
)


@needs_apt
def test_concurrent_installations_take_turns(tmp_path: Path) -> None:
    tools, asked, said = tmp_path / "tools", tmp_path / "asked", tmp_path / "said"
    both_have_begun = f'until [ "$(grep -c installing {said})" = 2 ]; do sleep 0.01; done'
    tools_with_apt(tools, f'echo "$1" >>{asked}; {both_have_begun}', "grep", "sleep")
    install(tools, "chromium", "skopeo", "umoci", "docker-registry")
    with said.open("a") as stderr:
        command, env = [str(SCRIPT), "sh", "-c", ":"], {"PATH": str(tools)}
        both = [subprocess.Popen(command, env=env, stderr=stderr) for _ in range(2)]
        assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert asked.read_text().split() == ["-qq", "install", "-qq", "install"]


@needs_apt
@pytest.mark.parametrize("works", [True, False])
def test_missing_tools_are_installed_and_the_engine_does_not_depend_on_them(
    tmp_path: Path, works: bool
) -> None:
    tools, asked = tmp_path / "tools", tmp_path / "asked"
    end = "exit 0" if works else "exit 100"
    tools_with_apt(tools, f'echo "$@" >>{asked}; {end}')

    def ran() -> tuple[int, str]:
        done = run(str(SCRIPT), "sh", "-c", "echo ran; exit 7", env={"PATH": str(tools)})
        assert "skipped" not in done.stderr
        return done.returncode, done.stdout

    assert ran() == (7, "ran\n")
    installed = [line for line in asked.read_text().splitlines() if line.startswith("install")]
    wanted = ("busybox", "chromium", "skopeo umoci docker-registry")
    assert installed == [f"install -y -qq --no-install-recommends {packages}" for packages in wanted]
    asked.unlink()
    install(tools, *" ".join(wanted).split())
    assert ran() == (7, "ran\n")
    assert not asked.exists()
