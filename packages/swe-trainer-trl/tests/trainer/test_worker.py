"""TRLRolloutWorker with its real process: real rollouts in local sandboxes, steered through files."""

from __future__ import annotations

import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from swe_core.api.records import Rollout
from swe_core.errors import SweError
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.run.settings import Settings
from swe_core.system.redaction import Redactor
from swe_trainer_trl.journal.groups import Assessed, Row
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.normalization import Part
from swe_trainer_trl.rollouts.messages import Metrics, Start, line

from ..scripted_rollouts import OPTIONS, PATIENCE, agents

if TYPE_CHECKING:  # imports TRL, which takes seconds
    from swe_trainer_trl.compat import RolloutSample, RolloutWorkerProtocol
    from swe_trainer_trl.trainer.worker import TRLRolloutWorker

pytestmark = pytest.mark.usefixtures("local_sandbox")
PLUGIN = Path(__file__).parents[1] / "scripted_rollouts.py"
JOURNAL = "train.sqlite"
MODULE = "swe_trainer_trl.trainer.worker."
TASKS = ("demo__memofn-1", "demo__csvtidy-1", "demo__runall-1")
ORDER = {"shuffle": True, "seed": 7}
TRAINER = """
import json, sys, time
from pathlib import Path
from types import SimpleNamespace
# It makes no row, and the import of TRL takes seconds.
sys.modules["swe_trainer_trl.compat"] = SimpleNamespace(make_sample=None, RolloutSample=None)
from swe_core.run.settings import Settings
from swe_trainer_trl.rollouts.messages import FeedOptions
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.trainer.worker import TRLRolloutWorker
given = json.loads(sys.argv[1])
run = Path(given["run"])
journal = Journal(run / "train.sqlite")
worker = TRLRolloutWorker(
    Settings(**given["settings"]), run, journal, run / "train.sqlite",
    FeedOptions(**given["options"]), 99, lambda: None, lambda: None,
)
worker.update_model_version(1)
worker.start()
print(worker._process.pid, flush=True)
time.sleep(1e6)
"""


