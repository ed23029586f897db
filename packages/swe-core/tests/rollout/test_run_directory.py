"""The run directory: what is finished is on disk, secrets are not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from swe_core.api.agent import AgentEvent
from swe_core.api.grader import Grade
from swe_core.api.records import Rollout, TurnTokens
from swe_core.errors import SweError, UsageError
from swe_core.rollout.run_directory import MAX_LOG, RunDirectory, new_run_info
from swe_core.system.files import locked
from swe_core.system.redaction import MARK, Redactor
from swe_testing.records import make_rollout, make_run, make_turn


def rollout(name: str, **fields: Any) -> Rollout:
    return make_rollout(id=name, **fields)


def turn_tokens(prompt: int, completion: int, logprob: float = -1.0) -> TurnTokens:
    return TurnTokens(
        base=None, prompt=[prompt], completion=[completion], logprobs=[logprob], versions=[(0, 1)],
        rendered="full", cause="start",
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    redactor = Redactor()
    redactor.add("sekret-token-1")
    return RunDirectory.create(tmp_path / "run", new_run_info({"swe-core": "0"}, {}, 2, ["a note"]), redactor)


def test_appended_rollouts_are_read_in_order(run: RunDirectory) -> None:
    for name in ("b", "a"):
        run.append(rollout(name))
    again = RunDirectory.open(run.path)
    assert [r.id for r in again.rollouts()] == ["b", "a"]
    assert again.info == run.info


def test_repeated_id_counts_once(run: RunDirectory) -> None:
    for name, outcome in (("a", "error"), ("b", "error"), ("a", "unresolved")):
        run.append(rollout(name, outcome=outcome))
    assert {rollout.id: rollout.outcome for rollout in run.rollouts()} == run.finished()
    assert [rollout.id for rollout in run.rollouts()] == ["a", "b"]


def test_torn_last_line_is_skipped(run: RunDirectory) -> None:
    run.append(rollout("a"))
    with (run.path / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"id": "b", "task')
    assert [r.id for r in run.rollouts()] == ["a"]


def test_damaged_line_is_named(run: RunDirectory) -> None:
    (run.path / "rollouts.jsonl").write_bytes(b"{}\n")
    with pytest.raises(UsageError, match="line 1 of"):
        run.rollouts()


def test_turns_round_trip_and_damaged_lines_are_named(run: RunDirectory) -> None:
    assert run.turns("a") == []
    folder = run.folder("a")
    turns = [make_turn(0), make_turn(1)]
    for turn in turns:
        folder.add_turn(turn)
    folder.close()
    file = folder.path / "turns.jsonl"
    file.write_bytes(file.read_bytes() + b'{"index": 2, "st')
    assert run.turns("a") == turns
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(UsageError, match=r"line 3 of '.*a/turns.jsonl' is not a recorded call"):
        run.turns("a")


def test_undelivered_turns_are_read_as_dropped(run: RunDirectory) -> None:
    """The line that says so may be missing, torn or damaged."""
    tokens = turn_tokens(1, 2)
    folder = run.folder("a")
    turns = [make_turn(index, tokens=tokens) for index in range(3)]
    for turn in turns:
        folder.add_turn(turn)
    folder.add_undelivered([0, 2])
    folder.close()
    dropped = [turn.tokens and turn.tokens.dropped for turn in run.turns("a")]
    assert dropped == ["undelivered", None, "undelivered"]
    file = folder.path / "turns.jsonl"
    whole = file.read_bytes()
    assert whole.endswith(b'{"undelivered":[0,2]}\n')
    file.write_bytes(whole[:-3])
    assert run.turns("a") == turns
    file.write_bytes(whole[:-5] + b"\n")
    with pytest.raises(UsageError, match=r"line 4 of '.*a/turns.jsonl' is not a list of calls"):
        run.turns("a")


def test_used_directory_is_rejected(run: RunDirectory) -> None:
    with pytest.raises(UsageError, match="not empty"):
        RunDirectory.create(run.path, run.info, Redactor())


def test_path_of_a_file_is_rejected(tmp_path: Path, run: RunDirectory) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        RunDirectory.create(tmp_path / "file", run.info, Redactor())


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "not a run directory"), ("{", "not JSON"), ('{"format": 99}', "format 99"), ("[]", "format None"),
     ('{"format": 1}', "format 1, and .* reads 4, 5, 6, 7: read it with the version that wrote it"),
     ('{"format": 5}', "damaged")],
)  # fmt: skip
def test_open_rejects_other_directories(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        RunDirectory.open(tmp_path)


def test_record_of_a_previous_format_has_the_reward_that_it_was_given(run: RunDirectory) -> None:
    line = make_rollout(reward=1.0, grade=Grade(resolved=True)).model_dump(mode="json")
    del line["unshaped_reward"], line["finish_reason"], line["grade"]["reward"]
    (run.path / "rollouts.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    (rollout,) = run.rollouts()
    assert (rollout.reward, rollout.unshaped_reward, rollout.finish_reason) == (1.0, 1.0, None)
    assert rollout.grade is not None
    assert rollout.grade.reward == 1.0


def test_rollout_that_is_set_aside_survives_a_resume_until_it_is_finished(run: RunDirectory) -> None:
    rollout = make_rollout()
    run.folder(rollout.id)
    run.folder("lost")
    run.set_aside(rollout)
    run = RunDirectory.resume(run.path, Redactor())
    assert (run.unshaped(), run.finished()) == ([rollout], {})
    assert [path.name for path in (run.path / "rollouts").iterdir()] == [rollout.id]
    run.append(rollout)  # a kill may follow
    assert (run.unshaped(), list(run.finished())) == ([], [rollout.id])
    run.take_back(rollout.id)
    assert RunDirectory.resume(run.path, Redactor()).rollouts() == [rollout]


def test_previous_format_is_read_and_resumed(run: RunDirectory) -> None:
    file, folder = run.path / "run.json", run.folder("a")
    old = run.info.model_copy(update={"format": 4})
    file.write_text(old.model_dump_json())
    turns = [make_turn(0), make_turn(1, kept=1)]
    lines = [turn.model_dump_json(exclude={"after"}) + "\n" for turn in turns]
    (folder.path / "turns.jsonl").write_text("".join(lines))
    run.append(rollout("a"))
    again = RunDirectory.open(run.path)
    assert (again.info, again.turns("a")) == (old, turns)
    gone_on = RunDirectory.resume(run.path, Redactor())
    assert RunDirectory.open(run.path).info == gone_on.info == run.info
    assert gone_on.turns("a") == turns


def test_secrets_are_redacted_except_in_the_patch(run: RunDirectory) -> None:
    folder = run.folder("a")
    folder.add_event(AgentEvent(kind="text", text="my token is sekret-token-1"))
    folder.add_output(b"TOKEN=sekret-token-1\n")
    folder.put("test.log", b"sekret-token-1")
    folder.put_patch(b"+sekret-token-1\n")
    folder.close()
    run.append(rollout("a", model="sekret-token-1"))
    for root, _, names in os.walk(run.path):
        for name in names:
            data = (Path(root) / name).read_bytes()
            assert (b"sekret" in data) == (name == "patch.diff"), name


def test_ids_and_logprobs_are_not_redacted(run: RunDirectory) -> None:
    """Also where a secret is a number."""
    run.redactor.add("12345678")
    tokens = turn_tokens(112345678, 12345678, -0.12345678)
    folder = run.folder("a")
    folder.add_turn(make_turn(0, tokens=tokens, error="what is 12345678?"))
    folder.close()
    (turn,) = run.turns("a")
    assert turn.tokens == tokens
    assert turn.error == f"what is {MARK}?"


@pytest.mark.parametrize("size", [1, 2, 5])
def test_secret_split_over_two_writes_is_redacted(run: RunDirectory, size: int) -> None:
    folder = run.folder("a")
    printed = b"key=sekret-token-1 sekret-token- sekret-token-1\nsek"
    for start in range(0, len(printed), size):
        folder.add_output(printed[start : start + size])
    folder.close()
    logged = (folder.path / "agent.log").read_bytes()
    assert logged == b"key=[redacted] sekret-token- [redacted]\nsek"


def test_failed_write_leaves_no_partial_line(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.append(rollout("a"))
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 50:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: len(data) - 40])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            run.append(rollout("b"))
    run.append(rollout("c"))
    assert [r.id for r in run.rollouts()] == ["a", "c"]


def test_agent_log_is_bounded(run: RunDirectory) -> None:
    folder = run.folder("a")
    for _ in range(40):
        folder.add_output(b"x" * (1024 * 1024))
    folder.close()
    data = (folder.path / "agent.log").read_bytes()
    assert len(data) <= MAX_LOG + 200
    assert b"cut here" in data[-200:]


def test_resume_keeps_finished_rollouts_only(run: RunDirectory) -> None:
    """The partial line and the unfinished rollouts are removed, and can be run again."""
    for name in ("a", "b"):
        run.folder(name).close()
    run.folder("a-torn").put("test.log", b"half")
    run.append(rollout("a"))
    run.append(rollout("b"))
    file = run.path / "rollouts.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"id": "a-torn", "task')
    redactor = Redactor()
    redactor.add("sekret-token-2")
    again = RunDirectory.resume(run.path, redactor)
    assert again.info == run.info
    assert file.read_bytes() == whole
    assert sorted(path.name for path in (run.path / "rollouts").iterdir()) == ["a", "b"]
    again.folder("a-torn").close()
    again.append(rollout("a-torn", model="sekret-token-2"))
    assert [(r.id, r.model) for r in again.rollouts()] == [("a", "m"), ("b", "m"), ("a-torn", "[redacted]")]


def test_resume_removes_rollouts_of_given_outcomes(run: RunDirectory) -> None:
    for name, outcome in (("a", "resolved"), ("b", "cancelled"), ("c", "error"), ("d", "unresolved")):
        run.folder(name).close()
        run.append(rollout(name, outcome=outcome))
    lines = (run.path / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    again = RunDirectory.resume(run.path, Redactor(), ["cancelled"])
    assert again.finished() == {"a": "resolved", "c": "error", "d": "unresolved"}
    assert (run.path / "rollouts.jsonl").read_bytes() == lines[0] + lines[2] + lines[3]
    assert sorted(path.name for path in (run.path / "rollouts").iterdir()) == ["a", "c", "d"]
    assert RunDirectory.resume(run.path, Redactor(), ["cancelled", "error"]).finished().keys() == {"a", "d"}
    assert not list(run.path.glob("*.new"))


def test_resume_on_a_full_disk_changes_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.append(rollout("a"))
    run.append(rollout("b", outcome="cancelled"))
    before = (run.path / "rollouts.jsonl").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(UsageError, match="cannot be resumed: No space left on device"):
            RunDirectory.resume(run.path, Redactor(), ["cancelled"])
    assert (run.path / "rollouts.jsonl").read_bytes() == before
    assert not list(run.path.glob("*.new"))
    assert RunDirectory.resume(run.path, Redactor(), ["cancelled"]).finished() == {"a": "resolved"}


def test_folder_keeps_its_first_write_error(run: RunDirectory) -> None:
    folder = run.folder("a")
    folder.add_output(b"fine")
    assert folder.failure is None
    (folder.path / "test.log").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        folder.put("test.log", b"x")
    with pytest.raises(IsADirectoryError):
        folder.put("test.log", b"x")
    assert folder.failure is caught.value
    folder.close()


def test_partially_created_directory_is_reused(tmp_path: Path, run: RunDirectory) -> None:
    path = tmp_path / "cut"
    (path / "rollouts").mkdir(parents=True)
    (path / "lock").touch()
    (path / "run.json.new").write_text('{"form')
    RunDirectory.create(path, run.info, Redactor())
    assert RunDirectory.open(path).info == run.info
    assert sorted(entry.name for entry in path.iterdir()) == ["lock", "rollouts", "run.json"]
    other = tmp_path / "other"
    (other / "rollouts" / "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="not empty"):
        RunDirectory.create(other, run.info, Redactor())
    assert not (other / "lock").exists()


def test_run_directory_has_one_lock_holder(run: RunDirectory, tmp_path: Path) -> None:
    with locked(run.path), pytest.raises(UsageError, match="is in use by another process: wait for it"):
        with locked(run.path):
            pass
    with locked(run.path):  # and is free again
        pass
    with (
        pytest.raises(SweError, match=r"cannot write '.*nowhere/lock': No such file"),
        locked(tmp_path / "nowhere"),
    ):
        pass


def test_run_without_finished_rollouts_is_resumed(run: RunDirectory) -> None:
    run.folder("a").close()
    assert RunDirectory.resume(run.path, Redactor()).rollouts() == []
    assert list((run.path / "rollouts").iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [("run.json", "not a run directory"), ("rollouts", "cannot be resumed: No such file"),
     ("rollouts.jsonl", "line 1 of .* is not a finished rollout")],
)  # fmt: skip
def test_failed_resume_loses_nothing(run: RunDirectory, damage: str, message: str) -> None:
    (run.path / "rollouts.jsonl").write_bytes(b"{}\n" if damage == "rollouts.jsonl" else b"")
    folder = run.path / "rollouts"
    if damage == "rollouts":
        folder.rmdir()
    else:
        run.folder("a").close()
    if damage == "run.json":
        (run.path / damage).unlink()
    with pytest.raises(UsageError, match=message):
        RunDirectory.resume(run.path, Redactor())
    assert (folder / "a").exists() == (damage != "rollouts")


def test_planned_rollouts_may_be_unknown(tmp_path: Path) -> None:
    assert RunDirectory.open(make_run(tmp_path / "training").path).info.planned is None


def test_resume_keeps_what_a_worker_cancelled_for_a_reason(run: RunDirectory) -> None:
    for name, reason in (("stopped", None), ("tired", "tired")):
        run.folder(name).close()
        run.append(rollout(name, outcome="cancelled", cancelled_as=reason))
    resumed = RunDirectory.resume(run.path, Redactor(), ["cancelled"])
    assert resumed.finished() == {"tired": "cancelled"}
    assert [path.name for path in (run.path / "rollouts").iterdir()] == ["tired"]
