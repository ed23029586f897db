"""The journal: nothing lost, nothing twice, by two processes, through kills, full disks and damage.

Run as a program, this file is the process that runs rollouts: `main` at its end.
"""

import contextlib
import functools
import os
import random
import resource
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
    expected = assessed(members_of(group.id)).rows
    assert [content(row) for _, row in group.rows] == [content(row) for row in expected]


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


def fates(journal: Journal) -> dict[str, int]:
    """What became of the trainable ids of finished attempts."""
    with journal._transaction(write=False) as db:
        return dict(db.execute("SELECT fate, tokens FROM tokens"))


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


def test_threads_share_a_journal(journal: Journal) -> None:
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda _: journal.open_group("task", 1), range(60)))
    assert sorted(numbers) == list(range(60))


# --- two processes, and kills ---


class Writer:
    """A process that forks one writer after another: each is killed, or ends by itself."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "write", str(path)],
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


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.slow
def test_sigkill_loses_nothing(path: Path, watched: bool) -> None:
    """Killed at random instants, what it was told is there, and nothing is half there. `watched`: the other
    process has the file open meanwhile, else the next one to open it finds what the killed one left."""
    rng, kills = random.Random(watched), 60
    closed: set[int] = set()
    marked: set[int] = set()
    taken: set[int] = set()
    with Writer(path) as writer:
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


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda path: path.write_text("something else\n" * 99), SweError, "file is not a database"),
        (lambda path: path.mkdir(), SweError, "unable to open database file"),
        (lambda path: sql(path, "CREATE TABLE notes (text)"), UsageError, "a database of another program"),
        (
            lambda path: (Journal(path).close(), sql(path, f"PRAGMA user_version = {FORMAT + 1}")),
            UsageError,
            f"has format {FORMAT + 1}, and .* works with format {FORMAT}",
        ),
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


@pytest.mark.parametrize("change", ["ids = x'00'", "mask = x'0000000000000000'", "ids = 7"])
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


def write(path: Path) -> None:
    """Resume what is there, then run groups without an end and train every second one; say what the journal
    returned for."""

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
        while True:
            group = journal.open_group("task", SIZE)
            tell("opened", group)
            finish(group, 0)
            for ready in journal.ready(limit=99):
                if ready.id % 2 == 0:
                    journal.mark_trained([row for row, _ in ready.rows], 1)
                    tell("trained", ready.id)


def main() -> None:
    if sys.argv[1] == "full":
        add_until_full(Path(sys.argv[2]))
        return
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.write(1, f"{os.getpid()}\n".encode())  # by the child: before all that it tells
            write(Path(sys.argv[2]))
        os.waitpid(pid, 0)
        os.write(1, b"ended\n")


if __name__ == "__main__":
    main()
