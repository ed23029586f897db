"""Assets of the hf sandbox in a data set that sandboxes mount, the real client against the local HF."""

from __future__ import annotations

import os
import re
from pathlib import Path

import anyio
import pytest
from pydantic import ValidationError

from swe_core.api.sandbox import Asset, Sandbox, SandboxSpec
from swe_core.errors import ConfigError, SandboxError
from swe_sandbox_hf.assets import FOLDER, MOUNT
from swe_sandbox_hf.config import HfConfig
from swe_sandbox_hf.provider import HfProvider
from swe_testing.hf import LocalHF
from swe_testing.hf.repos import Repo

NAME = "tester/agents"
COMMIT, INFO = "hub.commit", "hub.info"


def provider_of(repo: str = NAME) -> HfProvider:
    """One as of a process of its own: each asks the Hub for itself."""
    return HfProvider(HfConfig(internet=True, assets_repo=repo))


def repo(local_hf: LocalHF) -> Repo:
    return local_hf.hub.repo("dataset", NAME)


def archives_in(local_hf: LocalHF) -> list[str]:
    return [path for path in repo(local_hf).files if path.startswith(FOLDER)]


async def look(sandbox: Sandbox) -> None:
    """See that the asset is there, whole, and nobody's to change."""
    done = await sandbox.exec(["/opt/swe/mine/link"])
    assert done.text == "it runs\n"
    assert await sandbox.read("/opt/swe/mine/file") == b"of the agent"
    for deed in ("echo x >/opt/swe/mine/file", "rm -r /opt/swe/mine/bin", f"rm {MOUNT}/*"):
        assert (await sandbox.exec(["sh", "-c", deed])).exit_code != 0, deed


def mounted(local_hf: LocalHF, sandbox: Sandbox) -> list[dict[str, object]]:
    """What a sandbox's job mounts, but for the client's own server."""
    volumes = local_hf.jobs.jobs[sandbox.id].spec["volumes"]
    return [volume for volume in volumes if volume["type"] != "bucket"]


async def use(provider: HfProvider, spec: SandboxSpec) -> None:
    """Open a sandbox, look, and close it."""
    async with provider.open(spec) as sandbox:
        await look(sandbox)


@pytest.mark.slow
async def test_asset_is_uploaded_once(local_hf: LocalHF, with_asset: SandboxSpec, spec: SandboxSpec) -> None:
    """With sandboxes that open at once, one after another, and in another process; and mounted as it was."""
    provider = provider_of()
    asked: list[dict[str, object]] = []

    async def note() -> None:
        async with provider.open(with_asset) as sandbox:
            await look(sandbox)
            asked.extend(mounted(local_hf, sandbox))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(note)
    assert local_hf.calls[COMMIT] == 1
    assert repo(local_hf).private
    head = repo(local_hf).commits[-1].id
    info = local_hf.calls[INFO]
    await note()
    assert (local_hf.calls[COMMIT], local_hf.calls[INFO]) == (1, info)
    expected = {"type": "dataset", "source": NAME, "mountPath": MOUNT, "revision": head, "readOnly": True}
    expected["path"] = FOLDER
    assert asked == [expected] * 4
    local_hf.calls["server.files"] = 0
    await use(provider_of(), with_asset)
    assert local_hf.calls["server.files"] == 0, "nothing is uploaded to a sandbox"
    async with provider.open(spec) as sandbox:  # as for grading
        assert mounted(local_hf, sandbox) == []
    assert local_hf.calls[COMMIT] == 1
    assert len(archives_in(local_hf)) == 1


@pytest.mark.slow
async def test_upload_whose_answer_is_lost(local_hf: LocalHF, with_asset: SandboxSpec) -> None:
    local_hf.faults.lost, local_hf.faults.routes = 0.5, (COMMIT, "hub.create", INFO)
    local_hf.faults.failing = 0.2
    await use(provider_of(), with_asset)
    assert len(repo(local_hf).commits) == 2


@pytest.mark.slow
async def test_mounts_of_a_run_cannot_be_swapped(local_hf: LocalHF, with_asset: SandboxSpec) -> None:
    provider = provider_of()
    await use(provider, with_asset)
    (path,) = archives_in(local_hf)
    repo(local_hf).commit("main", {path: b"something else"}, "swap")
    await use(provider, with_asset)
    with pytest.raises(SandboxError, match=r"cannot unpack the files of '/opt/swe/mine' in the sandbox"):
        await use(provider_of(), with_asset)  # which mounts what is there now


async def test_sandbox_sees_nothing_else_of_the_data_set(local_hf: LocalHF, with_asset: SandboxSpec) -> None:
    taken = Repo.new("dataset", NAME, private=True)
    taken.commit("main", {"private.txt": b"of somebody"}, "data")
    local_hf.hub.repos["dataset", NAME] = taken
    async with provider_of().open(with_asset) as sandbox:
        await look(sandbox)
        assert (await sandbox.exec(["ls", MOUNT])).text.strip() == Path(*archives_in(local_hf)).name
    assert taken.files["private.txt"] == b"of somebody"


# ---------------------------------------------------------------- what can be wrong


