"""Images that start and lack what grading needs: an error that names it, and no verdict."""

from __future__ import annotations

import io
from collections.abc import Iterator

import docker
import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_core.builtin.swe import SweGraderConfig, swe_graders
from swe_core.errors import SweError
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.records import make_task

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

REPOSITORY = (
    "mkdir -p /testbed && cd /testbed && git init -q . && echo 1 >a && echo 'x = 1' >test_a.py && "
    "git add . && git -c user.name=n -c user.email=e commit -q -m one"
)
NO_GIT = "for git in $(command -v git) /usr/lib/git-core/git; do rm -f $git; done"
LACKING = {
    "no git": (f"{REPOSITORY} && {NO_GIT}", "git"),
    "no /testbed": ("rm -rf /testbed", "'/testbed'"),
    "no repository": ("mkdir -p /testbed", "'/testbed'.*not the top of a git work tree"),
    "no test runner": (
        REPOSITORY,
        r"'no-such-runner -rA' printed no pytest results .exit code 127.*no-such-runner.*not found",
    ),
}
PATCH = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n"
TASK = make_task(
    patch=PATCH,
    test_patch="--- a/test_a.py\n+++ b/test_a.py\n@@ -1 +1 @@\n-x = 1\n+def test_a(): pass\n",
    fail_to_pass=("test_a.py::test_a",),
    test_command="no-such-runner -rA",
)


FAST, *FURTHER = LACKING


@pytest.fixture(params=[FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
def lacking(
    request: pytest.FixtureRequest, engine: docker.APIClient, docker_image: str
) -> Iterator[tuple[str, str]]:
    """An image made for the test, and what the error must say."""
    script, sentence = LACKING[request.param]
    file = io.BytesIO(f"FROM {docker_image}\nWORKDIR /\nRUN {script}\n".encode())
    name = "swe-test-lacking"
    said = list(engine.build(fileobj=file, tag=name, rm=True, decode=True, network_mode="none"))
    assert not any("error" in line for line in said), said
    yield name, sentence
    engine.remove_image(name)


async def test_image_that_lacks_something_is_an_error(
    provider: DockerProvider, lacking: tuple[str, str]
) -> None:
    image, sentence = lacking
    grader = next(iter(swe_graders())).create(SweGraderConfig())
    with pytest.raises(SweError, match=sentence) as caught:
        await grader.grade(TASK, PATCH.encode(), provider, SandboxSpec(image=image, network="none"), 30)
    assert "Traceback" not in str(caught.value)
