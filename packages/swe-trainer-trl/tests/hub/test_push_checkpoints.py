"""Checkpoints to the local Hub by the real client, each whole, and a training back from there."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import hf_raise_for_status

from swe_core.api.records import Ledger
from swe_core.errors import SweError, UsageError
from swe_core.hub.options import PushOptions
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor
from swe_testing.hf import LocalHF
from swe_testing.records import make_rollout
from swe_trainer_trl.hub.restore import restore, restore_command
from swe_trainer_trl.journal.checkpoints import last_checkpoint
from swe_trainer_trl.journal.groups import Member
from swe_trainer_trl.journal.journal import JOURNAL, Journal

if TYPE_CHECKING:  # imports transformers, which takes seconds
    from swe_trainer_trl.hub.push_checkpoints import CheckpointPush

TO = "tester/trained"


@pytest.fixture
def hf(threaded_hf: LocalHF, caplog: pytest.LogCaptureFixture) -> LocalHF:
    caplog.set_level(logging.INFO, "swe_trainer_trl")
    return threaded_hf


def finish(run: RunDirectory, name: str) -> None:
    run.append(make_rollout(id=name, ledger=Ledger(sampled=3, trainable=3)))


def save(run: RunDirectory, step: int) -> None:
    """What transformers leaves, its state last."""
    path = run.path / "checkpoints" / f"checkpoint-{step}"
    path.mkdir(parents=True)
    names = {"model.safetensors": f"weights of step {step}", f"only-{step}.bin": "o"}
    names |= {"training_args.bin": str(run.path), "trainer_state.json": json.dumps({"global_step": step})}
    for name, text in names.items():
        (path / name).write_text(text)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A training that has begun: one group closed long ago, one open with a finished attempt."""
    info = new_run_info({}, {"run": {"model": "owner/base"}, "worker": {}}, None, [], {"t": "d"})
    run = RunDirectory.create(tmp_path / "run", info, Redactor())
    with closing(Journal(run.path / JOURNAL)) as journal:
        number = journal.open_group("t", 2)
        journal.add_member(number, Member(f"t-g{number}-0", 0, 1.0, (), None, None))
    finish(run, f"t-g{number}-0")
    for name in ("metrics.jsonl", "groups.jsonl", "trained.jsonl", "evaluations.jsonl"):
        (run.path / name).write_text('{"step":3}\n')
    (run.path / "vocab.json.gz").write_bytes(b"made again by the next process")
    (run.path / "model").mkdir()
    (run.path / "model" / "model.safetensors").write_bytes(b"trained")
    return run


def prepared(options: PushOptions, directory: Path) -> CheckpointPush | None:
    from swe_trainer_trl.hub.push_checkpoints import prepared

    return prepared(options, directory)


def push(run: RunDirectory) -> CheckpointPush:
    made = prepared(PushOptions(to=TO), run.path)
    assert made is not None
    return made


def saved(callback: CheckpointPush) -> None:
    """As the trainer tells it, and then until it is pushed."""
    callback.on_save(None, None, None)
    callback._wait()


def pushed(run: RunDirectory, step: int) -> CheckpointPush:
    """What has pushed the checkpoint of this step."""
    callback = push(run)
    save(run, step)
    saved(callback)
    return callback


def files(hf: LocalHF) -> dict[str, bytes]:
    return dict(hf.hub.repo("model", TO).files)


def test_checkpoint_is_one_commit_in_the_place_of_the_last(hf: LocalHF, run: RunDirectory) -> None:
    callback = pushed(run, 3)
    save(run, 6)
    saved(callback)
    there = files(hf)
    assert there["last-checkpoint/model.safetensors"] == b"weights of step 6"
    assert "last-checkpoint/only-6.bin" in there
    assert "last-checkpoint/only-3.bin" not in there
    assert hf.hub.repo("model", TO).private
    titles = [commit.title for commit in hf.hub.repo("model", TO).commits]
    assert titles == ["initial commit", "Checkpoint of step 3", "Checkpoint of step 6"]
    assert not (run.path / "push").exists()


