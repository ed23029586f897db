"""The whole program in pods: the real clients against the local Kubernetes, which really executes them; the
agent's calls are pulled out of its pod, and a second, fresh one grades."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import anyio
import anyio.to_thread
import pytest

from swe_core.builtin.demo.source import IMAGE
from swe_testing.k8s import LocalK8s

from .conftest import TASK, Done, SweCore

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("local_sandbox")]
REPLAY = ("--plugins", "k8s", "--sandbox", "k8s", "--agent", "mini", "--engine", "replay")


@pytest.fixture
async def k8s(local_k8s: LocalK8s) -> AsyncIterator[LocalK8s]:
    """A cluster that has the demo's image; nothing of a run may be left in it."""
    local_k8s.controllers.images.add(IMAGE)
    yield local_k8s
    kinds = ("sandboxclaims", "sandboxtemplates", "sandboxwarmpools", "pods")
    assert [one for kind in kinds for one in local_k8s.objects.all(kind)] == []


async def run(swe_core: SweCore, k8s: LocalK8s, *args: str) -> Done:
    """The program in a process of its own, while this loop serves the cluster."""
    command = partial(swe_core, *REPLAY, *args, env=k8s.environment(), timeout=300)
    done = await anyio.to_thread.run_sync(command)
    assert k8s.token not in done.stdout + done.stderr
    return done


async def test_task_is_resolved_in_pods(swe_core: SweCore, k8s: LocalK8s) -> None:
    done = await run(swe_core, k8s, "--task", TASK)
    assert done.code == 0, done.stderr
    assert done.only["outcome"] == "resolved", done.only
    assert k8s.calls["create sandboxclaims"] == 2  # graded in a second, fresh pod


@pytest.mark.slow
async def test_verdicts_are_those_of_local_sandboxes(swe_core: SweCore, k8s: LocalK8s) -> None:
    """Of all tasks of the demo, with pods in the same order as any."""
    done = await run(swe_core, k8s)
    local = await anyio.to_thread.run_sync(
        partial(swe_core, "--agent", "mini", "--engine", "replay", "--sandbox", "local", timeout=300)
    )
    verdicts, expected = ({one["id"]: one["outcome"] for one in each.rollouts} for each in (done, local))
    assert verdicts == expected
    assert len(verdicts) == 6


async def run_again(swe_core: SweCore, k8s: LocalK8s, meanwhile: Callable[[], Awaitable[None]]) -> Done:
    """Run a rollout whose pod is lost through what happens meanwhile, and which a second one resolves."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meanwhile)
        done = await run(swe_core, k8s, "--task", TASK, "--sandbox-retries", "1")
    assert done.only["outcome"] == "resolved", done.only
    return done


@pytest.mark.slow
async def test_pod_that_is_evicted_in_the_middle_is_an_error_that_may_be_tried_again(
    swe_core: SweCore, k8s: LocalK8s
) -> None:
    async def evict() -> None:
        while k8s.calls["exec pods"] < 8:  # noqa: ASYNC110 (nothing tells us)
            await anyio.sleep(0.02)
        await k8s.evict(k8s.pods()[0]["metadata"]["name"], "The node was low on resource: memory.")

    done = await run_again(swe_core, k8s, evict)
    (given_up,) = done.only["retried"]
    assert given_up["failure"]["boundary"] == "sandbox"
    assert "died: its pod is Failed: Evicted" in given_up["failure"]["message"]


async def test_cluster_without_agent_sandbox_is_said_once(swe_core: SweCore, k8s: LocalK8s) -> None:
    """Before the run starts."""
    k8s.faults.missing |= {"sandboxclaims", "sandboxtemplates", "sandboxwarmpools"}
    done = await run(swe_core, k8s)
    assert done.code != 0
    (line,) = done.stderr.splitlines()
    assert "agent-sandbox v1beta1 is not installed in the cluster" in line
    assert not done.out.exists()