@dataclass
class Training:
    """A run directory, and one worker after the other in it."""

    run: Path
    folder: Path
    mark: str
    workers: list[TRLRolloutWorker] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)
    metrics: Counter[str] = field(default_factory=Counter)

    def settings(self, broken: bool = False, **changed: Any) -> Settings:
        """A `broken` engine is a defect that no check finds."""
        run = {"plugins": (), "extra_plugins": (str(PLUGIN),), "tasks": "demo", "only": TASKS}
        run |= {**dict.fromkeys(("agent", "engine", "grader"), "scripted"), **changed}
        engine = {"scripted": {"folder": str(self.folder), "broken": broken}}
        return Settings(run=run, agent={"scripted": {"mark": self.mark}}, engine=engine)

    def script(self, words: Mapping[str, Sequence[str]]) -> None:
        (self.folder / "script.json").write_text(json.dumps(words))

    def let(self, name: str) -> None:
        (self.folder / name).touch()

    def worker(
        self,
        max_row: int | None = None,
        settings: Settings | None = None,
        check_others: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> TRLRolloutWorker:
        from swe_trainer_trl.trainer.worker import TRLRolloutWorker

        journal = Journal(self.run / JOURNAL)
        worker = TRLRolloutWorker(
            settings or self.settings(), self.run, journal, self.run / JOURNAL,
            OPTIONS.model_copy(update={**ORDER, **options}), 99, lambda: max_row, check_others,
        )  # fmt: skip
        self.workers.append(worker)
        self.journals.append(journal)
        return worker

    def start(self, **more: Any) -> TRLRolloutWorker:
        """As the trainer does: the first weight sync, and then the rollouts."""
        worker = self.worker(**more)
        self.journals[-1].raise_version(worker.version + 1, 0, again=True)
        worker.update_model_version(worker.version + 1)
        worker.start()
        return worker

    @property
    def child(self) -> subprocess.Popen[bytes]:
        process = self.workers[-1]._process
        assert process is not None
        return process

    def rows(self, count: int) -> list[RolloutSample]:
        """As TRL does: ask for rows, and whether there can be any."""
        found, until = [], time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < until
            try:
                found.append(self.workers[-1].rollout_buffer.get(timeout=0.2))
            except queue.Empty:
                self.workers[-1].check_health(PATIENCE)
        return found

    def until(self, true: Callable[[], bool], *, healthy: bool = True) -> None:
        until = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < until
            time.sleep(0.05)
            if healthy:
                self.workers[-1].check_health(PATIENCE)

    def heard(self) -> None:
        """Until the process has said something more."""
        last = self.workers[-1]._heard
        self.until(lambda: self.workers[-1]._heard > last)

    def unhealthy(self, stale_after_s: float = PATIENCE) -> str:
        """What `check_health` raises in the end."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                self.workers[-1].check_health(stale_after_s)
            except SweError as error:
                return str(error)
            time.sleep(0.05)
        pytest.fail("it is still healthy")

    def drain(self) -> Counter[str]:
        """What was measured so far, as sums."""
        while not self.workers[-1].metrics_queue.empty():
            for name, value in self.workers[-1].metrics_queue.get_nowait().items():
                self.metrics[name] += value[0] if isinstance(value, tuple) else value
        return self.metrics

    def agents(self) -> int:
        return agents(self.mark)

    @property
    def rollouts(self) -> list[Rollout]:
        return RunDirectory.open(self.run).rollouts()

    def finished(self) -> dict[str, Rollout]:
        """Attempts that are over, each once: "GROUP/ATTEMPT" to the rollout."""
        found = [r for r in self.rollouts if r.outcome != "cancelled" or r.cancelled_as is not None]
        attempts = {_short(rollout.id): rollout for rollout in found}
        assert len(attempts) == len(found)
        return attempts


def _short(rollout_id: str) -> str:
    """Without the number of the try."""
    return re.sub(r"^.*-g(\d+)-(\d+)(-\d+)?$", r"\1/\2", rollout_id)


@pytest.fixture
def training(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    """When it is over, nothing is left: no process, thread, descriptor or directory of a sandbox."""
    monkeypatch.setenv("TMPDIR", str(scratch))
    folder = tmp_path / "steer"
    folder.mkdir()
    run = RunDirectory.create(tmp_path / "run", new_run_info({}, {}, None, []), Redactor())
    training = Training(run.path, folder, uuid.uuid4().hex)
    training.script({"*": ["done"]})
    before = set(os.listdir("/proc/self/fd"))
    yield training
    for worker in training.workers:
        worker.stop()
        assert worker._process is None or worker._process.returncode is not None
    for journal in training.journals:
        journal.close()
    training.until(lambda: training.agents() == 0, healthy=False)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("swe-")] == []
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def sandboxes() -> list[str]:
    """What sandboxes have on the host's disk, and their processes on it."""
    scratch = os.environ["TMPDIR"]
    found = [str(path) for path in Path(scratch).glob("*/*")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            found += words[:1] if any(word.startswith(scratch) for word in words) else []
    return found


# rows


def test_rows_of_real_rollouts(training: Training) -> None:
    training.script({"*": ["again", "done"]})
    worker: RolloutWorkerProtocol = training.start()
    rows = training.rows(6)
    worker.stop()
    assert sandboxes() == []
    assert training.child.returncode == 0
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert first.group_id == second.group_id
        assert {first.metrics["sample/reward"], second.metrics["sample/reward"]} == {1.0, 0.0}
        assert first.advantage == pytest.approx(2 * first.metrics["sample/reward"] - 1, abs=1e-6)
    assert len({row.group_id for row in rows}) == 3
    for row in rows:
        assert row.input_ids.dtype == row.completion_mask.dtype == np.int64
        assert row.old_log_probs.dtype == np.float32
        assert bytes(row.input_ids[row.completion_mask == 1].tolist()) == b"againdone"
        assert row.old_log_probs.tolist() == (row.completion_mask * -0.5).tolist()
        assert row.model_version == 1
        assert row.enqueued_at is not None
    assert training.drain()["group/closed_total"] >= 3
    assert training.metrics["rollout/finished_total"] >= 6
    assert [item.row_id for item in worker.rollout_buffer.trained(9)] == [1]


@pytest.mark.parametrize("why", ["stale", "long"])
@pytest.mark.slow
def test_rows_that_are_too_old_or_too_long_are_marked_and_make_room(training: Training, why: str) -> None:
    long = {key: ["again", "done"] for key in ("0/0", "0/1", "1/0")} if why == "long" else {}
    training.script({**long, "*": ["done"]})
    worker = training.start(groups_ahead=1, max_row=len("?done") if long else None)
    if not long:
        training.until(lambda: worker.rollout_buffer.qsize() == 2)
        worker.update_model_version(5)
    (row,) = training.rows(1)  # where it is long, the other one of its group is too long
    assert (row.group_id, row.model_version) == (1, 1 if long else 5)
    assert training.journals[0].groups_done() == 1
    assert long or [group.id for group in training.journals[0].ready(limit=9)][:1] == [1]
    worker.stop()
    found = training.drain()
    assert found["staleness/rows_dropped_total"] == (0 if long else 2)
    assert found["batch/rows_too_long_total"] == (3 if long else 0)


@pytest.mark.slow
def test_rollout_is_cancelled_when_its_policy_is_too_old(training: Training) -> None:
    training.script({"0/1": ["stay"], "*": ["done"]})
    worker = training.start(groups_ahead=1)
    training.until(lambda: training.agents() == 1 and len(training.finished()) == 1)
    directory = RunDirectory.open(training.run)
    training.until(lambda: any(directory.turns(path.name) for path in training.run.glob("rollouts/*-g0-1")))
    worker.update_model_version(3)
    training.until(lambda: "0/1" in training.finished())
    training.rows(2)
    cancelled = training.finished()["0/1"]
    assert cancelled.cancelled_as == "stale"
    assert cancelled.ledger is not None
    assert cancelled.ledger.dropped == {"stale": len("stay")}


@pytest.mark.parametrize("trained", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.slow
def test_summaries_are_trained_or_context(training: Training, trained: bool) -> None:
    """A session with a compaction: the call after "compact" asks for a summary."""
    training.script({"*": ["again", "compact", "again", "done"]})
    training.start(groups_ahead=1, summaries=trained)
    rows = training.rows(2)
    rollout = training.finished()["0/0"]
    for row in rows:
        learned = bytes(row.input_ids[row.completion_mask == 1].tolist())
        assert learned == (b"againcompactagaindone" if trained else b"againcompactdone")
    assert rollout.ledger is not None
    assert rollout.ledger.dropped == ({} if trained else {"summary": len("again")})
    assert rollout.ledger.summaries == (len("again") if trained else 0)


def test_row_knows_what_is_trained_of_its_whole_rollout(training: Training) -> None:
    """Also what an earlier step trained, but not what is never trained."""
    worker = training.worker(max_row=20)
    journal = training.journals[0]
    rows = []
    for name, size in (("a", 4), ("b", 3), ("a", 6), ("a", 50), ("b", 50)):
        mask, logprobs = np.int64(np.arange(size) > 0), np.zeros(size, np.float32)
        rows.append(Row(name, np.arange(size), mask, logprobs, 1.0, 1, 1.0, 0, "start"))
    group = journal.open_group("task", 2)
    journal.close_group(group, Assessed(tuple(rows), None, (), 1, 0.5, 0.5))
    ((first, _), *_) = journal.ready()[0].rows
    journal.mark_trained([first], step=1)
    (ready,) = journal.ready()
    assert ready.trained == {"a": 3}
    worker._hand_over(ready)
    training.rows(2)
    assert worker.rollout_buffer.handed(2 + 5) == [Part("b", 2, 2), Part("a", 5, 8)]


@pytest.mark.slow
def test_rollouts_begin_on_the_servers_that_live(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead one would be refused by the engine's check. It is put in once it is back."""
    began: list[Start] = []
    monkeypatch.setattr(MODULE + "Start", lambda **values: began.append(Start(**values)) or began[-1])
    both = "http://a", "http://b"
    worker = training.worker(settings=training.settings(engine_url=f"{both[0]},{both[1]}/v1"))
    for lost, back in (both[1:], ()), (both, ()), ((), both):  # where all are dead, none is better
        for url in lost:
            worker.server_lost(url)
        for url in back:
            worker.server_back(url)
        worker.start()
        worker.stop()
    urls = [start.settings["run"]["engine_url"] for start in began]
    assert urls == ["http://a", "http://a,http://b", "http://a,http://b"]


@pytest.mark.slow
def test_process_is_none_of_the_trainers(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    training.start()
    training.heard()
    environment = Path(f"/proc/{training.child.pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=" in environment
    assert not any(name.startswith(b"RANK=") for name in environment)
    assert os.getsid(training.child.pid) == training.child.pid
    for descriptor in Path(f"/proc/{training.child.pid}/cmdline").read_text().split("\0")[-3:-1]:
        info = Path(f"/proc/{training.child.pid}/fdinfo/{descriptor}").read_text()
        flags = re.search(r"flags:\s*(\d+)", info)
        assert flags is not None
        assert int(flags[1], 8) & os.O_CLOEXEC  # no sandbox keeps the pipes open


# the end


@pytest.mark.slow
def test_stop_records_what_runs_and_closes_every_sandbox(training: Training) -> None:
    training.script({"*": ["stay"]})
    worker = training.start()
    training.until(lambda: training.agents() == 4)
    assert any(name.endswith("bwrap") for name in sandboxes())
    worker.stop()
    assert training.agents() == 0
    assert sandboxes() == []
    assert training.child.returncode == 0
    assert [(r.outcome, r.cancelled_as) for r in training.rollouts] == [("cancelled", None)] * 4
    worker.stop()
    worker.update_model_version(2)
    worker.check_health(0.0)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (signal.SIGSTOP, r"has sent no heartbeat for \d+ s \(grpo\..*so it hangs; resume"),
        (signal.SIGKILL, "was killed by signal 9, .*resume with --resume"),
    ],
)
@pytest.mark.slow
def test_process_that_hangs_or_is_killed_is_said_in_a_sentence(
    training: Training, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, says: str
) -> None:
    monkeypatch.setattr(MODULE + "_GRACE", 0.2)
    training.script({"*": ["stay"]})
    worker = training.start()
    training.until(lambda: training.agents() == 4)
    training.child.send_signal(sent)
    assert re.match(f"the rollouts' process {says}", training.unhealthy(stale_after_s=1.5))
    worker.stop()
    assert training.child.returncode == -signal.SIGKILL
    training.until(lambda: training.agents() == 0, healthy=False)


def test_what_ends_the_wait_for_rows_is_said(training: Training) -> None:
    """Another trainer process has ended, or rows cannot be handed over."""

    def failing(*args: object) -> Any:
        raise SweError("the reason")

    training.worker(check_others=failing)
    assert training.unhealthy() == "the reason"
    worker = training.worker()
    training.journals[-1].ready = failing
    worker._guarded(worker._pump)
    assert training.unhealthy() == "rows could not be handed to the trainer: the reason"


@pytest.mark.slow
def test_process_that_fails_tells_why_with_its_traceback(training: Training) -> None:
    training.start(settings=training.settings(broken=True))
    first, *trace = training.unhealthy().splitlines()
    assert first == "RuntimeError: the engine has a bug"
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == first
    training.child.wait(PATIENCE)
    assert training.unhealthy().startswith(first)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"only": ("demo__gone-1",)}, "'demo__gone-1': no such task"),
        pytest.param({"agent": "nop"}, "here it answers none: choose an agent", marks=pytest.mark.slow),
    ],
)
def test_process_that_is_refused_says_one_sentence(
    training: Training, changed: dict[str, Any], says: str
) -> None:
    training.start(settings=training.settings(**changed))
    said = training.unhealthy()
    assert re.search(says, said)
    assert "\n" not in said


