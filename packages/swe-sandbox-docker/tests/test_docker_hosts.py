"""Several Docker hosts in one provider: which one gets a sandbox, and what becomes of one that dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import docker
import pytest
from pydantic import ValidationError

from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import ConfigError, HostDied, ImageNotFound, SandboxError
from swe_core.system.process_owner import LABEL
from swe_sandbox_docker import hosts
from swe_sandbox_docker.address import parse, resolve
from swe_sandbox_docker.checks import checks_of
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider

from .engines import SecondEngine
from .helpers import containers_of_this_process, gone_owner, sh
from .test_docker_images import Registry, serve

pytestmark = pytest.mark.anyio
PROGRAM = Path(sys.executable).with_name("swe-core")


@pytest.fixture
def config(docker_engine: str, tls_engine: SecondEngine) -> DockerConfig:
    return DockerConfig(hosts=(docker_engine, tls_engine.url), tls=tls_engine.tls)


@pytest.fixture
def spec(docker_image: str) -> SandboxSpec:
    return SandboxSpec(image=docker_image, memory_mb=256)


@pytest.fixture
def second(tls_engine: SecondEngine) -> Iterator[docker.APIClient]:
    """The second engine itself, to look at what is really there."""
    with closing(tls_engine.client()) as client:
        yield client


def opened(provider: DockerProvider) -> list[int]:
    """How many sandboxes are open on each host."""
    return [host.opened for host in provider._hosts.all]


@pytest.mark.docker
async def test_sandboxes_go_to_the_host_with_the_fewest(config: DockerConfig, spec: SandboxSpec) -> None:
    provider = DockerProvider(config)
    async with AsyncExitStack() as stack:
        for expected in ([1, 0], [1, 1], [2, 1]):
            sandbox = await stack.enter_async_context(provider.open(spec))
            assert await sh(sandbox, "echo works") == "works\n"
            assert opened(provider) == expected
        listed = {entry.details["host"] for entry in await provider.list()}
        assert listed == set(config.hosts)
    assert opened(provider) == [0, 0]


@pytest.mark.docker
@pytest.mark.parametrize("pull", ["never", pytest.param("missing", marks=pytest.mark.slow)])
async def test_image_of_one_host_is_used_there(
    config: DockerConfig, spec: SandboxSpec, second: docker.APIClient, docker_image: str, pull: str
) -> None:
    """It is in no registry. The first host is less loaded all the time."""
    name = "127.0.0.1:1/only-here"
    second.tag(docker_image, name, "1")
    provider = DockerProvider(config.model_copy(update={"pull": pull}))
    try:
        async with AsyncExitStack() as stack:
            for number in range(1, 7):
                await stack.enter_async_context(provider.open(spec.model_copy(update={"image": f"{name}:1"})))
                assert opened(provider) == [0, number]
    finally:
        second.remove_image(f"{name}:1")


@pytest.mark.docker
async def test_image_that_no_host_has(config: DockerConfig, spec: SandboxSpec) -> None:
    provider = DockerProvider(config.model_copy(update={"pull": "never"}))
    says = (
        r"no Docker host can provide the image 'no/image:1': .* is not on the Docker host '.*pull is 'never'"
    )
    with pytest.raises(ImageNotFound, match=says):
        async with provider.open(spec.model_copy(update={"image": "no/image:1"})):
            pass


@pytest.mark.docker
async def test_image_is_pulled_ahead_to_the_other_hosts(
    config: DockerConfig, engine: docker.APIClient, second: docker.APIClient
) -> None:
    provider = DockerProvider(config)
    await provider._hosts.answering()
    with serve(Registry()) as registry:
        await provider._hosts.pull_ahead(registry.name)
        await provider._hosts.pull_ahead(f"{registry.host}/other:1")  # a failure is not raised
    for client in (engine, second):
        client.remove_image(registry.name)


@pytest.mark.docker
@pytest.mark.slow
async def test_host_that_dies_is_taken_out_and_put_back(
    config: DockerConfig,
    spec: SandboxSpec,
    tls_engine: SecondEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = DockerProvider(config)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            there = await stack.enter_async_context(provider.open(spec))
        assert opened(provider) == [1, 1]
        process = await there.start(["sleep", "600"])
        tls_engine.kill()
        for use in (process.wait, there.kill_all, lambda: there.exec(["true"])):
            with pytest.raises(HostDied, match=f"the Docker Engine at '{tls_engine.url}' no longer answers"):
                await use()
        async with provider.open(spec), provider.open(spec):
            assert opened(provider) == [3, 1]
        assert there.id not in {entry.id for entry in await provider.list()}
    await anyio.to_thread.run_sync(tls_engine.start)
    with closing(tls_engine.client()) as client:
        assert len(containers_of_this_process(client)) == 1  # it could not be removed
        monkeypatch.setattr(hosts, "CHECK_EVERY", 0.0)
        await provider.reap()
        assert containers_of_this_process(client) == []
    async with provider.open(spec), provider.open(spec):
        assert opened(provider) == [1, 1]
    said = [record.message for record in caplog.records]
    assert sum("is taken out until it answers" in line for line in said) == 1
    assert sum("answers again" in line for line in said) == 1


@pytest.mark.docker
async def test_only_sandboxes_of_dead_runs_of_this_machine_are_reaped(
    config: DockerConfig, docker_image: str, second: docker.APIClient
) -> None:
    """Several machines may share an engine."""
    owners = {"gone": gone_owner(), "unknown": "another-machine.1f/0-0/1/1/1"}
    made = {
        state: second.create_container(docker_image, "true", labels={LABEL: owner})["Id"]
        for state, owner in owners.items()
    }
    provider = DockerProvider(config)
    try:
        states = {entry.owner for entry in await provider.list()}
        assert states >= owners.keys()
        assert await provider.reap() == 1
        left = {container["Id"] for container in second.containers(all=True)}
        assert made["unknown"] in left
        assert made["gone"] not in left
    finally:
        second.remove_container(made["unknown"])


async def test_all_hosts_dead(tmp_path: Path) -> None:
    urls = tuple(f"unix://{tmp_path}/{name}.sock" for name in "ab")
    provider = DockerProvider(DockerConfig(hosts=urls))
    says = f"none of the 2 Docker hosts answers: no Docker Engine answers at '{urls[0]}': .*'{urls[1]}'"
    for use in (provider.list, provider.reap):
        with pytest.raises(SandboxError, match=says):
            await use()
    with pytest.raises(SandboxError, match=says):
        async with provider.open(SandboxSpec(image="x")):
            pass
    assert ["is left out until it answers" in note for note in provider.notes()] == [True, True]


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        (["/var/run/docker.sock"], "'/var/run/docker.sock' is no address of a Docker Engine; expected unix:"),
        (["http://a:2375"], "'http://a:2375' is no address of a Docker Engine; expected"),
        (["unix://docker.sock"], "'unix://docker.sock' is no address"),
        (["tcp://a"], "'tcp://a' is no address"),
        (["tcp://a:port"], "'tcp://a:port' is no address .*; expected unix"),
        (["ssh://"], "'ssh://' is no address"),
        (["ssh://-oProxyCommand=x"], "is no address"),
        (["ssh://me:secret@a"], "is no address"),
        ([""], "the address of a Docker host is empty; expected unix"),
        (["ssh://a", "ssh://a/var/run/docker.sock"], "'ssh://a/var/run/docker.sock' is listed twice"),
    ],
)
def test_wrong_hosts_are_refused(hosts: list[str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DockerConfig(hosts=tuple(hosts))


def test_one_host_is_a_list_as_well() -> None:
    with pytest.raises(ValidationError, match=r'expected a list, such as \["unix:///x"\]'):
        DockerConfig.model_validate({"hosts": "unix:///x"})


def test_folder_without_certificates_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").touch()
    with pytest.raises(
        ValidationError, match=r"lacks cert.pem and key.pem; expected ca.pem, cert.pem, key.pem"
    ):
        DockerConfig(tls=tmp_path)
    monkeypatch.delenv("DOCKER_CERT_PATH", raising=False)
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    with pytest.raises(ConfigError, match="'tcp://a:2376' has no TLS, and without it everyone"):
        resolve(["tcp://a:2376"])
    assert parse("tcp://127.0.0.1:2375").tls is None
    assert (parse("ssh://me@a:22").path, parse("ssh://a/x.sock").path) == ("/var/run/docker.sock", "/x.sock")


def test_doctor_looks_at_each_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"hosts": [f"unix://{tmp_path}/{name}.sock" for name in "ab"]}
    found = {check.name: check.look() for check in checks_of(table)}
    assert [*found] == [
        *("Docker Engine of host 1", "disk of host 1", "Docker Engine of host 2", "disk of host 2"),
    ]
    for number, url in enumerate(table["hosts"], 1):
        assert f"no Docker Engine answers at '{url}'" in found[f"Docker Engine of host {number}"].text
    (wrong,) = checks_of({"hosts": ["nowhere"]})
    assert wrong.look().text.startswith("sandbox.docker.hosts: the Docker host 'nowhere' is no address")


@contextmanager
def run(config: DockerConfig, out: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`swe-core run` with these hosts, as its users start it."""
    with subprocess.Popen(
        [PROGRAM, "run", *options(config), "--tasks", "demo", "--out", out, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def options(config: DockerConfig) -> list[str]:
    settings = {"hosts": json.dumps(config.hosts), "tls": str(config.tls)}
    sets = [f"--set=sandbox.docker.{name}={value}" for name, value in settings.items()]
    return ["--plugins=docker", *sets]


def rollouts_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize(
    "commands", [12, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 4, 8, 16, 20))]
)
def test_no_rollout_is_lost_with_a_host_that_is_shot(
    config: DockerConfig, tls_engine: SecondEngine, engine: docker.APIClient, tmp_path: Path, commands: int
) -> None:
    """When so many commands have begun there. All get verdicts, and nothing is left on either engine."""
    out = tmp_path / "run"
    with run(config, out, "--concurrency=4") as process:
        with closing(tls_engine.client()) as client:
            begun = 0
            for event in client.events(decode=True, filters={"type": "container"}):
                begun += event["Action"].startswith("exec_start")
                if begun == commands:
                    break
        tls_engine.kill()
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    rollouts = rollouts_of(out)
    assert len(rollouts) == 6
    assert {rollout["outcome"] for rollout in rollouts} <= {"resolved", "unresolved"}
    again = [given_up["failure"]["type"] for one in rollouts for given_up in one["retried"]]
    assert set(again) <= {"HostDied"}
    assert again or commands != 12  # in the middle of an agent's or a test's command
    assert "is taken out until it answers" in said
    tls_engine.start()
    with closing(tls_engine.client()) as client:
        mine = f"/{process.pid}/"
        labels = [container["Labels"].get(LABEL, "") for container in client.containers(all=True)]
        assert any(mine in label for label in labels)
        done = subprocess.run(
            [PROGRAM, "sandboxes", "reap", "--sandbox=docker", *options(config)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        for one in (client, engine):
            labels = [container["Labels"].get(LABEL, "") for container in one.containers(all=True)]
            assert not any(mine in label for label in labels)
