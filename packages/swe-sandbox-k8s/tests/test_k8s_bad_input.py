"""What can be wrong with a cluster, a setting or a task: one sentence each with what to do, nothing left."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from pydantic import ValidationError

from swe_core.api.sandbox import Asset, SandboxSpec
from swe_core.errors import ConfigError, ImageNotFound, PolicyRefused, SandboxError, SweError
from swe_sandbox_k8s.checks import cluster as check_cluster
from swe_sandbox_k8s.config import K8sConfig
from swe_sandbox_k8s.provider import K8sProvider
from swe_sandbox_k8s.sandbox import _PROBE, K8sSandbox
from swe_testing.k8s import LocalK8s

pytestmark = pytest.mark.anyio


async def refusal(provider: K8sProvider, spec: SandboxSpec, kind: type[SweError], local_k8s: LocalK8s) -> str:
    """The sentence that an attempt to open ends in."""
    with anyio.fail_after(60):
        with pytest.raises(SweError) as caught:
            async with provider.open(spec):
                pass
    assert isinstance(caught.value, kind)
    assert kind is not SandboxError or type(caught.value) is kind
    said = str(caught.value)
    assert "\n" not in said
    assert local_k8s.token not in said
    assert (local_k8s.claims(), local_k8s.pods()) == ([], [])
    return said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no usable kubeconfig (there is no file "),
        ("", "there is no usable kubeconfig ("),
        ("[1, 2", "there is no usable kubeconfig (its content is not one)"),
        ("apiVersion: v1\nkind: Config\n", "there is no usable kubeconfig (Invalid kube-config file"),
        ("[]", "there is no usable kubeconfig (its content is not one)"),
    ],
)
async def test_kubeconfig_that_is_none(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, text: str | None, words: str
) -> None:
    if text is None:
        local_k8s.kubeconfig.unlink()
    else:
        local_k8s.kubeconfig.write_text(text)
    said = await refusal(provider, spec, ConfigError, local_k8s)
    assert words in said
    assert "set KUBECONFIG" in said
    with pytest.raises(ConfigError, match=re.escape(words)):
        await provider.reap()  # what a run does first
    found = await anyio.to_thread.run_sync(check_cluster)
    assert (found.state, words in found.text) == ("missing", True)


async def test_unknown_context(local_k8s: LocalK8s, spec: SandboxSpec) -> None:
    said = await refusal(K8sProvider(K8sConfig(context="prod")), spec, ConfigError, local_k8s)
    assert "it has no context 'prod', but local" in said
    assert "sandbox.k8s.context" in said


async def test_cluster_that_does_not_answer(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, few: None
) -> None:
    local_k8s.kubeconfig.write_text(
        local_k8s.kubeconfig.read_text().replace(local_k8s.origin, "http://127.0.0.1:9")
    )
    said = await refusal(provider, spec, SandboxError, local_k8s)
    assert "the API server at 'http://127.0.0.1:9' does not answer" in said
    assert "kubectl cluster-info" in said
    with pytest.raises(SandboxError, match="does not answer"):
        await provider.reap()


async def test_rejected_credentials(local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec) -> None:
    local_k8s.token = "another"
    said = await refusal(provider, spec, SandboxError, local_k8s)
    assert "does not accept the credentials; log in to it again" in said


@pytest.mark.parametrize("missing", ["sandboxtemplates", "sandboxclaims"])
async def test_cluster_without_agent_sandbox(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, missing: str
) -> None:
    local_k8s.faults.missing.add(missing)
    said = await refusal(provider, spec, SandboxError, local_k8s)
    assert "agent-sandbox v1beta1 is not installed in the cluster" in said
    assert "install it with its extensions: https://" in said
    with pytest.raises(SandboxError, match="not installed"):
        await provider.reap()
    found = await anyio.to_thread.run_sync(check_cluster)
    assert (found.state, "not installed" in found.text) == ("missing", True)


async def test_missing_namespace(local_k8s: LocalK8s, spec: SandboxSpec) -> None:
    provider = K8sProvider(K8sConfig(namespace="nowhere"))
    said = await refusal(provider, spec, SandboxError, local_k8s)
    assert "the cluster has no namespace 'nowhere'; create it, or set sandbox.k8s.namespace" in said
    with pytest.raises(SandboxError, match="no namespace 'nowhere'"):
        await provider.reap()


@pytest.mark.parametrize(
    "route",
    [
        *("create sandboxtemplates", "exec pods"),
        *(
            pytest.param(route, marks=pytest.mark.slow)
            for route in ("create sandboxclaims", "watch sandboxclaims", "get pods")
        ),
    ],
)
async def test_user_who_may_not(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, route: str
) -> None:
    local_k8s.faults.forbidden.add(route)
    said = await refusal(provider, spec, SandboxError, local_k8s)
    assert "the cluster forbids it" in said
    assert "docs/kubernetes.md" in said


async def test_user_who_may_not_list(local_k8s: LocalK8s, provider: K8sProvider) -> None:
    local_k8s.faults.forbidden.add("get namespaces")  # which is no obstacle
    assert await provider.reap() == 0
    local_k8s.faults.forbidden.add("list sandboxclaims")
    with pytest.raises(
        SandboxError, match=r'cannot list the sandboxes: .*cannot list resource "sandboxclaims"'
    ):
        await provider.reap()


async def test_quota(local_k8s: LocalK8s, spec: SandboxSpec) -> None:
    local_k8s.faults.quota = 0
    said = await refusal(K8sProvider(K8sConfig(start_timeout=1.0)), spec, SandboxError, local_k8s)
    assert "exceeded quota" in said
    assert "raise the quota, or lower sandbox.k8s.max_concurrent" in said


@pytest.mark.slow
async def test_pod_that_fits_no_node(local_k8s: LocalK8s, spec: SandboxSpec) -> None:
    local_k8s.faults.unready = "0/3 nodes are available: 3 Insufficient memory."
    said = await refusal(K8sProvider(K8sConfig(start_timeout=1.0)), spec, SandboxError, local_k8s)
    assert "was not ready within 1 s (Unschedulable: 0/3 nodes are available: 3 Insufficient memory.)" in said
    assert "raise sandbox.k8s.start_timeout, or request less" in said


async def test_image_that_cannot_be_pulled(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the time to start is over."""
    monkeypatch.setattr("swe_sandbox_k8s.opening._LOOK", 0.05)
    said = await refusal(
        provider, spec.model_copy(update={"image": "no/such:image"}), ImageNotFound, local_k8s
    )
    assert "the cluster cannot pull it (ImagePullBackOff: " in said
    assert "pull secret" in said


