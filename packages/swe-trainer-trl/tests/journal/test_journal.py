"""The journal: nothing lost, nothing twice, by two processes, through kills, full disks and damage.

Run as a program, this file is the process that runs rollouts: `main` at its end.
"""

import contextlib
import functools
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from swe_core.api.chain import Chain
from swe_core.api.engine import ForkCause
from swe_core.errors import SweError, UsageError
from swe_trainer_trl.journal.groups import Assessed, Member, Row, assess
from swe_trainer_trl.journal.journal import Journal, ReadyGroup
from swe_trainer_trl.journal.statements import FORMAT

SIZE = 3
INT32 = st.integers(-(2**31), 2**31 - 1)


def make_chain(tokens: int, seed: int) -> Chain:
    rng = np.random.default_rng(seed)
    mask = rng.random(tokens) < 0.5
    mask[-1] = True
    return Chain(
        (0, 2, 5),
        rng.integers(0, 2**31 - 1, tokens, np.int32),
        mask,
        np.where(mask, -rng.random(tokens), 0).astype(np.float32),
        np.where(mask, 3, -1).astype(np.int32),
        "start",
    )


def make_member(rollout_id: str, tokens: int = 40) -> Member:
    """The one attempt with this id: its content follows from it, in any process."""
    seed = zlib.crc32(rollout_id.encode())
    chains = tuple(make_chain(tokens + seed % 7, seed + n) for n in range(seed % 2 + 1))
    return Member(rollout_id, seed % 4, float(seed % 9), chains, 3, 4)


def members_of(group: int) -> list[Member]:
    return [make_member(f"{group}-{n}") for n in range(SIZE)]


def assessed(members: list[Member]) -> Assessed:
    return assess(members, update=4, max_staleness=4, min_scored=1, keep_without_spread=True)


def content(thing: Member | Chain | Row) -> object:
    """All of it, arrays as their type and bytes: equal only if they are the same bit for bit."""

    def plain(value: object) -> object:
        match value:
            case np.ndarray():
                return value.dtype.str, value.shape, value.tobytes()
            case tuple():
                return tuple(map(plain, value))
            case Chain():
                return content(value)
            case _:
                return value

    return {name: plain(getattr(thing, name)) for name in thing.__dataclass_fields__}


def assert_whole(group: ReadyGroup) -> None:
    """Its rows are exactly those of its members."""
    rows = [content(row) for _, row in group.rows]
    assert rows == [content(row) for row in assessed(members_of(group.id)).rows]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    try:
        yield journal
    finally:
        journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with opened(path) as journal:
        yield journal


def sql(path: Path, statement: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement).fetchall()


def fill(journal: Journal, groups: int) -> None:
    for _ in range(groups):
        group = journal.open_group("task", SIZE)
        for member in members_of(group):
            journal.add_member(group, member)
        journal.close_group(group, assessed(members_of(group)))


# --- what a method keeps ---


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    size = draw(st.integers(1, 20))
    ids = draw(arrays.arrays(np.int32, size, elements=INT32))
    mask = draw(arrays.arrays(np.bool_, size))
    logprobs = draw(arrays.arrays(np.float32, size))  # also NaN, infinite, -0.0
    versions = draw(arrays.arrays(np.int32, size, elements=INT32))
    turns = tuple(draw(st.lists(st.integers(0, 2**31 - 1), max_size=4)))
    return Chain(turns, ids, mask, logprobs, versions, draw(st.sampled_from(get_args(ForkCause))))


@settings(deadline=None)
@given(
    st.lists(chains(), max_size=3),
    st.none() | st.floats(allow_nan=False).map(lambda x: x + 0.0),  # SQLite keeps -0.0 as 0.0
    st.integers(0, 2**31),
)
def test_members_and_rows_come_back_bit_for_bit(
    chains_: list[Chain], reward: float | None, attempt: int
) -> None:
    member = Member("r", attempt, reward, tuple(chains_), attempt, attempt, attempt % 2 == 1)
    rows = []
    for chain in chains_:
        ids, mask = chain.input_ids.astype(np.int64), chain.completion_mask.astype(np.int64)
        rows.append(
            Row("r", ids, mask, chain.old_log_probs, 0.1, attempt, reward or 0.0, attempt % 3, chain.cause)
        )
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "train.sqlite") as journal:
        group = journal.open_group("task", 2)
        journal.add_member(group, member)
        (open_,) = journal.unfinished()
        assert (open_.id, open_.task_id, open_.size) == (group, "task", 2)
        assert [content(back) for back in open_.members] == [content(member)]

        journal.close_group(group, Assessed(tuple(rows), None if rows else "no_tokens", (), None, None, None))
        back = [row for ready in journal.ready() for _, row in ready.rows]
        assert [content(row) for row in back] == [content(row) for row in rows]
        # torch warns of arrays that it cannot write to.
        assert all(row.input_ids.flags.writeable and row.old_log_probs.flags.writeable for row in back)


