"""Runs as tables of an SQLite database, for Datasette and for SQL."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from swe_core.api.records import Phases, Turn
from swe_core.errors import UsageError
from swe_core.export.source import ExportedRollout, ExportedRun
from swe_core.export.writer import Writer

FILE = "runs.sqlite"
SCHEMA = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, created_at TEXT NOT NULL, tasks_from TEXT, planned INTEGER, finished INTEGER,
    interrupted INTEGER, versions TEXT, notes TEXT
);
CREATE TABLE rollouts (
    run TEXT NOT NULL REFERENCES runs (run), id TEXT NOT NULL, task_id TEXT NOT NULL,
    attempt INTEGER NOT NULL, evaluation INTEGER, group_name TEXT NOT NULL, agent TEXT, sandbox TEXT,
    engine TEXT, model TEXT,
    outcome TEXT NOT NULL, reward REAL, unshaped_reward REAL, advantage REAL, cancelled_as TEXT, reason TEXT,
    error_boundary TEXT, error_type TEXT, error TEXT, ended_by TEXT, turns INTEGER,
    prompt_tokens INTEGER, completion_tokens INTEGER, sampled INTEGER, trainable INTEGER, chains INTEGER,
    tampering TEXT, suspicious TEXT, patch_bytes INTEGER, patch TEXT, agent_exit_code INTEGER,
    open_seconds REAL, prepare_seconds REAL, agent_seconds REAL, export_seconds REAL, grade_seconds REAL,
    started_at TEXT NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (run, id)
);
CREATE TABLE turns (
    run TEXT NOT NULL, rollout_id TEXT NOT NULL, turn INTEGER NOT NULL, after INTEGER, kept INTEGER NOT NULL,
    started_at TEXT NOT NULL, seconds REAL NOT NULL, dialect TEXT, auxiliary TEXT, finish_reason TEXT,
    error TEXT, prompt_tokens INTEGER, completion_tokens INTEGER, cause TEXT, dropped TEXT, mean_logprob REAL,
    first_version INTEGER, last_version INTEGER, new_messages TEXT, content TEXT, reasoning TEXT,
    tool_calls TEXT,
    PRIMARY KEY (run, rollout_id, turn), FOREIGN KEY (run, rollout_id) REFERENCES rollouts (run, id)
);
CREATE TABLE tests (
    run TEXT NOT NULL, rollout_id TEXT NOT NULL, kind TEXT NOT NULL, test TEXT NOT NULL, status TEXT NOT NULL,
    PRIMARY KEY (run, rollout_id, kind, test), FOREIGN KEY (run, rollout_id) REFERENCES rollouts (run, id)
);
CREATE TABLE chains (
    run TEXT NOT NULL, rollout_id TEXT NOT NULL, chain INTEGER NOT NULL, cause TEXT NOT NULL,
    tokens INTEGER NOT NULL, trainable INTEGER NOT NULL, turns TEXT NOT NULL, mean_logprob REAL,
    first_version INTEGER, last_version INTEGER,
    PRIMARY KEY (run, rollout_id, chain), FOREIGN KEY (run, rollout_id) REFERENCES rollouts (run, id)
);
CREATE TABLE dropped (
    run TEXT NOT NULL, rollout_id TEXT NOT NULL, reason TEXT NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (run, rollout_id, reason), FOREIGN KEY (run, rollout_id) REFERENCES rollouts (run, id)
);
CREATE TABLE metrics (
    run TEXT NOT NULL REFERENCES runs (run), name TEXT NOT NULL, step INTEGER NOT NULL, value REAL,
    PRIMARY KEY (run, name, step)
);
CREATE INDEX rollouts_task ON rollouts (task_id);
CREATE INDEX rollouts_outcome ON rollouts (outcome);
CREATE INDEX rollouts_group ON rollouts (run, group_name);
CREATE INDEX tests_status ON tests (status);
CREATE INDEX tests_test ON tests (test);
CREATE VIEW pass_rates AS
    SELECT run, task_id, COUNT(*) AS attempts, COUNT(reward) AS verdicts,
        SUM(outcome = 'resolved') AS resolved, AVG(reward) AS mean_reward,
        AVG(CASE WHEN reward IS NOT NULL THEN outcome = 'resolved' END) AS pass_rate,
        SUM(outcome = 'error') AS errors, AVG(seconds) AS mean_seconds,
        AVG(turns) AS mean_turns, AVG(completion_tokens) AS mean_completion_tokens
    FROM rollouts WHERE evaluation IS NULL GROUP BY run, task_id;
CREATE VIEW group_results AS
    SELECT run, group_name, task_id, COUNT(*) AS attempts, COUNT(reward) AS verdicts,
        AVG(reward) AS mean_reward, MIN(reward) = MAX(reward) AS all_alike
    FROM rollouts GROUP BY run, group_name, task_id;
CREATE VIEW errors AS
    SELECT run, error_boundary, error_type, COUNT(*) AS rollouts, MIN(error) AS example
    FROM rollouts WHERE outcome = 'error' GROUP BY run, error_boundary, error_type;
CREATE VIEW flips AS
    SELECT tests.run, rollouts.task_id, kind, test, SUM(status = 'PASSED') AS passed, COUNT(*) AS attempts
    FROM tests JOIN rollouts ON rollouts.run = tests.run AND rollouts.id = tests.rollout_id
    GROUP BY tests.run, rollouts.task_id, kind, test HAVING passed NOT IN (0, COUNT(*));
"""
_UNFIT = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    OverflowError,
)
"""Errors of values. Others are those of the disk."""


