"""A grade says which image it was reached in, and another image behind the same name is another one."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_core.builtin.swe import SweGraderConfig, swe_graders
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.records import make_task

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

NAME = "swe-core-test-image-id:1"
COMMIT = "git config --global user.name T; git config --global user.email t@e; git init -q /testbed; "
COMMIT += "cd /testbed; git add -A; git commit -q --allow-empty -m base"
PATCH = "--- /dev/null\n+++ b/done\n@@ -0,0 +1 @@\n+yes\n"
TASK = make_task(
    patch=PATCH,
    test_command="test -f done && printf '%s\\n' '=== short test summary info ===' 'PASSED t'",
)


@pytest.fixture
def images(engine: docker.APIClient, docker_image: str) -> Iterator[list[str]]:
    """The ids of two images with a repository. The first has NAME, until the second is given it."""
    ids = []
    try:
        for content in "ab":
            script = f"{COMMIT}; echo {content} >/content"
            made = engine.create_container(docker_image, ["sh", "-euc", script], user="0")["Id"]
            try:
                engine.start(made)
                assert engine.wait(made)["StatusCode"] == 0, engine.logs(made)
                ids.append(engine.commit(made)["Id"])
            finally:
                engine.remove_container(made, force=True)
        engine.tag(ids[0], *NAME.split(":"))
        yield ids
    finally:
        for one in ids:
            engine.remove_image(one, force=True)


async def test_grade_has_the_id_of_its_image(
    provider: DockerProvider, engine: docker.APIClient, images: list[str]
) -> None:
    spec = SandboxSpec(image=NAME, network="none", memory_mb=512)
    async with provider.open(spec) as sandbox:
        assert sandbox.image_id == engine.inspect_image(NAME)["Id"] == images[0]
        engine.tag(images[1], *NAME.split(":"), force=True)
        assert sandbox.image_id == images[0], "what it was opened from"
    grader = next(iter(swe_graders())).create(SweGraderConfig())
    second = (await grader.grade(TASK, PATCH.encode(), provider, spec, 60)).grade
    engine.tag(images[0], *NAME.split(":"), force=True)
    first = (await grader.grade(TASK, PATCH.encode(), provider, spec, 60)).grade
    assert (first.image_id, second.image_id) == tuple(images), (first.reason, second.reason)
    assert images[0] != images[1]
