"""The k8s sandbox: what it asks the cluster for, and what becomes of it when something fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from swe_core.api.sandbox import HOME_DIR, Asset, Process, Sandbox, SandboxSpec
from swe_core.errors import SandboxBroken, SandboxDied, SandboxError, SandboxTimeout
from swe_core.system.process_owner import LABEL, current_owner
from swe_sandbox_k8s.cluster import _BOOT
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.errors import NoShell, NotRun
from swe_sandbox_k8s.exec import _exit_code
from swe_sandbox_k8s.labels import annotations_of, labels_of, owner_labels
from swe_sandbox_k8s.provider import K8sProvider
from swe_testing.k8s import LocalK8s

pytestmark = pytest.mark.anyio

PATIENCE = 60.0


async def sh(sandbox: Sandbox, script: str, *, code: int = 0) -> str:
    done = await sandbox.exec(["sh", "-c", script])
    assert done.exit_code == code, done.stderr
    return done.text


def uses(sandbox: Sandbox, process: Process) -> list[Callable[[], Awaitable[object]]]:
    """Everything that one does with a sandbox."""
    return [
        lambda: sandbox.exec(["true"]),
        lambda: sandbox.write("/tmp/x", bytes(300_000)),
        lambda: sandbox.read("/etc/passwd"),
        sandbox.kill_all,
        process.kill,
    ]


@pytest.fixture
def asset(tmp_path: Path) -> Asset:
    (tmp_path / "asset").mkdir()
    (tmp_path / "asset" / "file").write_bytes(os.urandom(3_000_000))
    return Asset(name="mine", path=tmp_path / "asset", digest="1")


async def test_connections_that_break_off(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, asset: Asset
) -> None:
    """Every byte arrives once, and every command is run once."""
    data = (asset.path / "file").read_bytes()
    local_k8s.faults.drop_after = 1_000_000
    async with provider.open(spec.model_copy(update={"assets": (asset,)})) as sandbox:
        assert await sandbox.read("/opt/swe/mine/file") == data
        await sandbox.write(f"{HOME_DIR}/copy", data)
        assert await sandbox.read(f"{HOME_DIR}/copy") == data
        local_k8s.faults.drop_after = None
        local_k8s.faults.plan["exec pods"] = [500, 502, 503]
        for number in range(5):
            await sh(sandbox, f"echo {number} >>log; exit {number}", code=number)
        assert (await sh(sandbox, "cat log")).split() == ["0", "1", "2", "3", "4"]
        with pytest.raises(SandboxTimeout):
            await sandbox.exec(["sh", "-c", "setsid sleep 6789 & sleep 6789"], timeout=1)
        assert "6789" not in await sh(sandbox, "cat /proc/[0-9]*/cmdline | grep -a '^sleep'; true")
    assert local_k8s.pods() == []


@pytest.mark.slow
async def test_answers_that_are_lost(local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec) -> None:
    """What is created is created once, and what is deleted is gone."""
    lost = {f"create {plural}" for plural in ("sandboxtemplates", "sandboxwarmpools", "sandboxclaims")}
    local_k8s.faults.lost |= lost
    async with provider.open(spec) as sandbox:
        await sh(sandbox, "true")
        assert len(local_k8s.claims()) == 1
        local_k8s.faults.lost |= {"delete sandboxclaims", "delete sandboxtemplates"}
    assert (local_k8s.claims(), local_k8s.pods()) == ([], [])
    assert local_k8s.objects.all("sandboxtemplates") == local_k8s.objects.all("sandboxwarmpools") == []


@pytest.mark.slow
async def test_controller_that_is_behind(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec
) -> None:
    """It says that there is no such pool, of one that was created just before."""
    local_k8s.faults.unseen = 3
    async with provider.open(spec) as sandbox:
        await sh(sandbox, "true")
    assert local_k8s.calls["create sandboxclaims"] > 1


async def evict(local_k8s: LocalK8s, name: str) -> None:
    await local_k8s.evict(name, "The node was low on resource: ephemeral-storage.")


async def delete(local_k8s: LocalK8s, name: str) -> None:
    await local_k8s.delete_pod(name)


async def replace(local_k8s: LocalK8s, name: str) -> None:
    """As agent-sandbox does with a pod that was deleted: an empty one of the same name."""
    await local_k8s.delete_pod(name)
    claim = local_k8s.objects.get("sandboxclaims", "default", name)
    local_k8s.objects.remove("sandboxes", local_k8s.objects.get("sandboxes", "default", name))
    local_k8s.controllers._claim(claim)
    with anyio.fail_after(PATIENCE):
        while local_k8s.pods()[0]["status"]["phase"] != "Running":  # noqa: ASYNC110 (nothing tells us)
            await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (evict, "its pod is Failed: Evicted: The node was low"),
        (delete, "was deleted"),
        (replace, "was deleted"),
    ],
)
async def test_pod_that_dies(
    local_k8s: LocalK8s,
    provider: K8sProvider,
    spec: SandboxSpec,
    end: Callable[[LocalK8s, str], Awaitable[None]],
    words: str,
) -> None:
    async with provider.open(spec) as sandbox:
        process = await sandbox.start(["sleep", "600"])
        await end(local_k8s, sandbox.id)
        with anyio.fail_after(PATIENCE):
            with pytest.raises(SandboxDied, match=f"{sandbox.id!r} died: .*{words}") as died:
                await process.wait()
            assert not isinstance(died.value, SandboxBroken)  # the rollout may be tried again
            for use in uses(sandbox, process):
                with pytest.raises(SandboxDied, match=words):
                    await use()
            with pytest.raises(SandboxDied):
                async with sandbox.reach("http://127.0.0.1:9"):
                    pass
    assert local_k8s.pods() == []


async def test_cluster_that_goes_away(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, few: None, caplog: pytest.LogCaptureFixture
) -> None:
    """One sentence for the user of the sandbox, and one in the log for what is left."""
    async with provider.open(spec) as sandbox:
        for route in ("exec pods", "get pods", "delete sandboxclaims", "delete sandboxwarmpools"):
            local_k8s.faults.plan[route] = [503] * 100
        with anyio.fail_after(PATIENCE), pytest.raises(SandboxError, match="no longer answers"):
            await sandbox.exec(["true"])
    assert f"sandboxclaims {sandbox.id} is left for the next run to reap" in caplog.text


@pytest.mark.slow
async def test_code_that_removes_the_files_of_its_command(provider: K8sProvider, spec: SandboxSpec) -> None:
    async with provider.open(spec) as sandbox:
        with pytest.raises(SandboxBroken, match="it removed the files of its commands"):
            await sandbox.exec(["sh", "-c", "rm -rf /var/tmp/*; sleep 10"])
        await sh(sandbox, "true")


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
def test_script_arrives_whole_in_every_shell(tmp_path: Path, shell: str) -> None:
    """Before its standard input, of which what reads the script takes no byte; and neither has an end."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"this machine has no {shell}")
    tools = tmp_path / "tools"
    tools.mkdir()
    if shell == "busybox":
        for tool in ("sh", "head"):
            (tools / tool).symlink_to(path)
        path = str(tools / "sh")
    script = f"printf %s {'x' * 100_000} | wc -c; echo ready; head -c 5".encode()
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    pipe = subprocess.PIPE
    with subprocess.Popen([path, "-c", _BOOT], stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"%d\n%b" % (len(script), script))
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == [b"100000\n", b"ready\n"]
        process.stdin.write(b"hello")
        process.stdin.flush()
        assert process.wait(PATIENCE) == 0
        assert process.stdout.read() == b"hello"


