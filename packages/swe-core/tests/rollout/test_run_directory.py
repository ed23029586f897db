"""The run directory: what is finished is on disk, secrets are not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swe_core.api.agent import AgentEvent
from swe_core.api.records import Rollout, Turn, TurnTokens
from swe_core.errors import SweError, UsageError
from swe_core.rollout import run_directory
from swe_core.rollout.run_directory import RolloutFolder, RunDirectory, new_run_info
from swe_core.system.files import locked
from swe_core.system.redaction import MARK, Redactor
from swe_testing.records import make_rollout, make_turn

TOKENS = TurnTokens(
    base=None, prompt=[1], completion=[2], logprobs=[-1.0], versions=[(0, 1)], rendered="full", cause="start"
)
NAMES = st.sampled_from("abcdefgh")
OUTCOMES = st.sampled_from(["resolved", "unresolved", "error", "cancelled"])
CAUSES = st.sampled_from([None, "tired"])
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where a file is synced at once."""
CUT = st.none() | st.none() | st.floats(0, 1)
"""Which part of a line a crash leaves; None without one."""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    redactor = Redactor()
    redactor.add("sekret-token-1")
    return RunDirectory.create(tmp_path / "run", new_run_info({"swe-core": "0"}, {}, 2, ["a note"]), redactor)


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


full = Mock(side_effect=OSError(28, "No space left on device"))


