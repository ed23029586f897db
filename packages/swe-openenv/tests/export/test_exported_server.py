"""The server of an exported folder, started as Docker and users start it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from openenv.core.generic_client import GenericEnvClient
from openenv.validation import Level, run_validation
from openenv.validation.providers.docker import DockerValidationProvider

from swe_openenv.client import SweEnv

from .exporting import exported, openenv_cli, running, start, url_of, uvicorn

RUN = {"type": "run_agent"}


def tools_of(url: str) -> list[str]:
    """The names of a server's tools."""
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    tools = httpx.post(f"{url}/mcp", json=listing).json()["result"]["tools"]
    return sorted(tool["name"] for tool in tools)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A folder that a test may change."""
    return Path(shutil.copytree(folder, tmp_path / "swe_env"))


@pytest.mark.slow
def test_served_folder_keeps_its_promises(copy: Path, tmp_path: Path) -> None:
    """It solves a task, fulfils all criteria of OpenEnv, and answers for its episodes after a restart."""
    out = tmp_path / "run"
    with running(copy, uvicorn(), SWE_OPENENV_OUT=str(out)) as url:
        with GenericEnvClient(base_url=url, message_timeout_s=300).sync() as env:
            env.reset(index=0, episode_id="first")
            last = env.step(RUN)
        assert (last.reward, last.done, last.observation["outcome"]) == (1.0, True, "resolved")
        done = openenv_cli("validate", "--url", url, "--timeout", "30", "--json")
        assert [each["passed"] for each in json.loads(done.stdout)["criteria"]] == [True] * 6
        assert done.returncode == 0
        manifest = yaml.safe_load((copy / "openenv.yaml").read_text())
        promised = manifest["validation"]["capabilities"]
        (split,) = (each["name"] for each in httpx.get(f"{url}/swe_env/splits").json())
        counted = httpx.post(f"{url}/swe_env/num_tasks", json={"split": split}).json()
        assert promised["declared_task_count"] == {split: counted["num_tasks"]}
        assert httpx.get(f"{url}/metadata").json()["name"] == manifest["name"]
    with running(copy, uvicorn(), SWE_OPENENV_OUT=str(out)) as url, SweEnv(url).sync() as env:
        assert env.reset(episode_id="first").reward == 1.0


@pytest.mark.parametrize(
    ("interactive", "action"),
    [pytest.param("false", {"type": "run_agent"}, marks=pytest.mark.slow), ("true", {"type": "submit"})],
)
@pytest.mark.slow
def test_probe_of_the_manifest_is_rewarded_and_main_serves(
    tmp_path: Path, interactive: str, action: dict[str, str]
) -> None:
    settings = tmp_path / "env.toml"
    worker = f"[worker.openenv]\ninteractive = {interactive}\n"
    settings.write_text(f"[sandbox.local]\nunisolated = true\n{worker}")
    folder = tmp_path / "swe_env"
    assert exported(str(folder), "--config", str(settings)).exit_code == 0
    probe = json.loads((folder / "validation" / "runtime.json").read_text())
    assert probe["actions"] == [action]
    command = [sys.executable, "-m", "server.app", "--port", "0"]
    with running(folder, command) as url, GenericEnvClient(base_url=url, message_timeout_s=300).sync() as env:
        env.reset(seed=probe["reset"]["seed"], episode_id=probe["reset"]["episode_id"])
        assert env.step(action).reward in (0.0, 1.0)
        assert env.state()["episode_id"] == probe["reset"]["episode_id"]
        tools = yaml.safe_load((folder / "openenv.yaml").read_text())["validation"]["capabilities"]
        assert tools_of(url) == tools["declared_tools"]
    assert (folder / "runs" / "swe_env" / "run.json").exists()


@pytest.mark.long
def test_server_that_cannot_start_says_why_and_ends(copy: Path) -> None:
    (copy / "server" / "env.toml").write_text('[run]\nagent = "nobody"\n')
    with start(copy, *uvicorn()) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "unknown agent 'nobody'" in said
    assert "Application startup failed" in said
    assert "Traceback" not in said


@pytest.mark.long
def test_server_ends_when_its_run_ends(copy: Path, tmp_path: Path) -> None:
    """No client can be served where nothing can be recorded; a container is then started again."""
    out = tmp_path / "run"
    with start(copy, *uvicorn(), SWE_OPENENV_OUT=str(out)) as process:
        with GenericEnvClient(base_url=url_of(process), message_timeout_s=300).sync() as env:
            env.reset(index=0)
            shutil.rmtree(out / "rollouts")
            (out / "rollouts").write_text("no folder")
            with pytest.raises(RuntimeError, match="the server stops"):
                env.step(RUN)
        _, said = process.communicate(timeout=60)
    assert "the run ended: cannot write to the run directory" in said
    assert "Traceback" not in said


@pytest.mark.long
def test_two_servers_cannot_share_a_run(copy: Path, tmp_path: Path) -> None:
    out = {"SWE_OPENENV_OUT": str(tmp_path / "run")}
    with running(copy, uvicorn(), **out):
        with start(copy, *uvicorn(), **out) as second:
            _, said = second.communicate(timeout=60)
    assert second.returncode != 0
    assert "is in use by another process" in said


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.filterwarnings(
    r"ignore:connect\(\) must be used as a context manager:DeprecationWarning"
)  # OpenEnv's
def test_runtime_validation_passes(docker_image: str, tmp_path: Path) -> None:
    """OpenEnv builds the image and plays the probe: no network, a read-only disk, a user without a name.

    Its helper for networks is an image of a registry; here it is the image of the tests, which has Python.
    """
    folder = tmp_path / "swe_env"
    assert exported(str(folder), "--wheels", "--base-image", docker_image).exit_code == 0
    provider = DockerValidationProvider()
    provider.helper_image = docker_image
    report = run_validation(folder, max_level=Level.RUNTIME, provider=provider)
    said = {result.check_id: (result.status.value, *result.evidence) for result in report.results}
    passed = {name for name, (status, *_) in said.items() if status == "pass"}
    assert passed == {
        "static.manifest",
        *(f"runtime.{name}" for name in ("startup", "reward_well_formed", "observation_schema")),
        *("runtime.state_contract", "runtime.network_policy"),
    }, said["runtime.startup"]
    assert {status for status, *_ in said.values()} == {"pass", "skip"}, "OpenEnv 0.10 cannot check the rest"