def test_ends_of_commands() -> None:
    """As the kubelet and the container runtime report them."""
    causes = {"causes": [{"reason": "ExitCode", "message": "7"}]}
    failed = {"status": "Failure", "reason": "NonZeroExitCode", "message": "...", "details": causes}
    assert _exit_code(b'{"metadata":{},"status":"Success"}') == 0
    assert _exit_code(json.dumps(failed).encode()) == 7
    no_shell = 'OCI runtime exec failed: exec: "sh": executable file not found in $PATH: unknown'
    with pytest.raises(NoShell, match="executable file not found"):
        _exit_code(json.dumps({"status": "Failure", "message": no_shell}).encode())
    for strange in (b"", b"[]", b"{}", b'{"status": "Failure", "message": "container not running"}'):
        with pytest.raises(NotRun):
            _exit_code(strange)


async def test_image_or_pod_without_a_shell(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider.open(spec) as sandbox:
        with monkeypatch.context() as patched:
            patched.setattr("swe_sandbox_k8s.cluster._SHELL", "no-such-shell")
            for use in (lambda: sandbox.exec(["true"]), sandbox.kill_all):
                with pytest.raises(SandboxBroken, match=r"its shell \(sh\) no longer runs"):
                    await use()
            with pytest.raises(SandboxError, match=r"the image 'python:3.12' has no shell \(sh\)"):
                async with provider.open(spec):
                    pass
        await sh(sandbox, "true")


async def test_pod_is_made_as_asked(local_k8s: LocalK8s, spec: SandboxSpec) -> None:
    labels = {"kueue.x-k8s.io/queue-name": "rollouts"}
    config = K8sConfig(runtime_class="gvisor", labels=labels, namespace="default", lifetime=3600)
    update = {
        "labels": {"task": "owner__name-1", "who": "a b/c-"},
        "env": {"A": "b"},
        "cpus": 0.5,
        "memory_mb": 1000,
        "disk_mb": 2000,
    }
    async with K8sProvider(config).open(spec.model_copy(update=update)) as sandbox:
        assert await sh(sandbox, 'echo "$A $PWD $HOME"; touch "$HOME/x"') == "b /testbed /tmp/swe-home\n"
        (claim,), (pod,) = local_k8s.claims(), local_k8s.pods()
        (template,) = local_k8s.objects.all("sandboxtemplates")
        (pool,) = local_k8s.objects.all("sandboxwarmpools")
    assert sandbox.id == claim["metadata"]["name"] == pod["metadata"]["name"]
    assert sandbox.image_id == "local/python:3.12"
    assert claim["metadata"]["labels"].items() >= {"task": "owner__name-1", "who": "a-b-c"}.items()
    assert claim["spec"]["additionalPodMetadata"]["annotations"] == {LABEL: current_owner()}
    assert claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
    ends = datetime.fromisoformat(claim["spec"]["lifecycle"]["shutdownTime"])
    assert timedelta(minutes=50) < ends - datetime.now(UTC) < timedelta(minutes=61)
    assert pod["metadata"]["labels"].items() >= labels.items()
    assert pool["spec"]["replicas"] == 0
    assert template["spec"]["networkPolicy"] == {"ingress": [], "egress": []}
    inside = template["spec"]["podTemplate"]["spec"]
    assert inside["runtimeClassName"] == "gvisor"
    assert (inside["automountServiceAccountToken"], inside["restartPolicy"]) == (False, "Never")
    limits = {"cpu": "500m", "memory": "1000Mi", "ephemeral-storage": "2000Mi"}
    assert inside["containers"][0]["resources"] == {"limits": limits, "requests": {**limits, "cpu": "125m"}}


@pytest.mark.slow
async def test_network_is_the_clusters_own_where_it_is_asked_for(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec
) -> None:
    """Without a policy of ours agent-sandbox allows the internet and forbids the cluster."""
    async with provider.open(spec.model_copy(update={"network": "full"})):
        (template,) = local_k8s.objects.all("sandboxtemplates")
        assert "networkPolicy" not in template["spec"]


async def test_requests_show_no_secret(local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec) -> None:
    """The URL of a request is in audit logs: what a command is, its variables and its input are not in it."""
    async with provider.open(spec) as sandbox:
        script = "cat /proc/[0-9]*/cmdline; true"
        done = await sandbox.exec(["sh", "-c", script], env={"KEY": "a-secret-key"}, stdin=b"a-secret-word")
        assert b"a-secret" not in done.stdout
        assert done.exit_code == 0
        async with sandbox.reach(local_k8s.origin):
            pass
    assert {tuple(command) for command in local_k8s.commands} == {("sh", "-c", _BOOT)}


@pytest.mark.slow
async def test_template_goes_with_its_last_sandbox(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec
) -> None:
    """And after the pod, because the network policy goes with it."""
    async with provider.open(spec):
        async with provider.open(spec), provider.open(spec.for_grading()):
            assert len(local_k8s.objects.all("sandboxtemplates")) == 2
        assert len(local_k8s.objects.all("sandboxtemplates")) == 1
    assert local_k8s.objects.all("sandboxtemplates") == local_k8s.objects.all("sandboxwarmpools") == []
    assert local_k8s.calls["list pods"] >= 2


async def test_warm_pods_are_taken(local_k8s: LocalK8s, spec: SandboxSpec) -> None:
    provider = K8sProvider(K8sConfig(warm=1))
    async with provider.open(spec) as first:
        with anyio.fail_after(PATIENCE):
            while [pod["status"]["phase"] for pod in local_k8s.pods()] != ["Running"] * 2:  # noqa: ASYNC110 (nothing tells us)
                await anyio.sleep(0.01)
        async with provider.open(spec) as second:
            names = {pod["metadata"]["name"] for pod in local_k8s.pods()}
            assert second.id not in names  # the pod was there before it
            await sh(second, "touch /tmp/mine")
            assert await sh(first, "ls /tmp/mine", code=2) == ""
    assert (local_k8s.pods(), local_k8s.claims()) == ([], [])


@pytest.mark.parametrize("start_delay", [pytest.param(0.0, marks=pytest.mark.slow), 600.0])
async def test_giving_up_while_it_opens_leaves_nothing(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, start_delay: float
) -> None:
    local_k8s.faults.start_delay = start_delay

    async def use() -> None:
        async with provider.open(spec):
            await anyio.sleep_forever()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            while not local_k8s.pods():  # noqa: ASYNC110 (nothing tells us)
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert (local_k8s.pods(), local_k8s.claims()) == ([], [])


@pytest.mark.slow
async def test_concurrency_limit_holds(local_k8s: LocalK8s, spec: SandboxSpec) -> None:
    provider = K8sProvider(K8sConfig(max_concurrent=2))
    most, two = 0, anyio.Event()

    async def use() -> None:
        nonlocal most
        async with provider.open(spec):
            most = max(most, len(local_k8s.pods()))
            if most == 2:
                two.set()
            await two.wait()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(use)
    assert most == 2


_KILLED = """
import anyio
from swe_core.api.sandbox import SandboxSpec
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.provider import K8sProvider

async def main():
    async with K8sProvider(K8sConfig()).open(SandboxSpec(image="python:3.12")) as sandbox:
        print(sandbox.id, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_only_leftovers_of_a_killed_run_are_reaped(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec
) -> None:
    """Not those of the living, of other machines, and of others than swe-core."""
    elsewhere = "another-host/0f1e/4026531836/1/1"
    foreign = {
        "warmPoolRef": {"name": "none"},
        "additionalPodMetadata": {"annotations": annotations_of(elsewhere)},
    }
    claims = {"elsewhere": labels_of({}, elsewhere), "theirs": {}, "imitated": owner_labels("x")}
    for name, labels in claims.items():
        spec_of = foreign if name == "elsewhere" else {"warmPoolRef": {"name": "none"}}
        local_k8s.objects.create(
            "sandboxclaims", "default", {"metadata": {"name": name, "labels": labels}, "spec": spec_of}
        )
    environment = {**os.environ, **local_k8s.environment()}
    async with await anyio.open_process([sys.executable, "-c", _KILLED], env=environment) as run:
        assert run.stdout is not None
        left = (await run.stdout.receive()).decode().strip()
        async with provider.open(spec) as sandbox:
            entries = {entry.id: entry for entry in await provider.list()}
            owners = {id: entry.owner for id, entry in entries.items()}
            assert owners == {left: "alive", sandbox.id: "alive", "elsewhere": "unknown"}
            mine = entries[sandbox.id]
            assert (mine.image, mine.details["pod"]) == ("python:3.12", sandbox.id)
            assert mine.created is not None
            assert abs(mine.created - datetime.now(UTC)) < timedelta(minutes=5)
            assert await provider.reap() == 0
            run.kill()
            await run.wait()
            assert {entry.id: entry.owner for entry in await provider.list()}[left] == "gone"
            assert await provider.reap() == 1
            assert {claim["metadata"]["name"] for claim in local_k8s.claims()} == {sandbox.id, *claims}
            assert [pod["metadata"]["name"] for pod in local_k8s.pods()] == [sandbox.id]
            assert len(local_k8s.objects.all("sandboxtemplates")) == 1
            await sh(sandbox, "true")
