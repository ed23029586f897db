"""Volumes of the local HF's jobs, by the real client: what a job sees of the Hub, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import anyio
import anyio.to_thread
import pytest

from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_testing.hf import LocalHF, jobs

hub = pytest.importorskip("huggingface_hub")
needs_bubblewrap = pytest.mark.skipif(why_not(find_bwrap()) is not None, reason="no user namespaces here")

IMAGE = "python:3.12"
NAME = "tester/files"


@pytest.fixture
def api(threaded_hf: LocalHF) -> object:
    """A client, and a private data set with two files."""
    api = hub.HfApi()
    api.create_repo(NAME, repo_type="dataset", private=True)
    for path in ("top.txt", "folder/deep/file.txt"):
        commit(api, path, path.encode())
    return api


def commit(api: object, path: str, data: bytes) -> str:
    """The new commit's id."""
    made = api.upload_file(path_or_fileobj=data, path_in_repo=path, repo_id=NAME, repo_type="dataset")
    return str(made.oid)


def volume(**options: object) -> object:
    """The data set at /data."""
    return hub.Volume(**{"type": "dataset", "source": NAME, "mount_path": "/data", **options})


def printed(script: str, *volumes: object, image: str = IMAGE) -> list[str]:
    """What a job that sees these prints."""
    job = hub.run_job(image=image, command=["sh", "-c", script], volumes=list(volumes))
    log = list(hub.fetch_job_logs(job_id=job.id, follow=True))
    assert hub.inspect_job(job_id=job.id).status.stage == "COMPLETED", log
    return log


@needs_bubblewrap
def test_job_sees_a_repository(threaded_hf: LocalHF, api: object) -> None:
    assert printed("cd /data; cat top.txt; echo; cat folder/deep/file.txt", volume()) == [
        "top.txt",
        "folder/deep/file.txt",
    ]


@needs_bubblewrap
def test_volume_is_read_only(threaded_hf: LocalHF, api: object) -> None:
    log = printed("echo x >/data/top.txt || echo no; rm -rf /data/folder || echo neither", volume())
    assert log[-1] == "neither"
    assert "no" in log
    assert printed("cat /data/folder/deep/file.txt", volume()) == ["folder/deep/file.txt"]


@needs_bubblewrap
def test_revision_is_what_it_was(threaded_hf: LocalHF, api: object) -> None:
    first = commit(api, "top.txt", b"first\n")
    second = commit(api, "top.txt", b"second\n")
    script = "cat /data/top.txt"
    assert printed(script, volume(revision=first)) == ["first"]
    assert printed(script, volume(revision=second)) == printed(script, volume()) == ["second"]


@needs_bubblewrap
def test_folder_and_several_volumes(threaded_hf: LocalHF, api: object) -> None:
    deep = volume(path="folder/deep", mount_path="/tmp/deep", read_only=True)
    assert printed("ls /tmp/deep; ls /data", volume(), deep) == ["file.txt", "folder", "top.txt"]


@needs_bubblewrap
def test_sandbox_sees_it_too(threaded_hf: LocalHF, api: object) -> None:
    """And not the bucket of the server that its client asks for."""
    with hub.Sandbox.create(image=IMAGE, volumes=[volume()]) as sandbox:
        assert sandbox.files.read("/data/top.txt") == b"top.txt"


@pytest.mark.slow
@pytest.mark.docker
def test_container_sees_it_too(threaded_hf: LocalHF, api: object, docker_image: str) -> None:
    log = printed("cat /data/top.txt; echo; echo x >/data/top.txt || echo no", volume(), image=docker_image)
    assert "no" in log  # anywhere: an engine passes on two streams without an order between them
    assert any(line.startswith("top.txt") for line in log)


@pytest.mark.parametrize(
    ("status", "options", "said"),
    [
        (404, {"source": "tester/other"}, "Repository not found"),
        (404, {"type": "model"}, "Repository not found"),
        (404, {"revision": "0" * 40}, "Invalid rev id"),
        (404, {"path": "nowhere"}, "no folder 'nowhere'"),
        (404, {"type": "bucket"}, "no such bucket"),
        (400, {"read_only": False}, "read-only"),
        (400, {"mount_path": "data"}, "absolute"),
        (400, {"mount_path": "/data/../etc"}, "absolute"),
    ],
)
def test_unmountable_asset_is_refused(
    threaded_hf: LocalHF, api: object, status: int, options: dict[str, object], said: str
) -> None:
    with pytest.raises(hub.errors.HfHubHTTPError, match=said) as caught:
        printed("true", volume(**options))
    assert caught.value.response.status_code == status
    assert not threaded_hf.jobs.jobs


def test_token_that_may_not_read_is_refused(threaded_hf: LocalHF, api: object) -> None:
    """A private one, that is: anybody reads what is public."""
    token = threaded_hf.add_token({"job.read", "job.write"})
    options = {"image": IMAGE, "command": ["true"], "volumes": [volume()], "token": token}
    with pytest.raises(hub.errors.HfHubHTTPError, match=r"repo\.content\.read"):
        hub.run_job(**options, namespace="tester")
    threaded_hf.hub.repo("dataset", NAME).private = False
    hub.run_job(**options, namespace="tester")


@pytest.mark.anyio
async def test_end_waits_for_what_is_being_written(
    local_hf: LocalHF, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, written = threading.Event(), threading.Event(), threading.Event()

    def write(job: jobs.Job) -> Sequence[object]:
        begun.set()
        go.wait()
        job.directory.mkdir(parents=True)
        written.set()
        return []

    monkeypatch.setattr(jobs, "_written", write)
    await anyio.to_thread.run_sync(lambda: hub.run_job(image=IMAGE, command=["true"]))
    (job,) = local_hf.jobs.running()
    await anyio.to_thread.run_sync(begun.wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(local_hf.jobs.aclose)
        await anyio.wait_all_tasks_blocked()
        go.set()
    await anyio.to_thread.run_sync(written.wait)
    assert not job.directory.exists()
    assert job.stage == "CANCELED"
