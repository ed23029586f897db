"""The folder that `swe-core openenv export` writes, as OpenEnv's own tools see it."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio.to_thread
import pytest
import yaml

from swe_testing.hf import LocalHF

from .exporting import exported, openenv_cli

FILES = {
    *("README.md", "__init__.py", "client.py", "models.py", "openenv.yaml", "pyproject.toml"),
    *("server/Dockerfile", "server/__init__.py", "server/app.py", "server/env.toml"),
    *("server/requirements.txt", "validation/runtime.json"),
}


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_folder_has_the_shape_of_openenv_init(folder: Path) -> None:
    assert files_of(folder) == FILES
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text())
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "openenv-swe_env"
    assert project["scripts"]["server"] == "swe_env.server.app:main"
    front = (folder / "README.md").read_text().split("---\n")[1]
    known = {"sdk": "docker", "app_port": 8000, "base_path": "/web", "tags": ["openenv"]}
    assert known.items() <= yaml.safe_load(front).items()
    ours = [f"swe-core[demo]=={version('swe-core')}", f"swe-openenv=={version('swe-openenv')}"]
    assert (folder / "server" / "requirements.txt").read_text().splitlines() == ours
    assert not [path for path in folder.rglob("*") if path.is_file() and "$" in path.suffix]


@pytest.mark.slow
def test_static_validation_passes(folder: Path) -> None:
    done = openenv_cli("validate", str(folder), "--level", "static", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {result["status"] for result in json.loads(done.stdout)["results"]} <= {"pass", "warn"}


@pytest.mark.slow
async def test_push_takes_the_folder(folder: Path, local_hf: LocalHF) -> None:
    environment = local_hf.environment()
    push = partial(openenv_cli, "push", str(folder), "--repo-id", "tester/swe-env", env=environment)
    done = await anyio.to_thread.run_sync(push)
    assert done.returncode == 0, done.stdout + done.stderr
    from huggingface_hub import HfApi

    listing = partial(HfApi().list_repo_files, "tester/swe-env", repo_type="space")
    pushed = await anyio.to_thread.run_sync(listing)
    moved = {"Dockerfile": "server/Dockerfile"}
    assert {moved.get(name, name) for name in pushed} - {".gitattributes"} == FILES


def test_folder_of_a_name_has_the_classes_that_openenv_looks_for(tmp_path: Path) -> None:
    """`AutoEnv` finds the client by the name of the environment."""
    from openenv.auto._discovery import _infer_class_name

    assert exported(str(tmp_path / "out"), "--name", "bug_hunt_env").exit_code == 0
    client = (tmp_path / "out" / "client.py").read_text()
    names = [_infer_class_name("bug_hunt_env", kind) for kind in ("client", "action", "observation")]
    assert names == ["BugHuntEnv", "BugHuntAction", "BugHuntObservation"]
    for name in names:
        assert re.search(rf"\b{name}\b", client)


def test_settings_files_and_requirements_are_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hook = "from swe_core import hookimpl\n@hookimpl\ndef swe_rollout_finished(rollout): pass\n"
    Path("mine.py").write_text(hook)
    Path("deep").mkdir()
    Path("deep/replies.jsonl").write_text('{"anything": 1}\n')
    text = '[run]\nplugins = ["pi"]\nextra_plugins = ["mine.py"]\nrecording = "deep/replies.jsonl"\n'
    Path("mine.toml").write_text(f"# mine\n{text}")
    done = exported("out", "--config", "mine.toml", "--requirement", "one>=1", "--requirement", "two")
    assert done.exit_code == 0, done.output
    assert "sandbox.local.unisolated = true" in done.output
    out = Path("out")
    assert files_of(out) == {*FILES, "mine.py", "deep/replies.jsonl"}
    assert (out / "server" / "env.toml").read_text() == f"# mine\n{text}"
    lines = (out / "server" / "requirements.txt").read_text().splitlines()
    assert lines == [
        f"swe-agents-pi=={version('swe-agents-pi')}",
        f"swe-core[demo]=={version('swe-core')}",
        f"swe-openenv=={version('swe-openenv')}",
        *("one>=1", "two"),
    ]


def test_manifest_says_what_a_server_of_a_model_needs(tmp_path: Path) -> None:
    config = tmp_path / "env.toml"
    config.write_text(
        '[run]\nagent = "mini"\nengine = "openai"\nengine_url = "https://api.example.com/v1"\nmodel = "m"\n'
        "[resources]\nmemory_mb = 512\n[limits]\nopen = 1\nprepare = 1\nagent = 10\ngrade = 20\n"
        '[worker.openenv]\nsplit = "a \\"split\\""\ninteractive = false\n'
    )
    assert exported(str(tmp_path / "out"), "--config", str(config)).exit_code == 0
    manifest = yaml.safe_load((tmp_path / "out" / "openenv.yaml").read_text())["validation"]
    assert manifest["network"]["mode"] == "public"
    assert manifest["execution"]["requires_credentials"] is True
    assert manifest["resources"]["memory_mb"] == 512
    assert manifest["resources"]["episode_timeout_s"] == 1 + 1 + 10 + 3 * (1 + 1 + 20)
    assert manifest["capabilities"]["declared_task_count"] == {'a "split"': 6}


@pytest.mark.slow
def test_wheels_are_what_the_image_installs(tmp_path: Path) -> None:
    done = exported(str(tmp_path / "out"), "--wheels", "--base-image", "mine:1")
    assert done.exit_code == 0, done.output
    wheels = sorted(path.name for path in (tmp_path / "out" / "wheels").iterdir())
    assert [name.split("-")[0] for name in wheels] == ["swe_core", "swe_openenv"]
    lines = (tmp_path / "out" / "server" / "requirements.txt").read_text().splitlines()
    assert lines[:2] == [f"./wheels/{name}" for name in wheels]
    dockerfile = (tmp_path / "out" / "server" / "Dockerfile").read_text()
    assert "ARG BASE_IMAGE=mine:1\n" in dockerfile
    assert dockerfile.index("COPY wheels wheels") < dockerfile.index("pip install")
