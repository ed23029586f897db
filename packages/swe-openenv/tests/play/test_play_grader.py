"""The grader `openenv`: the patch in a fresh episode, and whatever that environment says of it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
import pytest

from swe_core.api.grader import Grade
from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import GraderError
from swe_openenv.play.config import PlayGraderConfig, PlaySandboxConfig, PlayTasksConfig
from swe_openenv.play.episode import Episode, Stepped
from swe_openenv.play.grader import PlayGrader
from swe_openenv.play.provider import PlayProvider
from swe_openenv.play.source import PlaySource

from .playground import Played, Playground, demo_tasks, playing

pytestmark = pytest.mark.anyio
NEW = b"""diff --git a/NAME b/NAME
new file mode 100644
--- /dev/null
+++ b/NAME
@@ -0,0 +1 @@
+x
"""


def task_of(server: Played) -> Task:
    """The task memofn of a server."""
    tasks = PlaySource(PlayTasksConfig(url=server.url, split="test")).tasks()
    return next(task for task in tasks if task.instance_id == "demo__memofn-1")


def giving(reward: Any) -> Callable[[Sandbox], Awaitable[Any]]:
    """A judge with this reward for everything."""

    async def judge(sandbox: Sandbox) -> Any:
        return reward

    return judge


async def grade(
    server: Played,
    patch: bytes = b"",
    *,
    provider: SandboxProvider | None = None,
    timeout: float = 60,
    **settings: Any,
) -> Grade:
    task = task_of(server)
    spec = SandboxSpec(image=task.image, network="none")
    opens = provider or PlayProvider(PlaySandboxConfig(internet=True))
    graded = await PlayGrader(PlayGraderConfig(**settings)).grade(task, patch, opens, spec, timeout)
    assert server.ground.open == set()
    return graded.grade


async def refusal(server: Played, patch: bytes = b"", **settings: Any) -> str:
    """What grading raises: one line."""
    with pytest.raises(GraderError) as caught:
        await grade(server, patch, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_own_tests_of_the_environment_decide(played: Played) -> None:
    gold = task_of(played).patch.encode()
    resolved = await grade(played, gold)
    assert (resolved.resolved, resolved.fail_to_pass) == (True, {"reward": "PASSED"})
    assert resolved.applied_with == "git apply"
    nothing = await grade(played)
    assert (nothing.resolved, nothing.fail_to_pass) == (False, {"reward": "FAILED"})
    assert "reward 0" in nothing.reason
    assert resolved.hashes is not None
    assert nothing.hashes is not None
    assert resolved.hashes.tree != nothing.hashes.tree


@pytest.mark.parametrize(
    ("ground", "settings"),
    [
        (Playground(judge=giving(1.0)), {}),
        (Playground(judge=giving(1.0), reward="result"), {}),
        (Playground(judge=giving(1.0), reward="result"), {"by": "call"}),
        (Playground(judge=giving(1)), {"submit": "submit"}),
        (
            Playground(judge=giving(1.0)),
            {"action": {"type": "call_tool", "tool_name": "submit", "arguments": {}}},
        ),
    ],
)
async def test_reward_is_found(ground: Playground, settings: dict[str, Any]) -> None:
    with playing(ground) as server:
        assert (await grade(server, **settings)).resolved


@pytest.mark.parametrize(
    ("reward", "threshold", "resolved"),
    [(0.7, 0.5, True), (0.5, 0.5, True), (0.4, 0.5, False), (0.99, 1.0, False)],
)
async def test_threshold_decides_a_partial_reward(reward: float, threshold: float, resolved: bool) -> None:
    with playing(Playground(judge=giving(reward))) as server:
        found = await grade(server, threshold=threshold)
    assert found.resolved is resolved
    assert (f"{reward:g}" in found.reason) is not resolved


@pytest.mark.parametrize(
    ("ground", "settings", "why"),
    [
        (Playground(judge=giving(1.0), reward="nowhere"), {}, "gave no reward"),
        (Playground(judge=giving(1.0)), {"by": "call"}, "gave no reward"),
        (Playground(judge=giving(None)), {}, "gave no reward"),
        (Playground(judge=giving(10**400), reward="result"), {}, "gave no reward"),
        (Playground(judge=giving(True), reward="result"), {}, "gave no reward"),
        (Playground(judge=giving(1.0), ends=False), {}, "reward 1.0 in .* which goes on"),
        (
            Playground(
                judge=giving({"output": '{"reward": 1.0}', "verdict": {"reward": 0.0}}), reward="result"
            ),
            {},
            "gave no reward",
        ),
        (Playground(has_submit=False), {}, "its tools: 'bash'"),
        (Playground(), {"submit": "absent"}, "'absent' failed"),
        (Playground(), {"action": {"nonsense": True}}, "refused"),
    ],
)
async def test_environment_without_a_reward_has_no_verdict(
    ground: Playground, settings: dict[str, Any], why: str
) -> None:
    with playing(ground) as server:
        assert re.search(why, await refusal(server, **settings))


@pytest.mark.parametrize("error", ["no\nspace left", {"message": "no space left"}, ["no space left"]])
async def test_reward_with_an_error_is_no_verdict(
    played: Played, monkeypatch: pytest.MonkeyPatch, error: object
) -> None:
    async def step(episode: Episode, action: object, timeout: float) -> Stepped:
        return Stepped({"error": error}, 0.0, True)

    monkeypatch.setattr(Episode, "step", step)
    assert "no space left" in await refusal(played)


async def test_judge_that_fails_or_hangs_is_no_verdict() -> None:
    over = threading.Event()

    async def failing(sandbox: Sandbox) -> float:
        raise ValueError("the judge is ill")

    async def hanging(sandbox: Sandbox) -> float:
        await anyio.to_thread.run_sync(over.wait)  # the server has a loop of its own
        return 1.0

    with playing(Playground(judge=failing)) as server:
        assert "the judge is ill" in await refusal(server)
        assert "the judge is ill" in await refusal(server, by="call")
    with playing(Playground(judge=hanging)) as server:
        task = task_of(server)
        provider = PlayProvider(PlaySandboxConfig(internet=True))
        spec = SandboxSpec(image=task.image, network="none")
        with pytest.raises(GraderError, match=r"within 0\.5 s"):
            await PlayGrader(PlayGraderConfig()).grade(task, b"", provider, spec, 0.5)
        over.set()  # or the server would not end


async def test_other_sandboxes_have_no_reward(played: Played) -> None:
    task = task_of(played)
    spec = SandboxSpec(repository=demo_tasks()[0].repository, network="none")
    with pytest.raises(GraderError, match="--sandbox openenv"):
        await PlayGrader(PlayGraderConfig()).grade(task, b"", LocalProvider(), spec, 60)


async def test_patch_that_does_not_fit_is_no_verdict(played: Played) -> None:
    patch = task_of(played).patch.replace("memofn/", "elsewhere/").encode()
    assert re.search(
        "elsewhere/.* does not exist in index; .* reset gives other files", await refusal(played, patch)
    )


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (b"this is no patch", "No valid patches"),
        (b"\0" * 100, "No valid patches"),
        (NEW.replace(b"NAME", b".git/config"), "invalid path '.git/config'"),
        (NEW.replace(b"NAME", b"../x"), "invalid path '../x'"),
    ],
)
async def test_patch_that_git_refuses_has_its_reason(played: Played, patch: bytes, why: str) -> None:
    assert why in await refusal(played, patch)


async def test_patch_arrives_whole() -> None:
    """Binary files, modes, links, deletions and directories that become files; files of others stay."""
    seen: list[bytes] = []
    change = (
        "head -c 70000 /dev/urandom >blob && printf '#!/bin/sh\\n' >run && chmod 755 run && "
        "ln -s run link && "
        "git rm -q -r tests && echo file >tests && printf 'no end' >>README.md"
    )
    digest = "sha256sum blob run tests README.md; stat -c %a run; readlink link; git status --short"

    async def judge(sandbox: Sandbox) -> float:
        seen.append((await sandbox.exec(["sh", "-c", digest])).stdout)
        return 1.0

    with playing(Playground(judge=judge)) as server:
        spec = SandboxSpec(image=task_of(server).image)
        async with PlayProvider(PlaySandboxConfig(internet=True)).open(spec) as sandbox:
            assert (await sandbox.exec(["sh", "-c", change])).exit_code == 0
            expected = (await sandbox.exec(["sh", "-c", digest])).text
            await sandbox.exec(["git", "add", "-A"])
            patch = (await sandbox.exec(["git", "diff", "--cached", "--binary", "--full-index"])).stdout
        assert (await grade(server, patch)).resolved
    assert seen[0].decode().splitlines()[:6] == expected.splitlines()[:6]


async def test_log_is_what_the_environment_said() -> None:
    with playing(Playground(judge=giving(1.0))) as server:
        task = task_of(server)
        spec = SandboxSpec(image=task.image, network="none")
        provider = PlayProvider(PlaySandboxConfig(internet=True))
        graded = await PlayGrader(PlayGraderConfig()).grade(task, b"", provider, spec, 60)
    assert json.loads(graded.log)["tool_name"] == "submit"
