"""The local Spaces, asked by the real client."""

from __future__ import annotations

import pytest
from anyio.to_thread import run_sync
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from swe_testing.hf import LocalHF

pytestmark = pytest.mark.anyio

README = b"---\nsdk: docker\napp_port: 7860\n---\n"


@pytest.fixture
def api(hf: LocalHF) -> HfApi:
    return HfApi(endpoint=hf.origin, token=hf.token)


def create(api: HfApi, **options: object) -> None:
    api.create_repo("tester/s", repo_type="space", space_sdk="docker", private=True, **options)


def upload(api: HfApi, files: dict[str, bytes]) -> None:
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    api.create_commit("tester/s", operations, commit_message="files", repo_type="space")


async def test_one_call_creates_everything(hf: LocalHF, api: HfApi) -> None:
    def use() -> None:
        create(
            api,
            space_hardware="a10g-large",
            space_sleep_time=3600,
            space_secrets=[{"key": "HF_TOKEN", "value": "very-secret"}],
            space_variables=[{"key": "MODEL", "value": "m"}],
        )
        secrets = api.get_space_secrets("tester/s")
        assert list(secrets) == ["HF_TOKEN"]
        assert "very-secret" not in repr(secrets)
        assert {name: one.value for name, one in api.get_space_variables("tester/s").items()} == {
            "MODEL": "m"
        }
        runtime = api.get_space_runtime("tester/s")
        assert (runtime.stage, runtime.sleep_time) == ("NO_APP_FILE", 3600)
        assert (runtime.hardware, runtime.requested_hardware) == (None, "a10g-large")
        assert api.space_info("tester/s").sdk == "docker"

    await run_sync(use)
    assert hf.hub.space("tester/s").secrets == {"HF_TOKEN": "very-secret"}


async def test_from_the_files_to_running(hf: LocalHF, api: HfApi) -> None:
    def use() -> None:
        create(api)
        upload(api, {"Dockerfile": b"FROM scratch\n", "README.md": b"# no front matter\n"})
        assert api.get_space_runtime("tester/s").stage == "CONFIG_ERROR"
        hf.spaces.build_seconds = 600.0
        upload(api, {"README.md": README})
        assert api.get_space_runtime("tester/s").stage == "BUILDING"
        ready_at = hf.hub.space("tester/s").ready_at
        assert ready_at is not None
        hf.hub.space("tester/s").ready_at = ready_at - 600.0
        assert api.wait_for_space("tester/s", timeout=120, poll_interval=0.02).stage == "RUNNING"

    with pytest.warns(UserWarning, match="metadata"):
        await run_sync(use)


async def test_pause_restart_and_what_a_build_may_end_in(hf: LocalHF, api: HfApi) -> None:
    def use() -> None:
        create(api)
        upload(api, {"Dockerfile": b"FROM scratch\n", "README.md": README})
        assert api.wait_for_space("tester/s").stage == "RUNNING"
        assert api.pause_space("tester/s").stage == "PAUSED"
        upload(api, {"x": b"1"})
        assert api.get_space_runtime("tester/s").stage == "PAUSED"
        hf.hub.space("tester/s").outcome = "BUILD_ERROR"
        assert api.restart_space("tester/s").stage == "BUILD_ERROR"
        before = hf.hub.space("tester/s").restarts
        api.add_space_secret("tester/s", "KEY", "v")
        assert hf.hub.space("tester/s").restarts == before + 1
        api.delete_space_secret("tester/s", "KEY")
        assert api.get_space_secrets("tester/s") == {}
        assert api.set_space_sleep_time("tester/s", 60).sleep_time == 60
        assert api.request_space_hardware("tester/s", "t4-small").requested_hardware == "t4-small"

    with pytest.warns(UserWarning, match="cpu-basic"):
        await run_sync(use)


async def test_logs_are_followed_to_the_end(hf: LocalHF, api: HfApi) -> None:
    def use() -> list[str]:
        create(api)
        upload(api, {"Dockerfile": b"FROM scratch\n", "README.md": README})
        hf.hub.space("tester/s").run_log += ["one", "two"]
        seen = []
        for line in api.fetch_space_logs("tester/s", follow=True):
            seen.append(line)
            if line == "two\n":
                hf.hub.space("tester/s").run_log.append("three")
            if line == "three\n":
                api.pause_space("tester/s")
        return seen

    assert await run_sync(use) == ["one\n", "two\n", "three\n"]


async def test_refused_values(hf: LocalHF, api: HfApi) -> None:
    def refused(status: int, **options: object) -> None:
        with pytest.raises(HfHubHTTPError) as caught:
            create(api, **options)
        assert caught.value.response.status_code == status

    def use() -> None:
        refused(400, space_hardware="a-thousand-gpus")
        hf.hub.may_pay = False
        refused(402, space_hardware="a100-large")
        create(api)
        with pytest.raises(HfHubHTTPError, match="Invalid key"):
            api.add_space_secret("tester/s", "not a name", "v")
        reader = HfApi(endpoint=hf.origin, token=hf.add_token(["repo.content.read"]))
        with pytest.raises(HfHubHTTPError, match=r"'repo\.write' is missing"):
            reader.pause_space("tester/s")
        with pytest.raises(RepositoryNotFoundError):
            api.get_space_runtime("tester/none")
        assert [one.name for one in api.list_spaces_hardware()][:1] == ["cpu-basic"]

    await run_sync(use)
