"""The local Hub, asked by the real client."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio.to_thread import run_sync
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from swe_testing.hf import LocalHF

pytestmark = pytest.mark.anyio


def client(hf: LocalHF, token: str | None = None) -> HfApi:
    return HfApi(endpoint=hf.origin, token=token or hf.token)


def add(path: str, data: bytes) -> CommitOperationAdd:
    return CommitOperationAdd(path, data)


async def test_commit_is_there_whole(hf: LocalHF) -> None:
    api = client(hf)

    def use() -> None:
        url = api.create_repo("tester/rows", repo_type="dataset", private=True)
        assert url.repo_id == "tester/rows"
        operations = [add("data/a.parquet", b"\0\xff" * 9000), add("README.md", b"---\nlicense: mit\n---\n")]
        made = api.create_commit("tester/rows", operations, commit_message="first", repo_type="dataset")
        assert api.list_repo_files("tester/rows", repo_type="dataset") == [
            ".gitattributes",
            "README.md",
            "data/a.parquet",
        ]
        info = api.dataset_info("tester/rows")
        assert (info.private, info.sha) == (True, made.oid)
        names = [one.title for one in api.list_repo_commits("tester/rows", repo_type="dataset")]
        assert names == ["first", "initial commit"]

    await run_sync(use)
    assert hf.hub.repo("dataset", "tester/rows").files["data/a.parquet"] == b"\0\xff" * 9000
    assert hf.calls["hub.commit"] == 1


async def test_download_by_the_clients_own_cache(hf: LocalHF, tmp_path: Path) -> None:
    api = client(hf)

    def use() -> None:
        api.create_repo("tester/m")
        api.create_commit("tester/m", [add("a/b.bin", b"x" * 5000)], commit_message="one")
        path = api.hf_hub_download("tester/m", "a/b.bin", cache_dir=tmp_path / "c")
        assert Path(path).read_bytes() == b"x" * 5000
        folder = api.snapshot_download("tester/m", cache_dir=tmp_path / "c", allow_patterns="a/*")
        assert [one.name for one in (Path(folder) / "a").iterdir()] == ["b.bin"]
        with pytest.raises(EntryNotFoundError):
            api.hf_hub_download("tester/m", "nothing", cache_dir=tmp_path / "c")
        with pytest.raises(RevisionNotFoundError):
            api.hf_hub_download("tester/m", "a/b.bin", revision="nowhere", cache_dir=tmp_path / "c")

    await run_sync(use)


async def test_ranges_are_read(hf: LocalHF) -> None:
    from huggingface_hub import HfFileSystem

    api = client(hf)

    def use() -> None:
        api.create_repo("tester/d", repo_type="dataset", private=True)
        data = bytes(range(256)) * 40
        api.create_commit("tester/d", [add("x/y.bin", data)], commit_message="one", repo_type="dataset")
        files = HfFileSystem(endpoint=hf.origin, token=hf.token, skip_instance_cache=True)
        with files.open("datasets/tester/d/x/y.bin", block_size=512) as file:
            file.seek(1000)
            assert file.read(30) == data[1000:1030]
            file.seek(-5, 2)
            assert file.read() == data[-5:]

    await run_sync(use)


async def test_tree_paths_and_folders(hf: LocalHF) -> None:
    api = client(hf)

    def use() -> None:
        api.create_repo("testers/m")
        operations = [add("a/b/c.txt", b"1"), add("a/d.txt", b"22"), add("ab.txt", b"")]
        api.create_commit("testers/m", operations, commit_message="one")
        assert [one.path for one in api.list_repo_tree("testers/m")] == [".gitattributes", "a", "ab.txt"]
        assert [one.path for one in api.list_repo_tree("testers/m", "a")] == ["a/b", "a/d.txt"]
        every = [one.path for one in api.list_repo_tree("testers/m", "a", recursive=True)]
        assert every == ["a/b", "a/b/c.txt", "a/d.txt"]
        found = api.get_paths_info("testers/m", ["a/d.txt", "a", "none"])
        assert [one.path for one in found] == ["a/d.txt", "a"]
        with pytest.raises(EntryNotFoundError):
            list(api.list_repo_tree("testers/m", "none"))
        assert api.file_exists("testers/m", "ab.txt")
        assert not api.file_exists("testers/m", "a.txt")

    await run_sync(use)


async def test_deletions_and_what_did_not_change(hf: LocalHF) -> None:
    api = client(hf)

    def use() -> None:
        api.create_repo("tester/m")
        api.create_commit(
            "tester/m", [add("k/a", b"1"), add("k/b", b"2"), add("c", b"3")], commit_message="1"
        )
        first = api.create_commit(
            "tester/m", [CommitOperationDelete("k/", is_folder=True), add("c", b"4")], commit_message="2"
        )
        assert api.list_repo_files("tester/m") == [".gitattributes", "c"]
        again = api.create_commit("tester/m", [add("c", b"4")], commit_message="3")
        assert again.oid == first.oid  # the client saw by the id of the blob that there is nothing to do
        with pytest.raises(EntryNotFoundError):
            api.create_commit("tester/m", [CommitOperationDelete("k/a")], commit_message="4")

    await run_sync(use)


async def test_commit_on_an_outdated_parent_is_refused(hf: LocalHF) -> None:
    api = client(hf)

    def use() -> None:
        api.create_repo("tester/m")
        parent = api.model_info("tester/m").sha
        api.create_commit("tester/m", [add("a", b"1")], commit_message="1", parent_commit=parent)
        with pytest.raises(HfHubHTTPError) as caught:
            api.create_commit("tester/m", [add("b", b"1")], commit_message="2", parent_commit=parent)
        assert caught.value.response.status_code == 412

    await run_sync(use)
    assert "b" not in hf.hub.repo("model", "tester/m").files


async def test_folders_are_uploaded(hf: LocalHF, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "one.bin").write_bytes(b"1" * 100)
    (tmp_path / "two.txt").write_bytes(b"2")
    api = client(hf)

    def use() -> None:
        api.create_repo("tester/m")
        api.upload_folder(repo_id="tester/m", folder_path=tmp_path, path_in_repo="last-checkpoint")
        api.create_branch("tester/m", branch="side")
        api.upload_folder(repo_id="tester/m", folder_path=tmp_path, revision="side")
        assert [one.name for one in api.list_repo_refs("tester/m").branches] == ["main", "side"]

    await run_sync(use)
    assert hf.hub.repo("model", "tester/m").files["last-checkpoint/s/one.bin"] == b"1" * 100
    assert hf.hub.repo("model", "tester/m").at("side").files["two.txt"] == b"2"


async def test_names_that_are_taken(hf: LocalHF) -> None:
    api = client(hf)

    def use() -> None:
        api.create_repo("tester/m")
        api.create_repo("tester/m", exist_ok=True)
        api.create_repo("tester/m", repo_type="dataset")  # another kind is another name
        with pytest.raises(HfHubHTTPError, match="already created this model repo") as caught:
            api.create_repo("tester/m")
        assert caught.value.response.status_code == 409
        with pytest.raises(HfHubHTTPError, match="namespace 'somebody'") as caught:
            api.create_repo("somebody/m")
        assert caught.value.response.status_code == 403
        api.delete_repo("tester/m")
        with pytest.raises(RepositoryNotFoundError):
            api.delete_repo("tester/m")
        assert not api.repo_exists("tester/m")
        assert api.repo_exists("tester/m", repo_type="dataset")

    await run_sync(use)


async def test_tokens_and_scopes(hf: LocalHF) -> None:
    reader = hf.add_token(["repo.content.read"])
    api, read = client(hf), client(hf, reader)

    def use() -> None:
        assert read.whoami()["auth"]["accessToken"]["role"] == "fineGrained"
        api.create_repo("tester/secret", private=True)
        api.create_repo("tester/open")
        assert read.model_info("tester/secret").private
        for attempt in (
            lambda: read.create_repo("tester/n"),
            lambda: read.create_commit("tester/secret", [add("a", b"1")], commit_message="1"),
            lambda: read.delete_repo("tester/open"),
        ):
            with pytest.raises(HfHubHTTPError, match=r"'repo\.write' is missing") as caught:
                attempt()
            assert caught.value.response.status_code == 403
        nobody = HfApi(endpoint=hf.origin, token=False)
        assert nobody.model_info("tester/open").id == "tester/open"
        for missing in ("tester/secret", "tester/none"):  # nobody learns which is there
            with pytest.raises(RepositoryNotFoundError) as hidden:
                nobody.model_info(missing)
            assert hidden.value.response.status_code == 401
        with pytest.raises(HfHubHTTPError, match="Invalid user token"):
            client(hf, "hf_" + "x" * 34).whoami()

    await run_sync(use)


async def test_failures_that_are_asked_for(hf: LocalHF) -> None:
    api = client(hf)
    await run_sync(api.create_repo, "tester/m")
    hf.faults.plan("hub.commit", 503)

    def commit() -> None:
        api.create_commit("tester/m", [add("a", b"1")], commit_message="1")

    with pytest.raises(HfHubHTTPError, match="503"):
        await run_sync(commit)
    assert "a" not in hf.hub.repo("model", "tester/m").files
    await run_sync(commit)
    assert hf.hub.repo("model", "tester/m").files["a"] == b"1"


async def test_answer_that_is_lost_was_carried_out(hf: LocalHF) -> None:
    api = client(hf)
    await run_sync(api.create_repo, "tester/m")
    hf.faults.routes, hf.faults.lost = ("hub.commit",), 1.0

    def commit() -> None:
        api.create_commit("tester/m", [add("a", b"1")], commit_message="1")

    with pytest.raises(Exception, match="disconnected"):
        await run_sync(commit)
    assert "a" in hf.hub.repo("model", "tester/m").files