def test_group_numbers_count_up_over_processes(path: Path) -> None:
    for expected in (0, 1, 2):
        with opened(path) as journal:
            assert journal.groups_begun() == expected
            assert journal.open_group("task", 1) == expected
            if expected == 1:
                journal.close_group(1, Assessed((), "too_few_scored", (), None, None, None))
    with opened(path) as journal:
        assert [group.id for group in journal.unfinished()] == [0, 2]


def test_groups_come_in_the_order_of_closing(journal: Journal) -> None:
    for _ in range(3):
        journal.open_group("task", SIZE)
    journal.close_group(2, assessed(members_of(2)))
    journal.close_group(0, assessed(members_of(0)))
    first, second = journal.ready(limit=9)
    assert (first.id, second.id) == (2, 0)
    assert [group.id for group in journal.ready(limit=1)] == [2]
    # One that is closed later comes after what was taken, whatever its number.
    journal.close_group(1, assessed(members_of(1)))
    assert [group.id for group in journal.ready(second.closed, limit=9)] == [1]
    assert [group.id for group in journal.ready(first.closed, limit=9)] == [0, 1]


def test_group_is_closed_once(journal: Journal) -> None:
    fill(journal, 1)
    with pytest.raises(SweError, match="group 0 is not open"):
        journal.close_group(0, assessed(members_of(0)))
    with pytest.raises(SweError, match="group 7 is not open"):
        journal.close_group(7, assessed(members_of(7)))
    (group,) = journal.ready(limit=9)
    assert_whole(group)


def test_member_is_added_whole_and_once(journal: Journal) -> None:
    group = journal.open_group("task", SIZE)
    journal.add_member(group, make_member("r"))
    with pytest.raises(SweError, match="UNIQUE"):
        journal.add_member(group, make_member("r"))
    with pytest.raises(SweError, match="FOREIGN KEY"):
        journal.add_member(group + 1, make_member("r"))
    (open_,) = journal.unfinished()
    assert [content(member) for member in open_.members] == [content(make_member("r"))]


def test_tokens_are_kept_only_while_needed(path: Path, journal: Journal) -> None:
    fill(journal, 1)
    (group,) = journal.ready()
    journal.drop([row for row, _ in group.rows], "stale")
    assert sql(path, "SELECT count(*) FROM members") == [(0,)]
    assert sql(path, "SELECT count(*) FROM chains") == [(0,)]
    assert sql(path, "SELECT sum(length(ids) + length(mask) + length(logprobs)) FROM rows") == [(0,)]


def test_version_never_goes_back(journal: Journal) -> None:
    assert journal.version == 0
    for version in (1, 5, 3):
        journal.raise_version(version)
    journal.rewind(0)
    assert journal.version == 5


def test_resumed_policy_is_as_old_as_its_checkpoint(journal: Journal) -> None:
    """What was announced for it since the kill ages nothing: neither its own new number nor lost steps."""
    for version, step in ((1, 0), (2, 1), (3, 2), (4, 3)):
        journal.raise_version(version, step, again=version == 1)
    journal.raise_version(5, 2, again=True)  # killed at step 3, resumed from step 2
    journal.raise_version(6, 2, again=True)  # killed before its first step
    journal.raise_version(7, 3)
    assert journal.updates() == {1: 1, 2: 2, 3: 3, 4: 4, 5: 3, 6: 3, 7: 4}


def test_run_that_is_resumed_before_its_first_checkpoint_begins_anew(journal: Journal) -> None:
    journal.raise_version(1, 0, again=True)
    journal.raise_version(2, 1)
    journal.raise_version(3, 0, again=True)
    assert journal.updates() == {1: 1, 2: 2, 3: 1}


def test_versions_without_a_step_are_updates(journal: Journal) -> None:
    for version in (1, 2, 5):
        journal.raise_version(version)
    assert journal.updates() == {1: 1, 2: 2, 5: 5}