def test_deployment_contains_nothing_of_this_machine(
    hf: LocalHF, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "key-of-the-user")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step":4,"text":"key-of-the-user {hf.token}"}}\n')
    callback = pushed(run, 3)
    callback.finish(run.path / "model")
    whole = b"\n".join(files(hf).values())
    assert b"key-of-the-user" not in whole
    assert hf.token.encode() not in whole
    assert str(run.path).encode() not in whole
    assert run.info.directory == str(Path.cwd())
    assert str(Path.cwd()).encode() not in whole
    assert whole.count(b"[redacted]") >= 2


def test_end(hf: LocalHF, run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    """The last checkpoint is pushed even where it came while another was under way."""
    callback = pushed(run, 3)
    save(run, 6)
    callback.finish(run.path / "model")
    there = files(hf)
    assert there["model.safetensors"] == b"trained"
    assert there["last-checkpoint/model.safetensors"] == b"weights of step 6"
    assert b"base_model: owner/base" in there["README.md"]
    assert f"pushed the model to {hf.origin}/{TO}" in caplog.text
    mine = b"---\nlicense: mit\n---\n# Mine\n"
    HfApi().upload_file(path_or_fileobj=mine, path_in_repo="README.md", repo_id=TO)
    callback.finish(run.path / "model")
    assert files(hf)["README.md"] == mine


def test_hub_that_stays_away_ends_no_training(
    hf: LocalHF, run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    callback = push(run)
    hf.faults.plan("hub.commit", 500)
    save(run, 3)
    saved(callback)
    assert "the checkpoint of step 3 is not pushed: cannot push to 'tester/trained': " in caplog.text
    saved(callback)  # the next time
    assert "last-checkpoint/model.safetensors" in files(hf)


def earlier(run: Path) -> list[str]:
    """Ids of the rollouts that finished before the restore."""
    return [json.loads(line)["id"] for line in (run / "earlier.jsonl").read_text().splitlines()]


def test_training_that_came_back(hf: LocalHF, run: RunDirectory, tmp_path: Path) -> None:
    """What a machine without a disk has: the name of the repository."""
    with closing(Journal(run.path / JOURNAL)) as journal:
        journal.finish_evaluation(journal.begin_evaluation(0, 1).id)
        journal.begin_evaluation(3, 4)
    # The last ones run again: the journal does not know of them, or their evaluation is open.
    for name in ("h-eval0-0", "h-eval0-1-2", "h-eval3-0", "h-eval6-0", "t-g0-1", "t-g9-0"):
        finish(run, name)
    pushed(run, 3)
    there = tmp_path / "new" / "run"
    assert restore(TO, there) == 3
    restored, before = RunDirectory.open(there), ["t-g0-0", "h-eval0-0", "h-eval0-1-2"]
    assert restored.info == run.info.model_copy(update={"directory": None})
    assert (restored.rollouts(), earlier(there)) == ([], before)
    path, step = last_checkpoint(there / "checkpoints")
    assert path is not None
    assert (step, (path / "model.safetensors").read_bytes()) == (3, b"weights of step 3")
    assert not (path / "swe-core").exists()
    for name in ("metrics.jsonl", "groups.jsonl", "evaluations.jsonl"):
        assert (there / name).read_text() == '{"step":3}\n'
    assert not (there / "trained.jsonl").exists()  # its rollouts are not here either
    with closing(Journal(there / JOURNAL)) as journal:
        assert [group.members[0].rollout_id for group in journal.unfinished()] == ["t-g0-0"]
    assert RunDirectory.resume(there, Redactor()).rollouts() == []
    # It continues, pushes, and is restored once more: nothing is lost.
    finish(restored, "t-g0-1-2")
    with closing(Journal(there / JOURNAL)) as journal:
        journal.add_member(0, Member("t-g0-1-2", 1, 1.0, (), None, None))
    pushed(restored, 6)
    assert restore(TO, tmp_path / "third") == 6
    assert earlier(tmp_path / "third") == [*before, "t-g0-1-2"]


def test_nothing_to_restore(
    hf: LocalHF, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert restore(TO, tmp_path / "new") is None
    push(run)
    assert restore(TO, tmp_path / "new") is None
    assert not (tmp_path / "new").exists()
    with pytest.raises(UsageError, match="is not empty"):
        restore(TO, run.path)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UsageError, match=r"cannot restore from .*: there is no Hugging Face token"):
        restore(TO, tmp_path / "new")


def test_token_that_expired_is_not_nothing_to_restore(
    hf: LocalHF, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client calls that a repository which is not there; a Space would begin anew."""

    def expired(*_: object, **__: object) -> None:
        http = importlib.import_module(HTTPError.__module__.partition(".")[0])
        request = http.Request("GET", f"https://service.invalid/api/models/{TO}")
        hf_raise_for_status(http.Response(401, request=request))

    monkeypatch.setattr(HfApi, "model_info", expired)
    with pytest.raises(UsageError, match="Hugging Face does not accept the token"):
        restore(TO, tmp_path / "new")


def test_incomplete_checkpoint_is_not_restored(hf: LocalHF, run: RunDirectory, tmp_path: Path) -> None:
    pushed(run, 3)
    HfApi().delete_file("last-checkpoint/swe-core/train.sqlite", TO)
    with pytest.raises(SweError, match="is incomplete"):
        restore(TO, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_command(hf: LocalHF, run: RunDirectory, tmp_path: Path) -> None:
    nothing = f"nothing to restore: no checkpoint was pushed to {TO}\n"
    for code, said in ((1, nothing), (0, "restored step 3; res")):
        done = CliRunner().invoke(restore_command, [TO, str(tmp_path / "new")], standalone_mode=False)
        assert (done.return_value or 0, done.output[: len(said)]) == (code, said)
        if code:
            pushed(run, 3)


def test_another_training_keeps_its_checkpoints(hf: LocalHF, run: RunDirectory, tmp_path: Path) -> None:
    pushed(run, 3)
    assert prepared(PushOptions(to=TO), run.path) is not None  # the same run resumes
    RunDirectory.create(tmp_path / "other", new_run_info({}, {}, None, [], {"t": "d"}), Redactor())
    for other in ("not-there", "other"):
        with pytest.raises(UsageError, match="has the checkpoints of another training"):
            prepared(PushOptions(to=TO), tmp_path / other)


@pytest.mark.parametrize(
    ("to", "token", "said"),
    [
        ("tester/other", "login", "is taken by another model"),
        ("tester/open", "login", "is public"),
        (TO, "reader", "the Hugging Face token may not do that"),
        (TO, None, "there is no Hugging Face token"),
    ],
)
def test_repository_that_cannot_be_pushed_to(
    hf: LocalHF, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, to: str, token: str | None, said: str
) -> None:
    api = HfApi()
    api.create_repo("tester/other", private=True)
    api.upload_file(path_or_fileobj=b"1", path_in_repo="model.bin", repo_id="tester/other")
    api.create_repo("tester/open")
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    elif token == "reader":
        monkeypatch.setenv("HF_TOKEN", hf.add_token(["repo.content.read"]))
    with pytest.raises(UsageError, match=said):
        prepared(PushOptions(to=to), run.path)
    assert prepared(PushOptions(), run.path) is None


PUSHES = """
import sys
from pathlib import Path
from types import SimpleNamespace
names = ("TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments")
sys.modules["transformers"] = SimpleNamespace(**dict.fromkeys(names, object))  # its import takes seconds
from swe_core.hub.options import PushOptions
from swe_trainer_trl.hub.push_checkpoints import prepared
callback = prepared(PushOptions(to=sys.argv[2]), Path(sys.argv[1]))
callback.on_save(None, None, None)
callback._wait()
"""


class Holding(Counter[str]):
    """Calls of a service that answers no more once the second push is under way."""

    def __init__(self, hf: LocalHF) -> None:
        super().__init__(hf.calls)
        self._faults = hf.faults
        self.held = threading.Event()

    def __setitem__(self, route: str, count: int) -> None:
        super().__setitem__(route, count)
        if (route, count) == ("hub.preupload", 2):
            self._faults.latency = 600.0
            self.held.set()


@pytest.mark.slow
def test_killed_in_mid_push(hf: LocalHF, run: RunDirectory, tmp_path: Path) -> None:
    """The checkpoint that was there before is there, whole."""
    pushed(run, 3)
    save(run, 6)
    hf.calls = calls = Holding(hf)
    environment = {**os.environ, **hf.environment()}
    child = subprocess.Popen([sys.executable, "-c", PUSHES, str(run.path), TO], env=environment)
    held = calls.held.wait(120)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert held
    hf.faults.latency = 0.0
    assert restore(TO, tmp_path / "new") == 3
    saved(push(run))
    assert restore(TO, tmp_path / "newer") == 6
