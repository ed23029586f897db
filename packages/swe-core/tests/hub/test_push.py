"""Pushing runs to the local Hub by the real client: each rollout once, despite failures."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from huggingface_hub import HfApi
from hypothesis import given
from hypothesis import strategies as st

from swe_core.cli.push import push
from swe_core.errors import UsageError
from swe_core.hub import push as hub_push
from swe_core.hub.options import PushOptions
from swe_core.hub.push import push_run
from swe_core.hub.pushed_run import PushedRun
from swe_core.rollout.run_directory import RunDirectory
from swe_testing.hf import LocalHF
from swe_testing.hf.faults import Faults
from swe_testing.hf.repos import Repo

from .runs import add, error, ids_of, new_run, rollout, rows_of

TO = "tester/rollouts"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = new_run(tmp_path / "run")
    for number in range(3):
        add(run, rollout(f"t-{number}", number))
    return run


def repo(hf: LocalHF, name: str = TO) -> Repo:
    return hf.hub.repo("dataset", name)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(push, arguments, standalone_mode=False)


def refused(run: RunDirectory, to: str = TO, **options: object) -> str:
    with pytest.raises(UsageError) as caught:
        push_run(run, PushOptions(to=to, **options))
    return str(caught.value)


def test_runs_are_pushed_once(hf: LocalHF, run: RunDirectory, tmp_path: Path) -> None:
    done = push_run(run, PushOptions(to=TO))
    assert (done.new, done.finished, done.url) == (3, 3, f"{hf.origin}/datasets/{TO}")
    assert repo(hf).private
    assert ids_of(repo(hf)) == ["t-0", "t-1", "t-2"]
    commits = len(repo(hf).commits)
    assert push_run(run, PushOptions(to=TO)).new == 0
    assert len(repo(hf).commits) == commits
    add(run, rollout("t-3", 3))
    assert push_run(run, PushOptions(to=TO)).new == 1
    assert ids_of(repo(hf)) == ["t-0", "t-1", "t-2", "t-3"]
    assert len([name for name in repo(hf).files if name.startswith("data/")]) == 2
    other = new_run(tmp_path / "other")
    add(other, rollout("t-0"))
    push_run(other, PushOptions(to=TO))
    assert len({row["run"] for row in rows_of(repo(hf))}) == 2
    assert "5 rollouts of 1 task" in repo(hf).files["README.md"].decode()


def test_shards_have_a_bounded_size(hf: LocalHF, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def shards() -> int:
        return sum(name.startswith("data/") for name in repo(hf).files)

    monkeypatch.setattr(hub_push, "MAX_ROWS", 2)
    assert (push_run(run, PushOptions(to=TO)).new, shards()) == (3, 2)
    monkeypatch.setattr(hub_push, "MAX_BYTES", 1)
    for number in (3, 4):
        add(run, rollout(f"t-{number}", number))
    push_run(run, PushOptions(to=TO))
    assert (ids_of(repo(hf)), shards()) == ([f"t-{number}" for number in range(5)], 4)


def test_repeated_rollout_is_a_row_of_its_own(hf: LocalHF, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    add(run, error("t-0", "the sandbox died"))
    add(run, rollout("t-1", outcome="cancelled", reward=None))  # by Ctrl-C: it will run again
    add(run, rollout("t-2", outcome="cancelled", reward=None, cancelled_as="stale"))
    assert push_run(run, PushOptions(to=TO)).new == 2
    run = RunDirectory.resume(run.path, run.redactor, ("error", "cancelled"))
    add(run, rollout("t-0", 9))
    add(run, rollout("t-1", 9))
    assert push_run(run, PushOptions(to=TO)).new == 2
    found = sorted((row["id"], row["outcome"]) for row in rows_of(repo(hf)))
    assert found == [("t-0", "error"), ("t-0", "resolved"), ("t-1", "resolved"), ("t-2", "cancelled")]


def test_concurrent_commit_of_others_is_kept(hf: LocalHF, run: RunDirectory) -> None:
    """The second of two concurrent pushes is rejected, reads again, and loses nothing."""
    push_run(run, PushOptions(to=TO))
    api = HfApi()
    seen: list[int] = []
    real = HfApi.create_commit

    def late(self: HfApi, *args: object, **options: object) -> object:
        if not seen:
            seen.append(1)
            readme = repo(hf).files["README.md"].replace(b"tags:", b"license: mit\ntags:")
            api.upload_file(path_or_fileobj=readme, path_in_repo="README.md", repo_id=TO, repo_type="dataset")
        return real(self, *args, **options)

    add(run, rollout("t-3", 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HfApi, "create_commit", late)
        assert push_run(run, PushOptions(to=TO)).new == 1
    assert b"license: mit" in repo(hf).files["README.md"]
    assert ids_of(repo(hf)) == ["t-0", "t-1", "t-2", "t-3"]


def test_single_hub_failure_of_each_route_is_retried(hf: LocalHF, run: RunDirectory) -> None:
    for route, status in (("hub.create", 502), ("hub.preupload", 502), ("hub.commit", 429)):
        hf.faults.plan(route, status)
    assert push_run(run, PushOptions(to=TO)).new == 3
    assert ids_of(repo(hf)) == ["t-0", "t-1", "t-2"]


@pytest.mark.parametrize("route", ["hub.create", "hub.commit"])
def test_lost_answer_pushes_nothing_twice(
    hf: LocalHF, run: RunDirectory, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([True])
    monkeypatch.setattr(Faults, "loses", lambda self, asked: asked == route and next(losses, False))
    done = push_run(run, PushOptions(to=TO))
    assert next(losses, None) is None
    assert (done.new, done.finished) == (3, 3)
    assert ids_of(repo(hf)) == ["t-0", "t-1", "t-2"]


def test_wrong_tokens_and_names_are_rejected(
    hf: LocalHF, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "give it write access to the contents of your repositories" in refused(run, "somebody/rollouts")
    monkeypatch.setenv("HF_TOKEN", hf.add_token(["repo.content.read"]))
    assert "'repo.write' is missing" in refused(run)
    hf.accounts.revoke(os.environ["HF_TOKEN"])
    assert "Hugging Face does not accept the token" in refused(run)
    monkeypatch.delenv("HF_TOKEN")
    assert f"cannot push to {TO!r}: there is no Hugging Face token; set HF_TOKEN" in refused(run)


@pytest.mark.parametrize(
    ("path", "said"),
    [("data/a.csv", "holds no rollouts of swe-core"), ("runs/x.json", "or its folder 'runs' was changed")],
)
def test_data_set_of_others_is_rejected(hf: LocalHF, run: RunDirectory, path: str, said: str) -> None:
    api = HfApi()
    api.create_repo(TO, repo_type="dataset", private=True)
    if path.startswith("runs"):
        push_run(run, PushOptions(to=TO))
    api.upload_file(path_or_fileobj=b'{"a":1}', path_in_repo=path, repo_id=TO, repo_type="dataset")
    before = dict(repo(hf).files)
    assert said in refused(run)
    assert repo(hf).files == before


def test_private_run_is_not_pushed_to_public_data_set(hf: LocalHF, run: RunDirectory) -> None:
    HfApi().create_repo(TO, repo_type="dataset", private=False)
    assert "is public: name another" in refused(run)
    assert push_run(run, PushOptions(to=TO, private=False)).new == 3
    push_run(run, PushOptions(to="tester/open", private=False))
    assert not repo(hf, "tester/open").private


def test_push_command_pushes_and_reports(hf: LocalHF, run: RunDirectory, tmp_path: Path) -> None:
    done = call(str(run.path), "--to", TO)
    said = f"pushed 3 of 3 finished rollouts, 0 were already there: {hf.origin}/datasets/{TO}\n"
    assert done.output == said
    named = new_run(tmp_path / "named", push={"to": "tester/other", "private": False})
    add(named, rollout("t-0"))
    assert "pushed 1 of 1 finished rollout, " in call(str(named.path)).output
    assert not repo(hf, "tester/other").private
    assert "has no data set to push to" in str(call(str(run.path)).exception)
    assert "expected OWNER/NAME" in str(call(str(run.path), "--to", "a b/c").exception)


def test_push_command_reports_what_is_not_pushed(hf: LocalHF, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", planned=8)
    add(run, rollout("t-0", outcome="cancelled", reward=None))
    said = call(str(run.path), "--to", TO).output
    assert "pushed 0 of 0 finished rollouts, 0 were already there: http" in said
    assert "not pushed: 1 interrupted, 7 not finished; resume the run with `swe-core run --resume" in said
    add(run, rollout("t-1", 1))
    add(run, rollout("t-2", 2))
    push_run(run, PushOptions(to=TO))
    add(run, error("t-3", "the sandbox died"))
    said = call(str(run.path), "--to", TO).output
    assert "pushed 1 of 3 finished rollouts, 2 were already there: http" in said
    assert "not pushed: 1 interrupted, 4 not finished; " in said


def test_no_secret_is_uploaded(hf: LocalHF, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches every uploaded byte, and every row as it is read."""
    monkeypatch.setenv("MY_API_KEY", "sk-of-the-user")
    secrets = ["sk-of-the-user", hf.token, "swe_tok_" + "x" * 43, "hf_" + "B" * 34, str(run.path)]
    said = " ".join(secrets[:4])
    add(run, rollout("t-3"), text=said, patch=said.encode())
    add(run, error("t-4", said), text="x")
    push_run(run, PushOptions(to=TO))
    files = repo(hf).files
    whole = b"\n".join([*files.values(), json.dumps(rows_of(repo(hf)), default=str).encode()])
    assert [secret for secret in secrets if secret.encode() in whole] == []
    assert whole.count(b"[redacted]") > 3


def test_missing_extra_is_named(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "which is not installed: pip install 'swe-core[hub]'" in refused(run)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=20))
def test_pushed_rollout_is_not_missing(rows: list[tuple[int, int, bool]]) -> None:
    """A shard with a rollout leaves it not missing, and keeps the others."""
    state = PushedRun(run="r", created_at=rollout("t-0").started_at, tasks="demo", versions={})
    for number, minute, ended in rows:
        one = rollout(f"t-{number}", minute) if ended else error(f"t-{number}", "x", minute)
        before = {name: there for name, there in state.rollouts.items() if name != one.id}
        if state.is_missing(one):
            state = state.with_shard([one])
        assert not state.is_missing(one)
        assert before.items() <= state.rollouts.items()
    assert PushedRun.model_validate_json(state.model_dump_json()) == state