class DatabaseWriter(Writer):
    """Writes the tables, each rollout in one transaction."""

    def __init__(self, folder: Path, runs: Sequence[ExportedRun]) -> None:
        super().__init__(folder, runs)
        with _translated():
            self._database = sqlite3.connect(folder / FILE, isolation_level=None)
            # The file gets its name when it is whole, so nothing protects it before. The journal is there to
            # take back one rollout.
            self._database.execute("PRAGMA journal_mode = MEMORY")
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.executescript(SCHEMA)
            for run in runs:
                self._insert("runs", [_run(run)])

    def add(self, rollout: ExportedRollout) -> int:
        run, name = rollout.run.name, rollout.id
        record, turns = rollout.record, rollout.turns
        chains = [] if record.ledger is None else _chains(rollout)
        tests = () if record.grade is None else (record.grade.fail_to_pass, record.grade.pass_to_pass)
        kinds = zip(("fail_to_pass", "pass_to_pass"), tests, strict=False)
        dropped = {} if record.ledger is None else record.ledger.dropped
        tables = {
            "rollouts": [_rollout(rollout)],
            "turns": [(run, name, *_turn(turn)) for turn in turns],
            "tests": [
                (run, name, kind, *one) for kind, statuses in kinds for one in statuses.items()
            ],
            "chains": [(run, name, *chain) for chain in chains],
            "dropped": [(run, name, *one) for one in dropped.items()],
        }  # fmt: skip
        with _translated():
            self._database.execute("SAVEPOINT rollout")
            try:
                for table, rows in tables.items():
                    self._insert(table, rows)
            except _UNFIT as error:
                self._database.execute("ROLLBACK TO rollout")
                self._database.execute("RELEASE rollout")
                raise UsageError(f"its files do not fit into the tables: {error}") from None
            self._database.execute("RELEASE rollout")
        return 1

    def close(self) -> None:
        with _translated():
            self._database.execute("BEGIN")
            for run in self.runs:
                self._insert("metrics", [(run.name, *one) for one in _metrics(run.path)])
            self._database.execute("COMMIT")
            self._database.execute("ANALYZE")
            self._database.close()

    def abort(self) -> None:
        self._database.close()

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


@contextmanager
def _translated() -> Iterator[None]:
    """Translate the errors of SQLite, which are no errors of the system, such as a full disk.

    Raises:
        OSError: SQLite cannot write.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise OSError(errno.EIO, str(error)) from None


def _run(run: ExportedRun) -> tuple[Any, ...]:
    facts = run.facts
    return (
        *(run.name, facts.created_at.isoformat(), facts.tasks, run.directory.info.planned),
        *(run.finished, run.interrupted, _json(facts.versions), _json(facts.notes)),
    )


def _rollout(rollout: ExportedRollout) -> tuple[Any, ...]:
    record = rollout.record
    grade, failure, ledger = record.grade, record.failure, record.ledger
    evidence = ((), ()) if grade is None else (grade.tampering, grade.suspicious)
    return (
        *(rollout.run.name, record.id, record.task_id, record.attempt),
        *(record.evaluation, rollout.group),
        *(record.agent, record.sandbox, record.engine, record.model),
        *(record.outcome, record.reward, record.unshaped_reward, rollout.advantage, record.cancelled_as),
        grade and grade.reason,
        *((None,) * 3 if failure is None else (failure.boundary, failure.type, failure.message)),
        *(record.ended_by, record.turns, record.usage.prompt_tokens, record.usage.completion_tokens),
        *((None,) * 3 if ledger is None else (ledger.sampled, ledger.trainable, ledger.chains)),
        *(None if grade is None else _json([one.model_dump() for one in found]) for found in evidence),
        *(record.patch_bytes, rollout.patch, record.agent_exit_code),
        *(getattr(record.phases, name) for name in Phases.model_fields),
        *(record.started_at.isoformat(), record.seconds),
    )  # fmt: skip


def _turn(turn: Turn) -> tuple[Any, ...]:
    tokens, reply = turn.tokens, turn.reply or {}
    known = [] if tokens is None else [one for one in tokens.logprobs if one is not None]
    versions = [] if tokens is None else [version for version, _ in tokens.versions]
    content = reply.get("content")
    return (
        *(turn.index, turn.after, turn.kept, turn.started_at.isoformat(), turn.seconds),
        *(turn.dialect, turn.auxiliary, turn.finish_reason, turn.error),
        *(turn.usage.prompt_tokens, turn.usage.completion_tokens),
        *(tokens and tokens.cause, tokens and tokens.dropped, sum(known) / len(known) if known else None),
        *(min(versions, default=None), max(versions, default=None)),
        *(_json(turn.messages), content if isinstance(content, str | None) else _json(content)),
        *(reply.get("reasoning_content"), _json(reply["tool_calls"]) if reply.get("tool_calls") else None),
    )


def _chains(rollout: ExportedRollout) -> list[tuple[Any, ...]]:
    from swe_core.tokens.chains import chains_of  # with numpy, which only tokens need

    found = []
    for index, chain in enumerate(chains_of(rollout.turns)):
        mask = chain.completion_mask
        versions, logprobs = chain.versions[mask], chain.old_log_probs[mask]
        ends = (int(versions.min()), int(versions.max())) if len(versions) else (None, None)
        mean = float(logprobs.mean()) if len(logprobs) else None
        counts = len(chain), int(mask.sum())
        found.append((index, chain.cause, *counts, _json(chain.turns), mean, *ends))
    return found


def _metrics(run: Path) -> Iterator[tuple[str, int, float]]:
    from swe_core.report.training_metrics import METRICS_FILE, read_metrics

    if not (run / METRICS_FILE).exists():
        return
    metrics = read_metrics(run)
    for metric in () if metrics is None else metrics.metrics:
        for step, value in zip(metric.steps, metric.values, strict=True):
            yield metric.name, int(step), float(value)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