def test_threads_share_a_journal(journal: Journal) -> None:
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda _: journal.open_group("task", 1), range(60)))
    assert sorted(numbers) == list(range(60))


# --- trained, dropped, rewound ---


class Marks(RuleBasedStateMachine):
    """Rows against a model of them: marked, rewound or reopened, the free rows come, no other."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.journal = Journal(self.folder / "train.sqlite")
        self.rows: dict[int, int | str | None] = {}  # free (None), the step that trained it, or why dropped
        self.groups: list[set[int]] = []
        self.step = 0

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)

    def free(self) -> list[int]:
        return [row for row, state in self.rows.items() if state is None]

    def check(self) -> None:
        came = [row for group in self.journal.ready(limit=1000) for row, _ in group.rows]
        assert came == self.free()
        done = sum(all(self.rows[row] is not None for row in rows) for rows in self.groups)
        assert self.journal.groups_done() == done

    @rule(rows=st.integers(0, 3))
    def close(self, rows: int) -> None:
        group = self.journal.open_group("task", 1)
        chains_ = tuple(make_chain(3, n) for n in range(rows))
        members = [Member(f"{group}", 0, 1.0, chains_, 3, 3)]
        self.journal.close_group(group, assessed(members))
        new = [row for ready in self.journal.ready(limit=1000) if ready.id == group for row, _ in ready.rows]
        assert len(new) == rows
        self.rows.update(dict.fromkeys(new))
        self.groups.append(set(new))
        self.check()

    @precondition(lambda self: self.free())
    @rule(data=st.data())
    def train(self, data: st.DataObject) -> None:
        self.step += 1
        rows = data.draw(st.lists(st.sampled_from(self.free()), unique=True))
        self.journal.mark_trained(rows, self.step)
        self.rows.update(dict.fromkeys(rows, self.step))
        self.check()

    @precondition(lambda self: self.free())
    @rule(data=st.data(), why=st.sampled_from(["stale", "too_long"]))
    def drop(self, data: st.DataObject, why: str) -> None:
        rows = data.draw(st.lists(st.sampled_from(self.free()), unique=True))
        self.journal.drop(rows, why)
        self.rows.update(dict.fromkeys(rows, why))
        self.check()

    @rule(data=st.data(), reopen=st.booleans())
    def rewind(self, data: st.DataObject, reopen: bool) -> None:
        if reopen:
            self.journal.close()
            self.journal = Journal(self.folder / "train.sqlite")
        self.step = data.draw(st.integers(0, self.step))
        self.journal.rewind(self.step)
        for row, state in self.rows.items():
            if isinstance(state, int) and state > self.step:
                self.rows[row] = None
        self.check()


@pytest.mark.parametrize(("examples", "steps"), [(5, 10), pytest.param(40, 15, marks=pytest.mark.slow)])
def test_free_rows_come_and_no_others(examples: int, steps: int) -> None:
    run_state_machine_as_test(Marks, settings=settings(max_examples=examples, stateful_step_count=steps))


# --- two processes, and kills ---


class Writer:
    """A process that forks one writer after another: each is killed, or ends by itself."""

    def __init__(self, path: Path, groups: int, train: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(path), str(groups), train],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() == 0

    def begin(self) -> int:
        """Fork a writer; its pid."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.line()[0])

    def line(self) -> list[str]:
        """What a method of the journal returned for, or `ended`, after all that it did."""
        return self.process.stdout.readline().split()


def test_two_concurrent_processes(path: Path) -> None:
    """One adds, the other trains; each row is trained once."""
    groups, trained, cursor = 10, [], -1
    with Writer(path, groups, "add") as writer, opened(path) as trainer:
        writer.begin()
        while (line := writer.line()) != ["ended"]:
            if line[0] != "closed":
                continue
            for ready in trainer.ready(cursor, limit=2):
                assert_whole(ready)
                cursor = ready.closed
                trained.append(ready.id)
                trainer.mark_trained([row for row, _ in ready.rows], len(trained))
                trainer.raise_version(len(trained))
        assert trained == list(range(groups))
        assert trainer.groups_done() == groups
        assert trainer.ready() == []