@pytest.mark.slow
def test_trainers_death_ends_the_rollouts(training: Training) -> None:
    """Killed, it cannot say so."""
    training.script({"*": ["stay"]})
    settings, options = training.settings().model_dump(mode="json"), OPTIONS.model_dump()
    given = {"run": str(training.run), "settings": settings, "options": options}
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, json.dumps(given)], stdout=subprocess.PIPE)
    with trainer:
        assert trainer.stdout is not None
        child = int(trainer.stdout.readline())
        with os.fdopen(os.pidfd_open(child)) as ending:
            training.until(lambda: training.agents() == 4, healthy=False)
            trainer.kill()
            assert select.select([ending], [], [], PATIENCE)[0]
    assert training.agents() == 0
    assert sandboxes() == []
    assert [rollout.outcome for rollout in training.rollouts] == ["cancelled"] * 4


# what goes wrong between the two


def talk(*said: bytes) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of the rollouts' process, and its reports, where the trainer says this and ends."""
    theirs_read, commands = os.pipe()
    reports, theirs_write = os.pipe()
    argv = [sys.executable, "-m", "swe_trainer_trl.rollouts.process", str(theirs_read), str(theirs_write)]
    with subprocess.Popen(argv, pass_fds=(theirs_read, theirs_write)) as child:
        os.close(theirs_read)
        os.close(theirs_write)
        with os.fdopen(commands, "wb") as to, os.fdopen(reports, "rb") as from_:
            to.writelines(said)
            to.close()
            heard = [json.loads(data) for data in from_]
        return child.wait(PATIENCE), heard