@pytest.mark.slow
async def test_template_that_the_controller_never_sees(local_k8s: LocalK8s, spec: SandboxSpec) -> None:
    local_k8s.faults.unseen = 1000
    said = await refusal(K8sProvider(K8sConfig(start_timeout=1.0)), spec, SandboxError, local_k8s)
    assert "WarmPoolNotFound" in said


NO_DIRECTORY = "is not a directory of this host: '/nowhere'$"


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"image": None}, "the task names none"),
        ({"repository": Path("/nowhere")}, NO_DIRECTORY),
        ({"assets": (Asset(name="tool", path=Path("/nowhere"), digest="1"),)}, NO_DIRECTORY),
        ({"workdir": "/proc/x"}, "cannot prepare the sandbox.*/proc/x"),
    ],
)
async def test_task_that_cannot_have_its_sandbox(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, update: dict[str, object], words: str
) -> None:
    said = await refusal(provider, spec.model_copy(update=update), SandboxError, local_k8s)
    assert re.search(words, said)


async def test_variable_that_no_shell_can_set(provider: K8sProvider, spec: SandboxSpec) -> None:
    async with provider.open(spec) as sandbox:
        with pytest.raises(SandboxError, match="the variable 'a-b' cannot be set in a pod"):
            await sandbox.exec(["true"], env={"a-b": "c"})