async def refusal(provider: HfProvider, spec: SandboxSpec, local_hf: LocalHF) -> str:
    """The sentence that an attempt to open ends in; nothing was started that costs money."""
    with anyio.fail_after(60), pytest.raises(SandboxError) as caught:
        async with provider.open(spec):
            pass
    said = str(caught.value)
    assert "\n" not in said
    assert os.environ["HF_TOKEN"] not in said
    assert local_hf.jobs.jobs == {}
    return said


async def refused_before_the_run(provider: HfProvider, kind: type[Exception]) -> str:
    """What the first thing that a run does ends in."""
    with anyio.fail_after(60), pytest.raises(kind) as caught:
        await provider.reap()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_listing_sandboxes_creates_nothing(local_hf: LocalHF) -> None:
    assert await provider_of().list() == []
    assert local_hf.hub.repos == {}


async def test_leftovers_are_reaped_whatever_the_data_set_is(
    local_hf: LocalHF, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with HfProvider(HfConfig(internet=True)).open(spec) as sandbox:
        monkeypatch.setattr("swe_sandbox_hf.provider.is_orphaned", lambda owner: True)
        with pytest.raises(ConfigError, match=r"data set 'stranger/agents' .* may not do that"):
            await provider_of("stranger/agents").reap()
        assert sandbox.id not in [job.id for job in local_hf.jobs.running()]


READER = ["job.read", "job.write", "repo.content.read"]


@pytest.mark.parametrize(
    ("name", "scopes", "words"),
    [
        ("stranger/agents", None, "^cannot use the data set .stranger.agents. of .*one of yours"),
        (NAME, READER, r"repo\.write"),
        ("tester/a--b", None, r"'tester/a--b' of .*: that is no name of a repository \("),
    ],
)
async def test_data_set_that_cannot_be_had(
    local_hf: LocalHF, monkeypatch: pytest.MonkeyPatch, name: str, scopes: list[str] | None, words: str
) -> None:
    if scopes is not None:
        monkeypatch.setenv("HF_TOKEN", local_hf.add_token(scopes))
    said = await refused_before_the_run(provider_of(name), ConfigError)
    assert re.search(words, said)
    assert os.environ["HF_TOKEN"] not in said


@pytest.mark.slow
async def test_token_that_may_only_read(
    local_hf: LocalHF, with_asset: SandboxSpec, asset: Asset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is enough if another user has uploaded the archives."""
    await use(provider_of(), with_asset)
    local_hf.jobs.jobs.clear()
    monkeypatch.setenv("HF_TOKEN", local_hf.add_token(READER))
    newer = {"assets": (asset.model_copy(update={"digest": "2"}),)}
    said = await refusal(provider_of(), with_asset.model_copy(update=newer), local_hf)
    assert said.startswith(f"cannot upload the files of 'mine' to the data set {NAME!r} of sandbox.hf.assets")
    assert "which lacks them: the Hugging Face token may not do that" in said
    assert "run once with a token that may write there" in said
    await use(provider_of(), with_asset)


@pytest.mark.slow
async def test_data_set_that_is_public(local_hf: LocalHF, with_asset: SandboxSpec) -> None:
    """Nothing becomes public by surprise, and published archives can be used."""
    await use(provider_of(), with_asset)
    local_hf.jobs.jobs.clear()
    full = repo(local_hf)
    local_hf.hub.repos["dataset", NAME] = Repo.new("dataset", NAME, private=False)
    said = await refusal(provider_of(), with_asset, local_hf)
    assert f"the data set {NAME!r} of sandbox.hf.assets_repo is public" in said
    assert archives_in(local_hf) == []
    full.private = False
    local_hf.hub.repos["dataset", NAME] = full
    await use(provider_of(), with_asset)


async def test_hub_that_is_down(local_hf: LocalHF, with_asset: SandboxSpec, few: None) -> None:
    local_hf.faults.failing, local_hf.faults.statuses = 1.0, (503,)
    local_hf.faults.routes = (INFO,)
    said = await refused_before_the_run(provider_of(), SandboxError)
    assert f"cannot use the data set {NAME!r} of sandbox.hf.assets_repo: " in said
    assert "answered 503" in said
    local_hf.faults.routes = (COMMIT,)
    said = await refusal(provider_of(), with_asset, local_hf)
    assert f"cannot upload the files of 'mine' to the data set {NAME!r}" in said
    assert "answered 503" in said


async def test_data_set_that_changes_all_the_time(
    local_hf: LocalHF, with_asset: SandboxSpec, few: None
) -> None:
    local_hf.faults.plan(COMMIT, 412, 412)
    said = await refusal(provider_of(), with_asset, local_hf)
    assert "it was changed by others during each of 2 attempts" in said
    local_hf.faults.plan(COMMIT, 412)
    await use(provider_of(), with_asset)
    assert len(repo(local_hf).commits) == 2


@pytest.mark.parametrize("settings", [{"assets_repo": "agents"}, {"assets_repo": NAME, "pool": True}])
def test_settings_that_are_none(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"OWNER/NAME|leave out assets_repo, or pool"):
        HfConfig(**settings)
