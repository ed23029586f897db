"""`swe-core job run` by the real client, and the job that follows: start.sh runs in a container, to its end.

There is no package index inside, nor any network: what our packages need is in the image, for pip to find.
What the run imports is there whole; of the others, such as torch, a name and a version for pip. The
packages of this repository are not in it: they come from the data set that the job mounts.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import docker
import pytest
from huggingface_hub import HfApi
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from swe_testing.hf import LocalHF

from . import images

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IMAGE = "swe-job-test:1"
CORE = Path(__file__).parents[3] / "swe-core" / "pyproject.toml"
"""Requires what the run imports; metadata that is installed may be older than the wheel that it makes."""
SECRET = "said-in-the-settings-of-nobody"
SETTINGS = """
[run]
extra_plugins = ["watch.py"]
agent = "oracle"
only = [{task!r}]

[sandbox.local]
unisolated = true
"""
WATCH = '''
"""Says what answers while a rollout runs."""
import logging, os, sys, urllib.request
import swe_core
from swe_core import hookimpl

@hookimpl
def swe_rollout_started():
    with urllib.request.urlopen("http://127.0.0.1:7860/health") as reply:
        health = reply.read().decode()
    logging.getLogger(__name__).warning(
        "health %s, secret %s, from %s", health, os.environ["SAID"], swe_core.__file__
    )
'''


def _needed() -> dict[str, Distribution]:
    """What the core needs, to talk to the Hub too, and what that needs, by name."""
    project = tomllib.loads(CORE.read_text())["project"]
    left = [*project["dependencies"], *project["optional-dependencies"]["hub"]]
    found: dict[str, Distribution] = {}
    while left:
        requirement = Requirement(left.pop())
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        left += found[name].requires or ()
    return found


def _fill(packages: Path) -> None:
    """The files of what is used; of all else that is installed here, its name and version."""
    used = _needed()
    here = Path(site.getsitepackages()[0])
    for one in distributions(path=[str(here)]):
        name = canonicalize_name(one.name)
        if name.startswith("swe-"):
            continue
        if name not in used:
            folder = packages / f"{name.replace('-', '_')}-{one.version}.dist-info"
            folder.mkdir(parents=True, exist_ok=True)
            told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {one.version}\n"
            (folder / "METADATA").write_text(told)
            continue
        for file in one.files or ():
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(here / file, packages / file)


@pytest.fixture(scope="module")
def image(docker_engine: str, docker_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image for the job: Python, with what a package index would have given."""
    context = tmp_path_factory.mktemp("job")
    _fill(context / "packages")
    client = docker.DockerClient(base_url=docker_engine, version="auto")
    with images.image(client, docker_image, context, IMAGE) as tag:
        yield tag
    client.close()


@pytest.mark.timeout(900)  # minutes on a machine that is busy
@pytest.mark.parametrize(
    ("task", "stage", "code"), [("demo__memofn-1", "COMPLETED", 0), ("demo__nothing-1", "ERROR", 2)]
)
def test_job_runs_to_its_end(
    threaded_hf: LocalHF, image: str, tmp_path: Path, task: str, stage: str, code: int
) -> None:
    (tmp_path / "run.toml").write_text(SETTINGS.format(task=task))
    (tmp_path / "watch.py").write_text(WATCH)
    command = [str(Path(sys.executable).with_name("swe-core")), "job", "run", "--repo-id", "tester/some-run"]
    command += ["--config", "run.toml", "--base-image", image, "--secret", "SAID", "--timeout", "10m"]
    env = {**os.environ, **threaded_hf.environment(), "SAID": SECRET}
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env, check=False)
    assert made.returncode == 0, made.stderr
    api, job = HfApi(), made.stdout.split()[-1]
    lines = []
    for line in api.fetch_job_logs(job_id=job, follow=True):
        print(line)
        lines.append(line)
    said = "\n".join(lines)
    assert str(api.inspect_job(job_id=job).status.stage) == stage, said
    assert f"the run has ended with exit code {code}" in said
    began = next(number for number, line in enumerate(lines) if "swe-core run --config run.toml" in line)
    assert any("Successfully installed" in line and "swe-core-" in line for line in lines[:began])
    if code == 0:
        assert 'health {"status": "ok"}, secret [redacted], from /tmp/swe/lib/' in said
        assert "resolved 1 of 1" in said
    else:
        assert "swe-core: error: --task 'demo__nothing-1': no such task" in said
    assert SECRET not in said