@pytest.mark.slow
def test_start_gives_signs_of_life_too(training: Training) -> None:
    """Its parts may take long; and a trainer that is gone by then, or before, ends it."""
    code, (only,) = talk()
    assert (code, only["kind"]) == (1, "failed")
    assert only["message"] == "EOFError: the trainer ended before it sent a message"
    start = Start(
        settings=training.settings().model_dump(mode="json"),
        directory=str(training.run),
        journal=str(training.run / JOURNAL),
        version=1,
        updates={1: 1},
        options=OPTIONS,
    )
    code, heard = talk(line(start))
    assert (code, heard[0]["kind"], heard[-1]["kind"]) == (0, "beat", "metrics")


def test_message_that_was_torn_by_a_kill_is_none(training: Training) -> None:
    worker = training.worker()
    read, write = os.pipe()
    whole = line(Metrics(values={"a": 1.0}))
    os.write(write, whole + whole[:-5])
    os.close(write)
    worker._listen(read)
    assert worker.metrics_queue.get_nowait() == {"a": 1.0}
    assert worker.metrics_queue.empty()


def test_process_that_cannot_be_started_leaves_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(FileNotFoundError):
        training.worker().start()


def test_stop_wakes_the_pump_wherever_it_is(training: Training) -> None:
    """Also between its look at whether to stop and its look at the journal."""
    worker = training.worker()

    class Stopping(threading.Event):
        def clear(self) -> None:
            worker._stopping.set()
            self.set()  # all that `stop` does, just before
            super().clear()

    worker._closed = Stopping()
    pump = threading.Thread(target=worker._pump, daemon=True)
    pump.start()
    pump.join(PATIENCE / 10)
    assert not pump.is_alive()