@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("watched", [False, True])
def test_sigkill_loses_nothing(path: Path, watched: bool, kills: int) -> None:
    """Killed at random instants, what it was told is there, and nothing is half there. `watched`: the other
    process has the file open meanwhile, else the next one to open it finds what the killed one left."""
    rng = random.Random(watched)
    closed: set[int] = set()
    marked: set[int] = set()
    taken: set[int] = set()
    with Writer(path, 10**6, "train") as writer:
        if watched:
            trainer = Journal(path)
        for _ in range(kills):
            pid = writer.begin()
            told = [writer.line() for _ in range(rng.randrange(1, 12))]
            time.sleep(rng.uniform(0, 0.004))
            os.kill(pid, signal.SIGKILL)
            while (line := writer.line()) != ["ended"]:
                told.append(line)
            closed |= {int(group) for what, group, *_ in told if what == "closed"}
            marked |= {int(group) for what, group, *_ in told if what == "trained"}

            if not watched:
                trainer = Journal(path)
            unfinished = {group.id: group.members for group in trainer.unfinished()}
            for what, group, *number in told:
                assert trainer.groups_begun() > int(group)
                if what == "member" and int(group) in unfinished:
                    assert len(unfinished[int(group)]) > int(number[0])
            for group, members in unfinished.items():
                assert group not in closed
                expected = members_of(group)[: len(members)]
                assert [content(member) for member in members] == [content(member) for member in expected]
            ready = trainer.ready(limit=10**6)
            for group in ready:
                assert_whole(group)
            free = {group.id for group in ready}
            assert not free & marked
            gone = set(range(trainer.groups_begun())) - free - set(unfinished) - taken
            # Even groups are trained by the writer itself; the last mark may be there without its answer.
            assert all(group % 2 == 0 for group in gone)
            assert len(gone - marked) <= 1
            marked |= gone
            odd = [group for group in ready if group.id % 2]
            trainer.mark_trained([row for group in odd for row, _ in group.rows], 1)
            taken |= {group.id for group in odd}
            if not watched:
                trainer.close()
        if watched:
            trainer.close()
    assert len(closed) > kills / 6
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


# --- a full disk ---


def add_until_full(path: Path) -> None:
    """Fill a disk, then check that the journal has all that it confirmed and works again with free space."""
    with opened(path) as journal:
        group = journal.open_group("task", 10**6)
        added = 0
        with contextlib.suppress(SweError):
            while True:
                journal.add_member(group, make_member(f"r{added}", tokens=4000))
                added += 1
        assert added
        for _ in range(2):
            sentence = r"^the training journal .* failed: .*; see that its disk has space [^\n]*$"
            with pytest.raises(SweError, match=sentence):
                journal.add_member(group, make_member(f"r{added}", tokens=4000))
            assert_kept(journal, added)


def assert_kept(journal: Journal, added: int) -> None:
    (open_,) = journal.unfinished()
    expected = [make_member(f"r{n}", tokens=4000) for n in range(added)]
    assert [content(member) for member in open_.members] == [content(member) for member in expected]


