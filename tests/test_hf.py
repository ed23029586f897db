"""The whole program in Hugging Face Sandboxes: real Pi through the real client against the local HF, which
really executes them; the agent's calls are pulled out of its sandbox, and a second, fresh one grades."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread
import orjson
import pytest
from aiohttp import web

from swe_core.api.task import Task
from swe_core.builtin.demo.source import IMAGE
from swe_testing.hf import LocalHF
from swe_testing.vllm import tool_call

from .conftest import TASK, Done, Scripted, SweCore, fix

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]
PLUGINS = ("--plugins", "pi,hf", "--set", "sandbox.hf.internet=true", "--task", TASK)


@pytest.fixture
async def hf(local_hf: LocalHF) -> AsyncIterator[LocalHF]:
    """A Hugging Face that has the demo's image; no job of it may be left."""
    local_hf.jobs.images.add(IMAGE)
    yield local_hf
    assert local_hf.jobs.running() == []


async def run(swe_core: SweCore, hf: LocalHF, *args: str) -> Done:
    """The program in a process of its own, while this loop serves both sides of it."""
    command = partial(swe_core, *PLUGINS, *args, env=hf.environment(), timeout=300)
    done = await anyio.to_thread.run_sync(command)
    assert hf.token not in done.stdout + done.stderr
    return done


def policy(task: Task) -> list[str]:
    """One that looks at what it should not see, applies the gold patch, and submits. The rollout's token is
    in the agent's own environment, where it has to be: the look says it, which nobody may write down, and
    backwards, by which a test learns it."""
    every = "{ cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; grep -rh swe_tok_ $HOME; env; } 2>/dev/null"
    look = (
        f"export SEEN=all; {every} | tr '\\0' '\\n' | tail -n 400;"
        f" found=$({every} | tr '\\0' '\\n' | grep -aoE 'swe_tok_[A-Za-z0-9_-]+' | sort -u);"
        ' echo "$found"; echo "$found" | rev'
    )
    return [
        "A look first." + tool_call("bash", command=look),
        tool_call("bash", command=fix(task)),
        tool_call("answer", text="fixed"),
    ]


