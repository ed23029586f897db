"""What `space deploy --dry-run` writes is built with Docker and booted: it answers, then it trains.

There is no registry to pull from, so the base image is made here: Python, and the metadata of the packages
that this environment has, for pip to find. What they consist of (torch, vLLM: 4 GB) is mounted from here when
the container runs. The packages of this repository are in none of the two: they come from the folder.
"""

from __future__ import annotations

import json
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
import httpx
import pytest
from docker.models.containers import Container

from swe_testing.serving import forced
from swe_testing.serving.start import obstacle
from swe_testing.vllm import tool_call
from swe_trainer_trl.space.manifest import KEY, KEY_HEADER, PORT, TOKEN
from swe_trainer_trl.space.state import State

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.long]

PACKAGES = "/usr/lib/here/site-packages"
"""Where installed packages are looked for: dill pickles modules from elsewhere by value."""
BASE = "swe-space-test-base:1"
SPACE = "swe-space-test:1"
UNINSTALLED = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM's CPU build asks for, and cannot be used with: `make test` removes them."""
SECRETS = {TOKEN: "hf_" + "t" * 34, KEY: "a-key-of-this-deployment", "SAID": "said-in-the-settings-of-nobody"}
FIX = "sed -i 's/sorted(kwargs)/sorted(map(repr, kwargs.items()))/' memofn/keys.py"
SETTINGS = """
[run]
plugins = ["trl"]
extra_plugins = ["forced.py"]
engine = "vllm-forced"
model = "./tiny"
only = ["demo__memofn-1"]

[engine.vllm-forced]
script = "script.json"
max_tokens = 200  # of which a forced call takes 60

[sandbox.local]
unisolated = true

[worker.trl]
weight_sync = "disk"
server = {max_model_len = 8192}

[worker.trl.grpo]
num_generations = 2
max_steps = 2
disable_tqdm = true
token_budget = 0
per_device_train_batch_size = 2
gradient_accumulation_steps = 1
save_steps = 10
report_to = "none"
"""
VARIABLES = dict.fromkeys(("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "VLLM_NO_USAGE_STATS"), "1")
VARIABLES |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}  # the base image has no compiler


@contextmanager
def image(client: docker.DockerClient, base: str, context: Path, tag: str) -> Iterator[str]:
    """For as long as the block lasts: `base`, with the packages that lie in `context`, for pip to find."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    library = next(line.split()[-1] for line in known.splitlines() if line.split()[:1] == ["libnuma.so.1"])
    shutil.copy(library, context)
    (context / "Dockerfile").write_text(
        f"FROM {base}\nCOPY packages {PACKAGES}\n"
        "COPY libnuma.so.1 /usr/local/lib/\nRUN ldconfig\n"
        "RUN there=$(python3 -c 'import site; print(site.getsitepackages()[0])') "
        f"&& mkdir -p $there && echo {PACKAGES} >$there/packages.pth\n"
    )
    client.images.build(path=str(context), tag=tag, rm=True)
    yield tag
    client.images.remove(tag, force=True)


@pytest.fixture
def engine(docker_engine: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=docker_engine, version="auto")
    yield client
    client.close()


@pytest.fixture
def base(engine: docker.DockerClient, docker_image: str, tmp_path: Path) -> Iterator[str]:
    """An image with Python, in which pip finds all packages of this environment but ours."""
    context = tmp_path / "base"
    for folder in Path(site.getsitepackages()[0]).glob("*.dist-info"):
        if not folder.name.startswith("swe_"):
            shutil.copytree(folder, context / "packages" / folder.name)
    for name in UNINSTALLED:
        if not list((context / "packages").glob(f"{name}-*")):
            (context / "packages" / f"{name}-99.dist-info").mkdir()
            (context / "packages" / f"{name}-99.dist-info" / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: 99\n"
            )
    with image(engine, docker_image, context, BASE) as tag:
        yield tag


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """What the command writes."""
    work = tmp_path / "work"
    shutil.copytree(tiny_model, work / "tiny")
    (work / "train.toml").write_text(SETTINGS)
    shutil.copy(forced.__file__, work / "forced.py")  # swe-testing is not deployed
    calls = {"0": FIX, "1": "cat memofn/keys.py"}
    replies = {attempt: [tool_call("bash", command=command)] for attempt, command in calls.items()}
    (work / "script.json").write_text(json.dumps({"*": replies}))
    command = [str(Path(sys.executable).with_name("swe-core")), "space", "deploy"]
    command += ["--repo-id", "somebody/some-run", "--config", "train.toml", "--include", "script.json"]
    command += ["--secret", "SAID", *(f"--env={name}={value}" for name, value in VARIABLES.items())]
    command += ["--dry-run", "folder"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return work / "folder"


@pytest.fixture
def container(engine: docker.DockerClient, base: str, folder: Path) -> Iterator[Container]:
    """The Space, started as the Hub would."""
    engine.images.build(path=str(folder), tag=SPACE, rm=True, buildargs={"BASE": base})
    started = engine.containers.run(
        SPACE,
        detach=True,
        environment={**VARIABLES, **SECRETS},
        volumes={site.getsitepackages()[0]: {"bind": PACKAGES, "mode": "ro"}},
        ports={f"{PORT}/tcp": ("127.0.0.1", None)},
        shm_size="512m",  # vLLM on a CPU takes more than Docker's 64 MB
    )
    yield started
    started.remove(force=True)
    engine.images.remove(SPACE, force=True)


def states(url: str) -> Iterator[State]:
    """What it says of itself, until it ends."""
    with suppress(httpx.TransportError):
        while True:
            reply = httpx.get(f"{url}/state", headers={KEY_HEADER: SECRETS[KEY]}, timeout=30)
            yield State.model_validate_json(reply.raise_for_status().content)
            time.sleep(0.2)


@pytest.mark.timeout(1200)  # two minutes where nothing else runs
@pytest.mark.skipif(obstacle() is not None, reason=f"vLLM cannot run here: {obstacle()}")
def test_folder_builds_boots_and_trains(container: Container) -> None:
    container.reload()
    url = f"http://127.0.0.1:{container.ports[f'{PORT}/tcp'][0]['HostPort']}"
    for _ in range(300):
        try:
            health = httpx.get(f"{url}/health", timeout=30)
            break
        except httpx.TransportError:
            time.sleep(0.1)
    else:
        pytest.fail(container.logs().decode())
    assert health.json() == {"status": "ok"}
    assert next(states(url)).phase == "starting"  # it answers before anything else is there
    assert httpx.get(f"{url}/state", timeout=30).status_code == 403

    assert container.exec_run(["id", "-u"]).output.decode().strip() == "1000"
    for program in ("docker", "dockerd", "podman", "containerd"):
        assert container.exec_run(["sh", "-c", f"command -v {program}"]).exit_code != 0
    script = "import swe_core, torch; print(swe_core.__file__, torch.__file__)"
    found = container.exec_run(["python", "-c", script])
    assert found.exit_code == 0, container.logs().decode()[-5000:]
    ours, theirs = found.output.decode().split()
    assert ours.startswith("/opt/swe/")
    assert theirs.startswith(PACKAGES)

    seen = list(states(url))
    code, said = container.wait(timeout=60)["StatusCode"], container.logs().decode()
    assert code == 0, said[-5000:]
    assert "trained 2 steps, policy version 3" in said
    ways = list(dict.fromkeys((state.phase, state.step) for state in seen))
    assert ways[-3:] == [("serving", None), ("training", 1), ("training", 2)]
    assert any("rewards 0 1" in line for line in seen[-1].lines)
    assert not [name for name, secret in SECRETS.items() if secret in said]