def test_file_that_cannot_grow(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        add_until_full(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with opened(path) as journal:  # there is space again
        (open_,) = journal.unfinished()
        journal.add_member(0, make_member(f"r{len(open_.members)}", tokens=4000))
        assert_kept(journal, len(open_.members) + 1)


def test_full_disk(tmp_path: Path) -> None:
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    script = 'mount -t tmpfs -o size=1m none "$0"; exec "$@"'
    try:
        subprocess.run([*mount, script, tmp_path, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("cannot mount a small file system here")
    command = [sys.executable, __file__, "full", tmp_path / "train.sqlite"]
    subprocess.run([*mount, script, tmp_path, *command], check=True)


# --- files that are no journal, or one that was damaged ---


def other_database(path: Path) -> None:
    sql(path, "CREATE TABLE notes (text)")


def next_format(path: Path) -> None:
    Journal(path).close()
    sql(path, f"PRAGMA user_version = {FORMAT + 1}")


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda path: path.write_text("something else\n" * 99), SweError, "file is not a database"),
        (lambda path: path.mkdir(), SweError, "unable to open database file"),
        (other_database, UsageError, "a database of another program"),
        (next_format, UsageError, f"has format {FORMAT + 1}, and .* works with format {FORMAT}"),
    ],
)
def test_another_file_is_refused_and_left_alone(path: Path, make, error, sentence: str) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(error, match=sentence) as caught:
        Journal(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before is None or path.read_bytes() == before


def test_no_folder(path: Path) -> None:
    with pytest.raises(SweError, match="unable to open database file"):
        Journal(path / "nowhere")


@pytest.mark.parametrize(
    "change", ["ids = x'00'", "logprobs = x'00000000'", "mask = x''", "mask = x'0000000000000000'", "ids = 7"]
)
def test_arrays_that_do_not_fit_together(path: Path, change: str) -> None:
    with opened(path) as journal:
        fill(journal, 1)
        sql(path, f"UPDATE rows SET {change}")
        with pytest.raises(SweError, match=r"failed: (Value|Type)Error: .* the file is whole"):
            journal.ready()


@functools.cache
def intact() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.sqlite"
        with opened(path) as journal:
            fill(journal, 12)
            for group in (12, 13):
                journal.open_group("task", SIZE)
                for member in members_of(group):
                    journal.add_member(group, member)
        return path.read_bytes()


@settings(deadline=None)
@given(data=st.data())
def test_damage_is_a_sentence(data: st.DataObject) -> None:
    """Any range overwritten or cut off: every method works, or says one sentence."""
    whole = intact()
    start = data.draw(st.integers(1, len(whole) - 1))
    rubbish = data.draw(st.sampled_from([b"", b"\0" * 64, b"\xff" * 8, bytes(range(256)) * 32, b"\x01"]))
    damaged = whole[:start] + (rubbish + whole[start + len(rubbish) :] if rubbish else b"")
    calls = (
        lambda journal: journal.unfinished(),
        lambda journal: journal.ready(limit=99),
        lambda journal: journal.groups_begun(),
        lambda journal: journal.groups_done(),
        lambda journal: journal.version,
        lambda journal: fill(journal, 1),
        lambda journal: journal.mark_trained(range(99), 1),
        lambda journal: journal.rewind(0),
        lambda journal: journal.drop(range(99), "stale"),
    )
    said: list[SweError] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.sqlite"
        path.write_bytes(damaged)
        try:
            with opened(path) as journal:
                for call in calls:
                    try:
                        call(journal)
                    except SweError as error:
                        said.append(error)
        except SweError as error:
            said.append(error)
    assert all(error.args and "\n" not in str(error) for error in said)


def write(path: Path, groups: int, train: bool) -> None:
    """Go on with what is there, then run groups up to this number; say what the journal returned for.
    `train`: also be the trainer of the even groups."""

    def tell(*words: object) -> None:
        os.write(1, (" ".join(map(str, words)) + "\n").encode())

    def finish(group: int, done: int) -> None:
        for number, member in list(enumerate(members_of(group)))[done:]:
            journal.add_member(group, member)
            tell("member", group, number)
        journal.close_group(group, assessed(members_of(group)))
        tell("closed", group)

    with opened(path) as journal:
        for open_ in journal.unfinished():
            finish(open_.id, len(open_.members))
        while journal.groups_begun() < groups:
            group = journal.open_group("task", SIZE)
            tell("opened", group)
            finish(group, 0)
            for ready in journal.ready(limit=99) if train else ():
                if ready.id % 2 == 0:
                    journal.mark_trained([row for row, _ in ready.rows], 1)
                    tell("trained", ready.id)


# evaluations


def test_evaluations_are_open_until_they_are_finished(path: Path) -> None:
    with opened(path) as journal:
        assert (journal.last_evaluation(), journal.open_evaluations()) == (None, [])
        first, second = journal.begin_evaluation(0, 1), journal.begin_evaluation(10, 11)
        journal.finish_evaluation(first.id)
    with opened(path) as journal:
        assert journal.open_evaluations() == [second]
        assert journal.ended_evaluations() == [first]
        assert journal.last_evaluation() == 10
    assert [one.name for one in (first, second)] == ["eval0", "eval10"]
    assert (second.step, second.round, second.version) == (10, 1, 11)


def test_evaluations_of_lost_weights_end_and_their_step_gets_another_name(journal: Journal) -> None:
    for step in (0, 10, 20):
        journal.begin_evaluation(step, step + 1)
    journal.rewind(10)
    assert [one.step for one in journal.open_evaluations()] == [0, 10]
    assert journal.last_evaluation() == 10
    assert journal.begin_evaluation(20, 25).name == "eval20.2"
    journal.rewind(10)
    assert journal.begin_evaluation(20, 35).name == "eval20.3"


def test_other_held_out_tasks_are_refused(journal: Journal) -> None:
    journal.hold_out({"a": "1", "b": "2"})
    journal.hold_out({"b": "2", "a": "1"})
    for other, named in (
        ({"a": "1"}, "b differs"),
        ({"a": "1", "b": "3"}, "b differs"),
        ({"c": "4"}, "a, b, c differ"),
    ):
        with pytest.raises(
            UsageError, match=f"evaluates on other tasks \\({named}\\): resume it with the same"
        ):
            journal.hold_out(other)


def main() -> None:
    if sys.argv[1] == "full":
        add_until_full(Path(sys.argv[2]))
        return
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.write(1, f"{os.getpid()}\n".encode())  # by the child: before all that it tells
            write(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "train")
            os._exit(0)
        os.waitpid(pid, 0)
        os.write(1, b"ended\n")


if __name__ == "__main__":
    main()


def test_every_trainable_id_is_accounted_for(journal: Journal) -> None:
    """Trained, waiting or dropped for a reason: at each moment they add up to what was sampled."""

    def chain(tokens: int) -> Chain:
        mask = np.arange(tokens + 1) > 0
        return Chain(
            (0,), np.ones(tokens + 1, np.int32), mask, np.zeros(tokens + 1, np.float32),
            np.where(mask, 1, -1).astype(np.int32), "start",
        )  # fmt: skip

    def begin(*rewards: float, version: int = 1, cut: int | None = None) -> tuple[int, list[Member]]:
        group = journal.open_group("task", len(rewards))
        members = [
            Member(f"{group}-{n}", n, reward, (chain(10 + n),), version, version, n == cut)
            for n, reward in enumerate(rewards)
        ]
        for member in members:
            journal.add_member(group, member)
        return group, members

    def close(group: int, members: list[Member], version: int = 1) -> None:
        assessed = assess(
            members,
            update=version,
            max_staleness=1,
            min_scored=2,
            keep_without_spread=False,
            overlong="exclude",
        )
        journal.close_group(group, assessed)

    group, members = begin(0.0, 1.0)
    assert fates(journal) == {"waiting": 21}
    close(group, members)
    close(*begin(1.0, 1.0))
    assert fates(journal) == {"waiting": 21, "no_spread": 21}
    (ready,) = journal.ready()
    first, second = (row_id for row_id, _ in ready.rows)
    journal.mark_trained([first], step=1)
    journal.drop([second], "stale")
    assert fates(journal) == {"trained": 10, "no_spread": 21, "stale": 11}
    group, fresh = begin(0.0, 1.0, version=3)
    old = Member(f"{group}-old", 2, 1.0, (chain(5),), 1, 1)
    journal.add_member(group, old)
    close(group, [*fresh, old], version=3)
    assert fates(journal) == {"trained": 10, "waiting": 21, "no_spread": 21, "stale": 16}
    journal.rewind(0)
    assert fates(journal) == {"waiting": 31, "no_spread": 21, "stale": 16}
    group, members = begin(0.0, 1.0, 1.0, version=3, cut=2)
    old = Member(f"{group}-old", 3, 1.0, (chain(5),), 1, 1)
    journal.add_member(group, old)
    close(group, [*members, old], version=3)
    assert fates(journal) == {"waiting": 52, "no_spread": 21, "stale": 21, "overlong": 12}
    close(*begin(0.0, 1.0, cut=1))  # too few are left, so the whole group is skipped
    assert fates(journal) == {"waiting": 52, "no_spread": 21, "stale": 21, "overlong": 33}


def fates(journal: Journal) -> dict[str, int]:
    """What became of the trainable ids of finished attempts."""
    with journal._transaction(write=False) as db:
        return dict(db.execute("SELECT fate, tokens FROM tokens"))


def test_pruned_rows_stay_trained(journal: Journal) -> None:
    """Its ids are gone, so going back beyond it frees nothing: an empty row must never be trained."""
    rows = tuple(
        Row(
            str(n),
            np.ones(4, np.int64),
            np.array([0, 1, 1, 1]),
            np.zeros(4, np.float32),
            1.0,
            1,
            1.0,
            0,
            "start",
        )
        for n in range(2)
    )
    group = journal.open_group("task", 2)
    journal.close_group(group, Assessed(rows, None, (), 1, 0.5, 0.5))
    (ready,) = journal.ready()
    for step, (row_id, _) in enumerate(ready.rows, 1):
        journal.mark_trained([row_id], step)
    journal.forget(1)
    assert fates(journal) == {"trained": 6}
    journal.rewind(0)
    ((_, again),) = journal.ready()[0].rows
    assert (again.rollout_id, len(again.input_ids)) == ("1", 4)
    assert fates(journal) == {"trained": 3, "waiting": 3}