@dataclass
class Asked:
    """What sandboxes were asked to run, seen on its way through the local HF.

    Attributes:
        relays: Job → the secret input of its relays.
        tested: Jobs in which tests were run.
    """

    relays: dict[str, set[str]] = field(default_factory=dict)
    tested: set[str] = field(default_factory=set)

    def hear(self, job: str, body: bytes) -> None:
        command = orjson.loads(body)
        said = base64.b64decode(command.get("stdin") or "")
        if found := re.findall(rb'"secret": ?"([0-9a-f]{64})"', said):
            self.relays.setdefault(job, set()).update(secret.decode() for secret in found)
        if any("pytest" in word for word in command["cmd"]):
            self.tested.add(job)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Of the local HF of this process."""
    asked, read = Asked(), web.BaseRequest.read

    async def heard(request: web.BaseRequest) -> bytes:
        body = await read(request)
        if found := re.fullmatch(r"/jobs/(\w+)--\d+\.local/v1/exec", request.path):
            asked.hear(found[1], body)
        return body

    monkeypatch.setattr(web.BaseRequest, "read", heard)
    return asked


@pytest.mark.pi
@pytest.mark.engine
async def test_pi_fixes_a_bug_whatever_goes_wrong_on_the_way(
    swe_core: SweCore, hf: LocalHF, scripted: Scripted, task: Task, asked: Asked
) -> None:
    """Requests fail with 429 and 5xx, answers are lost, streams break off and 502 follows, all comes late: so
    the verdict stands, each sampled token is accounted for once, and no credential is written anywhere."""
    hf.faults.latency = 0.02
    hf.faults.failing = hf.faults.lost = 0.04
    hf.faults.dropping, hf.faults.drop_after, hf.faults.bad_gateways = 0.3, 3000, 1
    arguments: list[str] = []

    async def look_at_arguments() -> None:
        while True:
            arguments.append((await anyio.run_process(["ps", "-eo", "args"])).stdout.decode(errors="replace"))
            await anyio.sleep(1)

    async with scripted(policy(task)) as vllm, anyio.create_task_group() as tasks:
        tasks.start_soon(look_at_arguments)
        engine = ("--engine", "vllm", "--engine-url", vllm.url, "--model", "scripted")
        done = await run(swe_core, hf, "--verbose", *engine)
        tasks.cancel_scope.cancel()
        sampled = [request.sent for request in vllm.requests]
    assert done.code == 0, done.stderr
    assert (done.only["outcome"], done.only["turns"], len(sampled)) == ("resolved", 3, 3), done.only
    ledger = done.report()["ledger"]
    assert (ledger["balanced"], ledger["accounted_percent"]) == (True, 100)
    assert ledger["sampled"] == ledger["trainable"] == sum(map(len, sampled))
    started = [job for job in hf.jobs.jobs.values() if job.started]
    assert len(asked.relays) == 1
    assert len(asked.tested) == 1
    assert not asked.tested & set(asked.relays)  # graded in a second, fresh sandbox
    files = [path.read_text(errors="replace") for path in done.out.rglob("*") if path.is_file()]
    assert any("SEEN=all" in text for text in files)  # what the agent's command found is written down
    tokens = {said[::-1] for text in files for said in re.findall(r"[A-Za-z0-9_-]{43}_kot_ews", text)}
    assert len(tokens) == 1
    specs = [{key: value for key, value in job.spec.items() if key != "secrets"} for job in started]
    logs = [line for job in started for _, line in job.log]
    written = [*files, done.stdout, done.stderr, json.dumps(specs), *logs, *arguments]
    servers = {job.spec["secrets"]["SBX_TOKEN"] for job in started}
    for secret in {hf.token, *servers, *tokens, *(asked.relays.popitem()[1])}:
        assert not [text for text in written if secret in text]


async def run_again(swe_core: SweCore, hf: LocalHF, meanwhile: Callable[[], Awaitable[None]]) -> Done:
    """Run a rollout whose sandbox is lost through what happens meanwhile, and which a second one resolves."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meanwhile)
        done = await run(swe_core, hf, "--agent", "mini", "--engine", "replay", "--sandbox-retries", "1")
    assert done.only["outcome"] == "resolved", done.only
    (given_up,) = done.only["retried"]
    assert given_up["failure"]["boundary"] == "sandbox"
    return done


async def test_sandbox_that_dies_is_an_error_that_may_be_tried_again(swe_core: SweCore, hf: LocalHF) -> None:
    """Its job dies while the agent's calls are pulled; the rollout is run again in another one."""

    async def kill() -> None:
        while not hf.calls["server.proxy"]:  # noqa: ASYNC110 (nothing tells us)
            await anyio.sleep(0.05)
        (job,) = hf.jobs.running()
        await hf.jobs.kill(job.id, "The node went away")

    done = await run_again(swe_core, hf, kill)
    assert "died: its job is ERROR (The node went away)" in done.only["retried"][0]["failure"]["message"]
    (spent,) = done.report()["sandboxes"]
    # one for the set-up lines, two for the agent, one for the grader
    assert (spent["provider"], spent["flavor"], spent["sandboxes"]) == ("hf", "cpu-basic", 4)


async def test_spent_quota_is_an_error_that_may_be_tried_again(swe_core: SweCore, hf: LocalHF) -> None:
    """The service refuses a sandbox, and the next one it gives."""
    hf.faults.quota = 0

    async def add_credits() -> None:
        while not hf.calls["jobs.create"]:  # noqa: ASYNC110 (nothing tells us)
            await anyio.sleep(0.01)
        hf.faults.quota = None

    done = await run_again(swe_core, hf, add_credits)
    assert "the account's limits" in done.only["retried"][0]["failure"]["message"]


async def test_service_whose_clock_is_off(swe_core: SweCore, hf: LocalHF) -> None:
    """Nothing compares its time with ours."""
    hf.faults.skew = 7 * 3600.0
    done = await run(swe_core, hf, "--agent", "mini", "--engine", "replay")
    assert done.only["outcome"] == "resolved", done.only
    (spent,) = done.report()["sandboxes"]
    assert 0 < spent["seconds"] < 3600