@pytest.mark.parametrize("network", ["llm", pytest.param("none", marks=pytest.mark.slow)])
async def test_network_that_the_cluster_does_not_cut(
    local_k8s: LocalK8s, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    """It is refused, the second time before there is a pod, unless it is accepted or asked for."""
    monkeypatch.setattr("swe_sandbox_k8s.sandbox.POLICY", 0.0)
    local_k8s.faults.unenforced = True
    spec = spec.model_copy(update={"network": network})
    provider = K8sProvider(K8sConfig())
    provider.check_supported(spec)
    said = await refusal(provider, spec, PolicyRefused, local_k8s)
    assert "does not enforce the NetworkPolicy of the template" in said
    assert "sandbox.k8s.internet = true" in said
    calls = local_k8s.calls.copy()
    assert await refusal(provider, spec, PolicyRefused, local_k8s) == said
    assert local_k8s.calls == calls
    with pytest.raises(PolicyRefused):
        provider.check_supported(spec)
    provider.check_supported(spec.model_copy(update={"network": "full"}))
    accepting = K8sProvider(K8sConfig(internet=True))
    async with accepting.open(spec):
        pass
    assert any("sandbox.k8s.internet accepts it" in note for note in accepting.notes())


@pytest.mark.slow
async def test_policy_that_arrives_after_the_pod(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox opens once it is cut off."""
    said = ["open\n", "open\n", "closed\n"]
    ran = K8sSandbox._inside

    async def answer(self: K8sSandbox, script: str, *argv: str) -> tuple[int, str, str]:
        return (0, said.pop(0), "") if script == _PROBE else await ran(self, script, *argv)

    monkeypatch.setattr(K8sSandbox, "_inside", answer)
    async with provider.open(spec):
        assert said == []


async def test_network_that_cannot_be_probed(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swe_sandbox_k8s.sandbox._PROBE", "exit 0")
    said = await refusal(provider, spec, PolicyRefused, local_k8s)
    assert "its image has neither python3 nor node nor bash" in said
    provider.check_supported(spec)  # another image may be probed


@pytest.mark.parametrize(
    "settings",
    [
        {"token": "x"},
        {"namespace": "Not A Name"},
        {"labels": {"a b": "c"}},
        {"labels": {"kueue.x-k8s.io/queue-name": "a b"}},
        {"warm": -1},
        {"lifetime": 1},
        {"max_concurrent": 0},
    ],
)
def test_settings_that_are_none(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        K8sConfig(**settings)


async def test_cluster_is_shown(local_k8s: LocalK8s) -> None:
    found = await anyio.to_thread.run_sync(check_cluster)
    assert (found.state, found.text) == ("ok", f"{local_k8s.origin}, namespace 'default', 0 sandboxes")


async def test_container_that_cannot_start(
    local_k8s: LocalK8s, provider: K8sProvider, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image without a shell: at once, with the words of the cluster."""
    monkeypatch.setattr("swe_sandbox_k8s.manifests._IDLE", "exit 3")
    local_k8s.faults.failing = True
    said = await refusal(provider, spec, SandboxError, local_k8s)
    assert 'its container ended, StartError, exit code 128: exec: "sh": executable file not found' in said


@pytest.mark.slow
async def test_cluster_that_goes_away_while_it_opens(
    local_k8s: LocalK8s, spec: SandboxSpec, few: None
) -> None:
    local_k8s.faults.unready = "none fits"
    provider = K8sProvider(K8sConfig(start_timeout=1.0))
    for route in ("get sandboxclaims", "get pods"):
        local_k8s.faults.plan[route] = [503] * 100
    said = await refusal(provider, spec, SandboxError, local_k8s)
    assert "was not ready within 1 s (the API server does not answer: this failure was asked for)" in said
