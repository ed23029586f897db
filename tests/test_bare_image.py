"""Agents in an image with a static busybox and nothing else: their bundles bring all that is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import docker
import pytest

from swe_agents.codex import Codex
from swe_core import AgentContext
from swe_core.bundles import BundledAgent, File, Node, Part, Python, Recipe
from swe_sandbox_docker.config import DockerConfig
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.agents import Run, ScriptedModel, Trial, run_once
from swe_testing.registry import bare_layer

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("own_folders")]

IMAGE = "swe-test-bare:1"
CALL = """
set -e
busybox=$1 url=$2 model=$3
body='{"model": "'$model'", "messages": [{"role": "user", "content": "hello"}]}'
"$busybox" wget -q -O - --header "Authorization: Bearer $KEY" --header "Content-Type: application/json" \\
  --post-data "$body" "$url/chat/completions"
ls /lib /lib64 /usr 2>/dev/null && exit 3
exit 0
"""


@pytest.fixture(scope="module")
def bare_image(docker_engine: str, busybox: Path) -> Iterator[str]:
    """An image of one program and links to it."""
    client = docker.APIClient(base_url=docker_engine, version="auto")
    name, tag = IMAGE.split(":")
    client.import_image_from_data(bare_layer(busybox), repository=name, tag=tag)
    yield IMAGE
    client.remove_image(IMAGE)
    client.close()


class Static(BundledAgent):
    """A static program; another part of its bundle relays its calls."""

    name = "static"
    title = "Static"

    def __init__(self, busybox: Path, interpreter: Part) -> None:
        self.parts = (interpreter, File("bin/busybox", busybox.read_bytes(), executable=True))

    def recipe(self) -> Recipe:
        return Recipe(self.name, self.parts)

    def command(self, ctx: AgentContext) -> Sequence[str]:
        busybox = f"{ctx.asset(self.name)}/bin/busybox"
        return [busybox, "sh", "-c", CALL, "sh", busybox, ctx.base_url, ctx.model]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"KEY": ctx.api_key}


async def run_bare(agent: BundledAgent, image: str, *script: str | Run) -> Trial:
    return await run_once(agent, ScriptedModel(*script), provider=DockerProvider(DockerConfig()), image=image)


@pytest.mark.parametrize(
    "interpreter",
    [
        pytest.param(Node(), id="node", marks=pytest.mark.slow),
        pytest.param(Python(("3.11", "3.12")), id="python"),
    ],
)
@pytest.mark.slow
async def test_static_agent_reaches_its_endpoint(bare_image: str, busybox: Path, interpreter: Part) -> None:
    trial = await run_bare(Static(busybox, interpreter), bare_image, "hello yourself")
    assert trial.failure is None
    assert [turn.dialect for turn in trial.turns] == ["chat"]
    assert "hello yourself" in trial.log


@pytest.mark.slow
async def test_codex_works(bare_image: str) -> None:
    trial = await run_bare(Codex(), bare_image, Run("echo made > made.txt; ls /lib; cat made.txt"), "Done.")
    assert trial.failure is None
    assert [turn.dialect for turn in trial.turns] == ["responses", "responses"]
    assert trial.texts("tool_result") == ["ls: /lib: No such file or directory\nmade\n"]
