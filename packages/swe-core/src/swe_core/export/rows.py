"""Training rows as JSON lines and as Parquet: exact ids, masks and log-probabilities, one row per chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from swe_core.api.chain import Chain
from swe_core.export.source import ExportedRollout, ExportedRun
from swe_core.export.writer import HELD_OUT, Reason, Writer
from swe_core.tokens.chains import chains_of

JSONL = "train.jsonl"
PARQUET = "train.parquet"
SECRETS = Reason("rollout", "whose calls contained a secret, because ids spell it")
NO_ROWS = Reason("rollout", "without a row")

_BATCH = 2**22
"""Ids of the rows that Parquet gets at once, about 70 MB."""


def rows_of(rollout: ExportedRollout) -> list[dict[str, Any]]:
    """Return the training rows of a rollout, with numpy arrays.

    Raises:
        UsageError: A file of the rollout is damaged.
        LedgerError: Its tokens do not fit together.
    """
    record = rollout.record
    return [
        {
            "run": rollout.run.name,
            "rollout_id": record.id,
            "task_id": record.task_id,
            "attempt": record.attempt,
            "group": rollout.group,
            "row": index,
            "agent": record.agent,
            "model": record.model,
            "outcome": record.outcome,
            "reward": record.reward,
            "advantage": rollout.advantage,
            **{one.name: getattr(chain, one.name) for one in fields(Chain)},
        }
        for index, chain in enumerate(chains_of(rollout.turns))
    ]


class _Rows(Writer):
    def _rows(self, rollout: ExportedRollout) -> list[dict[str, Any]]:
        if rollout.record.evaluation is not None:
            self.left_out[HELD_OUT] += 1
            return []
        rows = rows_of(rollout)
        if rows and rollout.told_secret:
            self.left_out[SECRETS] += 1
            return []
        self.left_out[NO_ROWS] += not rows
        return rows


class JsonlWriter(_Rows):
    """Writes rows as JSON lines."""

    def __init__(self, folder: Path, runs: Sequence[ExportedRun]) -> None:
        super().__init__(folder, runs)
        self._file = (folder / JSONL).open("wb")

    def add(self, rollout: ExportedRollout) -> int:
        rows = self._rows(rollout)
        option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
        lines = [orjson.dumps(row, option=option) for row in rows]
        self._file.writelines(lines)
        return len(rows)

    def close(self) -> None:
        self._file.close()

    def abort(self) -> None:
        self._file.close()


class ParquetWriter(_Rows):
    """Writes rows as Parquet."""

    def __init__(self, folder: Path, runs: Sequence[ExportedRun]) -> None:
        super().__init__(folder, runs)
        import pyarrow as pa
        import pyarrow.parquet as pq

        from swe_core.hub.rows import CHAIN

        self._schema = pa.schema(
            [
                *(
                    (name, pa.string())
                    for name in ("run", "rollout_id", "task_id")
                ),
                ("attempt", pa.int32()),
                ("group", pa.string()),
                ("row", pa.int32()),
                *((name, pa.string()) for name in ("agent", "model", "outcome")),
                ("reward", pa.float64()),
                ("advantage", pa.float64()),
                *CHAIN,
            ]
        )  # fmt: skip
        self._table = pa.Table
        self._file = pq.ParquetWriter(folder / PARQUET, self._schema, compression="zstd")
        self._concat = pa.concat_tables
        self._waiting: list[Any] = []
        self._ids = 0

    def add(self, rollout: ExportedRollout) -> int:
        rows = self._rows(rollout)
        if rows:
            self._waiting.append(self._table.from_pylist(rows, self._schema))  # fails here, for this rollout
        self._ids += sum(len(row["input_ids"]) for row in rows)
        if self._ids >= _BATCH:
            self._flush()
        return len(rows)

    def close(self) -> None:
        self._flush()
        self._file.close()

    def abort(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        if self._waiting:
            self._file.write_table(self._concat(self._waiting).combine_chunks())
        self._waiting, self._ids = [], 0