@pytest.mark.parametrize("what", [pytest.param("buffer", marks=pytest.mark.slow), "journal"])
@pytest.mark.slow
def test_stop_wakes_a_pump_that_waits(training: Training, what: str) -> None:
    worker = training.start(groups_ahead=2 if what == "buffer" else 1)
    worker.rollout_buffer.maxsize = 1  # the second group has to wait
    training.until(lambda: worker.rollout_buffer.qsize() == 2)
    if what == "buffer":
        training.until(lambda: len(training.journals[0].ready(limit=9)) == 2)
    worker.stop()
    assert not any(thread.is_alive() for thread in worker._threads)


# resume


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_loses_nothing_and_does_nothing_twice(
    training: Training, kills: int
) -> None:
    random = Random(kills)
    training.script({"*": ["again", "done"]})
    trained, versions, groups = [], [], Counter[int]()
    known: dict[str, Rollout] = {}
    for _ in range(kills):
        worker = training.start(groups_ahead=2, max_staleness=99)
        journal = training.journals[-1]
        versions.append(worker.version)
        for _ in range(random.randrange(4)):
            (row,) = training.rows(1)
            (item,) = worker.rollout_buffer.trained(int(row.completion_mask[1:].sum()))
            journal.mark_trained([item.row_id], len(trained) + 1)
            trained.append(item.row_id)
            groups[row.group_id] += 1
        time.sleep(random.random())
        training.child.kill()
        training.child.wait(PATIENCE)
        finished = training.finished()
        assert {name: finished[name] for name in known} == known
        known = finished
        worker.stop()
    worker = training.start(groups_ahead=2, max_staleness=99)
    journal = training.journals[-1]
    begun = journal.groups_begun()
    while any(groups[group] < 2 for group in range(begun)):
        assert len(trained) < 200, "a row of those groups is lost"
        (row,) = training.rows(1)
        items = worker.rollout_buffer.trained(int(row.completion_mask[1:].sum()))
        trained += [item.row_id for item in items]
        groups[row.group_id] += 1
    worker.stop()
    assert versions == list(range(1, kills + 1))
    assert max(groups.values()) == 2  # each row once, and each group whole
    assert len(set(trained)) == len(trained)
    finished = training.finished()
    assert {name: finished[name] for name in known} == known
    assert {f"{group}/{attempt}" for group in range(begun) for attempt in (0, 1)} <= finished.keys()
    epochs = [finished[f"{group}/0"].task_id for group in range(begun)]
    for epoch in range(begun // 3):
        assert len(set(epochs[3 * epoch : 3 * epoch + 3])) == 3