class Runs(RuleBasedStateMachine):
    """A run directory against a plain model: lines, folders, calls, and what a crash leaves of them.

    After a crash the run must be resumed before it goes on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(dir=MEMORY)) / "run"
        self.keys = 0
        self.run = RunDirectory.create(self.path, new_run_info({}, {}, 2, ["a note"]), self.redactor())
        self.lines: list[Rollout] = []
        self.calls: dict[str, list[Turn]] = {}
        """Folder → the calls in it."""
        self.given_up: dict[tuple[str, str], list[Turn]] = {}
        """The same of attempts before the last one."""
        self.aside: dict[str, Rollout] = {}
        self.open: dict[str, RolloutFolder] = {}
        """The folders of rollouts that run."""
        self.crashed = False
        self.changed = False
        """Since it was resumed."""

    def teardown(self) -> None:
        self.close()
        shutil.rmtree(self.path.parent)

    def redactor(self) -> Redactor:
        """One of a new secret, which the next rollouts have in their records."""
        self.keys += 1
        redactor = Redactor()
        redactor.add(f"sekret-{self.keys}")
        return redactor

    def record(self, name: str, outcome: str, why: str | None) -> tuple[Rollout, Rollout]:
        """A record, and what is read of it."""
        why, secret = why if outcome == "cancelled" else None, f"sekret-{self.keys}"
        made = make_rollout(id=name, outcome=outcome, cancelled_as=why, model=secret)
        return made, made.model_copy(update={"model": MARK})

    def close(self) -> None:
        for folder in self.open.values():
            folder.close()
        self.open = {}

    @property
    def file(self) -> Path:
        return self.path / "rollouts.jsonl"

    def turns_of(self, name: str) -> Path:
        return self.path / "rollouts" / name / "turns.jsonl"

    def torn(self, file: Path, before: int, at: float) -> bool:
        """Leave a part of what was appended to a file of `before` bytes; whether the whole line is there."""
        added = file.stat().st_size - before
        left = round(at * added)
        os.truncate(file, before + left)
        self.crashed = True
        return left == added

    @property
    def finished(self) -> dict[str, Rollout]:
        return {rollout.id: rollout for rollout in self.lines}

    goes = precondition(lambda self: not self.crashed)
    works = precondition(lambda self: self.open and not self.crashed)

    @goes
    @rule(names=st.sets(NAMES, min_size=1))
    def begin(self, names: set[str]) -> None:
        for name in sorted(names):
            if name in self.calls:
                with pytest.raises(FileExistsError):
                    self.run.folder(name)
            else:
                self.open[name], self.calls[name], self.changed = self.run.folder(name), [], True
                self.call(name)

    def call(self, name: str) -> None:
        made = make_turn(len(self.calls[name]), tokens=TOKENS)
        self.open[name].add_turn(made)
        self.calls[name].append(made)

    @works
    @rule(data=st.data(), at=CUT)
    def calls_one_more(self, data: st.DataObject, at: float | None) -> None:
        """The process may die while it is written."""
        name = data.draw(st.sampled_from(sorted(self.open)))
        before = size_of(self.turns_of(name))
        self.call(name)
        if at is not None and not self.torn(self.turns_of(name), before, at):
            self.calls[name].pop()

    @works
    @rule(data=st.data())
    def try_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        again = f"retried-{len(self.given_up) + 1}"
        self.open[name].archive_attempt(again)
        self.given_up[name, again], self.calls[name] = self.calls[name], []

    @works
    @rule(data=st.data(), outcome=OUTCOMES, why=CAUSES, at=CUT, losing=st.booleans())
    def finish(
        self, data: st.DataObject, outcome: str, why: str | None, at: float | None, losing: bool
    ) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        if losing:
            self.lose(name, data.draw(st.sets(st.integers(0, len(self.calls[name])), min_size=1)))
        self.open.pop(name).close()
        made, read = self.record(name, outcome, why)
        before = size_of(self.file)
        self.run.append(made)
        if at is None or self.torn(self.file, before, at):
            self.lines.append(read)

    def lose(self, name: str, lost: set[int]) -> None:
        self.open[name].add_undelivered(sorted(lost))
        dropped = TOKENS.model_copy(update={"dropped": "undelivered"})
        self.calls[name] = [
            turn.model_copy(update={"tokens": dropped}) if turn.index in lost else turn
            for turn in self.calls[name]
        ]

    @works
    @rule(data=st.data(), at=st.floats(0, 0.99))
    def die_while_losing(self, data: st.DataObject, at: float) -> None:
        """Of the line that says so nothing counts."""
        name = data.draw(st.sampled_from(sorted(self.open)))
        file, before = self.turns_of(name), list(self.calls[name])
        size = size_of(file)
        self.lose(name, {0})
        if not self.torn(file, size, at):
            self.calls[name] = before

    @works
    @rule(data=st.data(), free=st.integers(0, 500))
    def full_disk(self, data: st.DataObject, free: int) -> None:
        """A record for which there is no space leaves no part of it."""
        name, left, real = data.draw(st.sampled_from(sorted(self.open))), free, os.write

        def write(descriptor: int, data: bytes) -> int:
            nonlocal left
            done, left = data[:left], left - len(data[:left])
            return real(descriptor, done) if done else full()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "write", write)
            with pytest.raises(OSError, match="No space"):
                self.run.append(make_rollout(id=name))

    @works
    @rule(data=st.data())
    def set_aside(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.open.pop(name).close()
        made, self.aside[name] = self.record(name, "resolved", None)
        self.run.set_aside(made)

    @precondition(lambda self: self.aside and not self.crashed)
    @rule(data=st.data(), dies=st.booleans())
    def take_back(self, data: st.DataObject, dies: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.aside)))
        made, read = self.record(name, "resolved", None)
        self.run.append(made)
        self.lines.append(read)
        self.crashed = dies
        if not dies:
            self.run.take_back(name)
            del self.aside[name]

    @precondition(lambda self: self.lines and not self.crashed)
    @rule(data=st.data(), outcome=OUTCOMES)
    def repeat(self, data: st.DataObject, outcome: str) -> None:
        """A second line of an id, as in files that were joined."""
        made, read = self.record(data.draw(st.sampled_from(sorted(self.finished))), outcome, None)
        self.run.append(made)
        self.lines.append(read)

    @precondition(lambda self: self.crashed or self.changed)
    @rule(again=st.sets(OUTCOMES), full=st.booleans())
    def resume(self, again: set[Any], full: bool) -> None:
        """After a crash or a kill."""
        stays = {
            rollout.id
            for rollout in self.lines
            if rollout.outcome not in again or rollout.cancelled_as is not None
        }
        if full and len(stays) < len(self.lines):
            self.fails_to_resume(again)
            return
        whole = self.file.read_bytes().splitlines(keepends=True) if self.file.exists() else []
        kept = [line for line, rollout in zip(whole, self.lines, strict=False) if rollout.id in stays]
        self.close()
        self.run = RunDirectory.resume(self.path, self.redactor(), again)
        assert (self.file.read_bytes() if self.file.exists() else b"") == b"".join(kept)
        self.lines = [rollout for rollout in self.lines if rollout.id in stays]
        folders = stays | self.aside.keys()
        self.calls = {name: turns for name, turns in self.calls.items() if name in folders}
        self.given_up = {key: turns for key, turns in self.given_up.items() if key[0] in folders}
        self.crashed = self.changed = False

    def fails_to_resume(self, again: set[Any]) -> None:
        """On a full disk: nothing changes."""
        before = self.file.read_bytes()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(UsageError, match="cannot be resumed: No space left on device"):
                RunDirectory.resume(self.path, Redactor(), again)
        assert self.file.read_bytes() == before

    @invariant()
    def what_is_read_is_the_model(self) -> None:
        run = RunDirectory.open(self.path)
        assert run.info == self.run.info
        assert run.rollouts() == list(self.finished.values())
        outcomes = {name: rollout.outcome for name, rollout in self.finished.items()}
        assert list(run.finished().items()) == list(outcomes.items())
        aside = [self.aside[name] for name in sorted(self.aside) if name not in self.finished]
        assert run.unshaped() == aside
        assert sorted(path.name for path in (self.path / "rollouts").iterdir()) == sorted(self.calls)
        for name, turns in self.calls.items():
            assert run.turns(name) == turns
        for (name, again), turns in self.given_up.items():
            assert run.turns(name, again) == turns
        assert not list(self.path.glob("*.new"))


def test_run_directory_is_its_model_whatever_crashes(run_machine: Callable[..., None]) -> None:
    run_machine(Runs, examples=60, steps=50)


def test_damaged_line_is_named(run: RunDirectory) -> None:
    run.folder("a").close()
    whole = make_turn(0).model_dump_json().encode() + b"\n"
    for file, lines, says in (
        ("rollouts.jsonl", b"{}\n", "line 1 of '.*/rollouts.jsonl' is not a finished rollout"),
        ("rollouts.jsonl", b"[]\n", "line 1 of"),
        ("rollouts.jsonl", b"{\n{", "line 1 of"),
        ("a/turns.jsonl", whole + b'{"index": 2, "st\n', "line 2 of '.*turns.jsonl' is not a recorded call"),
        ("a/turns.jsonl", whole + b'{"undelivered":[0,\n', "line 2 of .* is not a list of calls"),
        ("a/transcript.jsonl", b"7\n", "line 1 of '.*a/transcript.jsonl' is not an agent's event"),
    ):
        (run.path / ("" if file == "rollouts.jsonl" else "rollouts") / file).write_bytes(lines)
        readers = {"rollouts.jsonl": [run.finished, run.rollouts], "a/turns.jsonl": [lambda: run.turns("a")]}
        for read in readers.get(file, [lambda: run.events("a")]):
            with pytest.raises(UsageError, match=says):
                read()


def test_new_run_takes_no_path_that_is_used(tmp_path: Path, run: RunDirectory) -> None:
    for out, says in (("run", "not empty"), ("file", "cannot write"), ("file/x", "cannot write")):
        (tmp_path / "file").write_text("")
        for refuses in (
            lambda path: RunDirectory.create(path, run.info, Redactor()),
            RunDirectory.require_free,
        ):
            with pytest.raises(UsageError, match=says):
                refuses(tmp_path / out)


def test_open_rejects_other_directories(tmp_path: Path) -> None:
    for content, message in (
        (None, "not a run directory"),
        ("{", "not JSON"),
        ('{"format": 99}', "format 99"),
        ("[]", "format None"),
        ('{"format": 7}', "damaged"),
        ('{"format": 6}', "format 6, and .* reads 7: read it with the version that wrote it"),
    ):
        if content is not None:
            (tmp_path / "run.json").write_text(content)
        with pytest.raises(UsageError, match=message):
            RunDirectory.open(tmp_path)


def test_secrets_are_redacted_except_in_the_patch_and_tokens(run: RunDirectory) -> None:
    """Also where a secret is a number."""
    run.redactor.add("12345678")
    lists = {"prompt": [112345678], "completion": [12345678], "logprobs": [-0.12345678]}
    tokens = TOKENS.model_copy(update=lists)
    folder = run.folder("a")
    folder.add_turn(make_turn(0, tokens=tokens, error="what is 12345678?"))
    folder.add_event(AgentEvent(kind="text", text="my token is sekret-token-1"))
    folder.add_output(b"TOKEN=sekret-token-1\n")
    folder.put("test.log", b"sekret-token-1")
    folder.put_patch(b"+sekret-token-1\n")
    folder.close()
    run.append(make_rollout(id="a", model="sekret-token-1"))
    for root, _, names in os.walk(run.path):
        for name in names:
            data = (Path(root) / name).read_bytes()
            assert (b"sekret" in data) == (name == "patch.diff"), name
    (turn,) = run.turns("a")
    assert (turn.tokens, turn.error) == (tokens, f"what is {MARK}?")


def test_secret_split_over_two_writes_is_redacted(run: RunDirectory) -> None:
    printed = b"key=sekret-token-1 sekret-token- sekret-token-1\nsek"
    for size in (1, 2, 5):
        folder = run.folder(str(size))
        for start in range(0, len(printed), size):
            folder.add_output(printed[start : start + size])
        folder.close()
        logged = (folder.path / "agent.log").read_bytes()
        assert logged == b"key=[redacted] sekret-token- [redacted]\nsek"


def test_log_and_transcript_are_bounded(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "MAX_LOG", 1000)
    folder = run.folder("a")
    for _ in range(40):
        folder.add_output(b"x" * 100)
        folder.add_event(AgentEvent(kind="text", text="x" * 100))
    folder.close()
    for name in ("agent.log", "transcript.jsonl"):
        data = (folder.path / name).read_bytes()
        assert 900 < len(data) <= 1200
        assert b"cut here" in data[-200:]


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


def test_partially_created_directory_is_reused_and_rewritten(tmp_path: Path, run: RunDirectory) -> None:
    path = tmp_path / "cut"
    (path / "rollouts").mkdir(parents=True)
    (path / "lock").touch()
    (path / "run.json.new").write_text('{"form')
    made = RunDirectory.create(path, run.info, Redactor())
    info = run.info.model_copy(update={"planned": 7})
    made.rewrite(info)
    assert made.info == RunDirectory.open(path).info == info
    assert sorted(entry.name for entry in path.iterdir()) == ["lock", "rollouts", "run.json"]
    other = tmp_path / "other"
    (other / "rollouts" / "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="not empty"):
        RunDirectory.create(other, run.info, Redactor())
    assert not (other / "lock").exists()


def test_run_directory_has_one_lock_holder(run: RunDirectory, tmp_path: Path) -> None:
    with locked(run.path), pytest.raises(UsageError, match="is in use by another process: wait for it"):
        locked(run.path).__enter__()
    with locked(run.path):  # and is free again
        with pytest.raises(SweError, match=r"cannot write '.*nowhere/lock': No such file"):
            locked(tmp_path / "nowhere").__enter__()


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
