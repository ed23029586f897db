"""What can be wrong with an account, a setting or a task: one sentence each, nothing left, no token in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from huggingface_hub import JobHardwareInfo, JobInfo, constants
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from swe_core.api.sandbox import Asset, SandboxSpec
from swe_core.errors import ConfigError, ImageNotFound, PolicyRefused, SandboxError, SweError
from swe_core.run.plan import check_sandbox_supported
from swe_core.run.settings import load_settings
from swe_core.system.process_owner import LABEL
from swe_sandbox_hf.checks import account
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.hardware import Flavor, check, flavors_of
from swe_sandbox_hf.labels import POOL, labels_of, owner_of, pool_name
from swe_sandbox_hf.provider import HfProvider
from swe_testing.hf import LocalHF


async def refusal(provider: HfProvider, spec: SandboxSpec, kind: type[SweError], local_hf: LocalHF) -> str:
    """The sentence that an attempt to open ends in."""
    with anyio.fail_after(60):
        with pytest.raises(SweError) as caught:
            async with provider.open(spec):
                pass
    assert type(caught.value) is kind
    said = str(caught.value)
    assert "\n" not in said
    assert local_hf.token not in said
    assert local_hf.jobs.running() == []
    return said


Spoil = Callable[[LocalHF, pytest.MonkeyPatch], object]
OFFLINE = "http://127.0.0.1:9"
TROUBLE: dict[str, tuple[Spoil, str]] = {
    "no token": (
        lambda hf, patch: patch.delenv("HF_TOKEN"),
        "^cannot use Hugging Face Sandboxes: there is no Hugging Face token; set HF_TOKEN",
    ),
    "rejected token": (lambda hf, _: hf.accounts.revoke(hf.token), "not accept the token.*settings/tokens"),
    "token that may not start jobs": (
        lambda hf, patch: patch.setenv("HF_TOKEN", hf.add_token(["job.read"])),
        "the Hugging Face token may not do that.*job.write",
    ),
    "foreign namespace": (lambda hf, patch: None, "somebody-else"),
    "quota": (lambda hf, patch: setattr(hf.faults, "quota", 0), r"limits.*sandbox\.hf\.max_concurrent"),
    "never ready": (lambda hf, _: setattr(hf.faults, "never_ready", True), "not become ready within 1s"),
    "service that is down": (lambda hf, patch: failing(hf, 503), "answered 503"),
    "rate limit": (lambda hf, patch: failing(hf, 429, "jobs.create"), "limits how often it is asked"),
    "no service": (
        lambda hf, patch: patch.setattr(constants, "ENDPOINT", OFFLINE),
        f"Hugging Face at '{OFFLINE}' does not answer.*HF_ENDPOINT",
    ),
}
SETTINGS = {"foreign namespace": {"namespace": "somebody-else"}, "never ready": {"start_timeout": 1.0}}


def failing(hf: LocalHF, status: int, *routes: str) -> None:
    """Every request fails, or every one of these routes."""
    hf.faults.failing, hf.faults.statuses = 1.0, (status,)
    if routes:
        hf.faults.routes = routes


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_account_or_service_in_trouble(
    local_hf: LocalHF, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch, few: None, trouble: str
) -> None:
    spoil, words = TROUBLE[trouble]
    spoil(local_hf, monkeypatch)
    provider = HfProvider(HfConfig.model_validate({"internet": True, **SETTINGS.get(trouble, {})}))
    assert re.search(words, await refusal(provider, spec, SandboxError, local_hf))
    if "token" in trouble and "jobs" not in trouble:
        assert (await anyio.to_thread.run_sync(account)).state == "missing"
        with pytest.raises(SandboxError):
            await provider.reap()  # what a run does first


async def test_token_that_may_not_list_jobs(
    local_hf: LocalHF, provider: HfProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", local_hf.add_token(["job.write"]))
    with pytest.raises(SandboxError, match=r"cannot list the sandboxes: .*job\.read"):
        await provider.reap()


async def test_unknown_flavor(local_hf: LocalHF, spec: SandboxSpec) -> None:
    provider = HfProvider(HfConfig(internet=True, flavor="cpu-huge"))
    said = await refusal(provider, spec, ConfigError, local_hf)
    assert re.match("sandbox.hf.flavor is 'cpu-huge', which .*: choose one of .*cpu-basic", said)
    with pytest.raises(ConfigError, match="cpu-huge"):
        await provider.reap()


TOO_SMALL = (
    r"^the flavor 'cpu-basic' of sandbox\.hf\.flavor has 2\.0 processors and 16384 MiB"
    ".*choose another, such as cpu-upgrade"
)
NO_IMAGE = "^cannot open a sandbox of the image 'no/such:image': .*manifest unknown"
NO_DIRECTORY = "is not a directory of this host: '/nowhere'$"


@pytest.mark.parametrize(
    ("update", "kind", "words"),
    [
        ({"memory_mb": 20_000}, PolicyRefused, TOO_SMALL),
        ({"image": "no/such:image"}, ImageNotFound, NO_IMAGE),
        ({"image": None}, SandboxError, "the task names none"),
        ({"repository": Path("/nowhere")}, SandboxError, NO_DIRECTORY),
        ({"assets": (Asset(name="tool", path=Path("/nowhere"), digest="1"),)}, SandboxError, NO_DIRECTORY),
        ({"workdir": "/proc/x"}, SandboxError, "cannot prepare the sandbox.*/proc/x"),
    ],
)
@pytest.mark.slow
async def test_task_that_cannot_have_its_sandbox(
    local_hf: LocalHF, provider: HfProvider, spec: SandboxSpec, update: Any, kind: type[SweError], words: str
) -> None:
    said = await refusal(provider, spec.model_copy(update=update), kind, local_hf)
    assert re.search(words, said)


@pytest.mark.parametrize(
    ("network", "accepted", "agents", "said"),
    [
        ("llm", False, True, "no sandbox for the agents: .* network 'llm' .*sandbox.hf.internet = true"),
        ("full", False, False, "no sandbox for the tests: .* network 'none' .*sandbox.hf.internet = true"),
        ("llm", True, True, None),
    ],
)
async def test_policy_that_cannot_be_enforced_is_refused_before_the_run(
    local_hf: LocalHF, spec: SandboxSpec, network: str, accepted: bool, agents: bool, said: str | None
) -> None:
    settings = load_settings(command_line={"resources": {"network": network}})
    provider = HfProvider(HfConfig(internet=accepted))
    if said is None:
        check_sandbox_supported(provider, settings, agents=agents)
        return
    with pytest.raises(ConfigError, match=said):
        check_sandbox_supported(provider, settings, agents=agents)
    assert not local_hf.calls
    assert "sandbox.hf.internet = true" in await refusal(provider, spec, PolicyRefused, local_hf)


async def test_flavor_that_is_too_small_is_refused_before_the_run(
    local_hf: LocalHF, provider: HfProvider
) -> None:
    settings = load_settings(command_line={"resources": {"cpus": 4.0}})
    check_sandbox_supported(provider, settings)
    await provider.reap()  # which asks what there is
    with pytest.raises(ConfigError, match=r"has 2.0 processors .* choose another, such as cpu-upgrade"):
        check_sandbox_supported(provider, settings)


async def test_internet_that_is_asked_for_needs_no_consent(local_hf: LocalHF, spec: SandboxSpec) -> None:
    async with HfProvider(HfConfig()).open(spec.model_copy(update={"network": "full"})) as sandbox:
        assert (await sandbox.exec(["true"])).exit_code == 0


def test_token_is_no_setting() -> None:
    """It would be written down with the others."""
    with pytest.raises(ValidationError):
        HfConfig(token="hf_x")


async def test_account_is_shown(local_hf: LocalHF) -> None:
    found = await anyio.to_thread.run_sync(account)
    assert (found.state, found.text) == ("ok", "a token of 'tester', role 'write'")


def _hardware(name: str, cpu: str, ram: str, dollars: float) -> JobHardwareInfo:
    cost = {"unitCostMicroUSD": 1, "unitCostUSD": dollars, "unitLabel": "minute"}
    return JobHardwareInfo(name=name, prettyName=name, cpu=cpu, ram=ram, **cost)


def test_unknown_answers_of_the_service_refuse_no_run() -> None:
    flavors = flavors_of([_hardware("odd", "many", "plenty", 0.1), _hardware("b", "2 vCPU", "512 MB", 0.01)])
    assert list(flavors) == ["b", "odd"]
    assert flavors["b"] == Flavor("b", 2.0, 512, 0.01)
    check(SandboxSpec(memory_mb=10**6, cpus=500), "odd", flavors)
    with pytest.raises(PolicyRefused, match="choose another, such as odd"):
        check(SandboxSpec(memory_mb=1024), "b", flavors)
    with pytest.raises(PolicyRefused, match="no flavor has this much, so request less"):
        check(SandboxSpec(memory_mb=1024), "b", {"b": flavors["b"]})


def _job(labels: dict[str, str]) -> JobInfo:
    owner = {"id": "1", "name": "me", "type": "user"}
    return JobInfo(id="1", owner=owner, status={"stage": "RUNNING"}, labels=labels)


@given(labels=st.dictionaries(st.text(min_size=1), st.text()), host=st.from_regex(r"\A[a-z0-9._-]+\Z"))
def test_labels_are_such_as_labels_may_be(labels: dict[str, str], host: str) -> None:
    owner = f"{host}/0-1-2/-/77/123"
    made = labels_of(labels, owner, "name")
    for key, value in made.items():
        assert re.fullmatch(r"[a-zA-Z0-9._-]*", key + value)
        assert not key.startswith("hf-sandbox")
    assert owner_of(_job(made)) == owner
    assert owner_of(_job({POOL: pool_name(owner, "0a1b")})) == owner


def test_jobs_of_others_have_no_owner() -> None:
    for labels in ({}, {"hf-sandbox": "1"}, {POOL: "pool-1"}, {LABEL: ""}):
        assert owner_of(_job(labels)) is None
