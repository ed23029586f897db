"""What readers take from vocab.json.gz, trained.jsonl and groups.jsonl, of damaged files and resumed runs."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from swe_core.api.engine import TokenTable
from swe_core.rollout import training_records
from swe_core.rollout.training_records import (
    EVALUATIONS_FILE,
    GROUPS_FILE,
    TRAINED_FILE,
    VOCABULARY_FILE,
    ClosedGroup,
    Evaluation,
    GroupMember,
    TrainedRow,
    append_lines,
    read_evaluations,
    read_groups,
    read_trained,
    read_vocabulary,
    write_vocabulary,
)


def row(step: int, rollout: str, version: int | None = None, number: int = 0) -> TrainedRow:
    fixed: Any = {"advantage": 0.5, "weight": 1.0, "tokens": 2, "logprobs": [-0.25, None], "clipped": 0}
    return TrainedRow(step=step, version=version or step, rollout_id=rollout, row=number, **fixed)


def group(number: int, skipped: str | None = None) -> ClosedGroup:
    member = GroupMember(rollout_id=f"t-g{number}-0", reward=1.0, advantage=None)
    return ClosedGroup(group=number, task_id="t", members=(member,), skipped=skipped)


def write(file: Path, *records: TrainedRow | ClosedGroup | Evaluation) -> None:
    append_lines(file, [record.model_dump_json().encode() for record in records])


def seen(rows: list[TrainedRow]) -> list[tuple[int, str, int]]:
    return [(one.step, one.rollout_id, one.row) for one in rows]


def test_vocabulary_comes_back(tmp_path: Path) -> None:
    every = [bytes([byte]) for byte in range(256)]
    write_vocabulary(tmp_path, TokenTable("org/model", [*every, None], {256: "<|end|>"}))
    found = read_vocabulary(tmp_path)
    assert [None if one is None else one.encode("latin-1") for one in found.tokens] == [*every, None]
    assert found.special == {256: "<|end|>"}


def test_damaged_vocabulary_is_none(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path) is None
    write_vocabulary(tmp_path, TokenTable("t", [b"some", b"tokens"] * 99, {}))
    whole = (tmp_path / VOCABULARY_FILE).read_bytes()
    cut = [whole[:length] for length in range(len(whole))]
    changed = [whole[:n] + bytes([whole[n] ^ 0x55]) + whole[n + 1 :] for n in range(10, len(whole))]
    for damaged in cut + changed:
        (tmp_path / VOCABULARY_FILE).write_bytes(damaged)
        assert read_vocabulary(tmp_path) is None
    (tmp_path / VOCABULARY_FILE).unlink()
    (tmp_path / VOCABULARY_FILE).mkdir()
    assert read_vocabulary(tmp_path) is None


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    rows = [row(1, "a"), row(1, "a", number=2), row(1, "b"), row(2, "b", number=1)]
    write(tmp_path / TRAINED_FILE, *rows)
    assert read_trained(tmp_path) == rows
    assert read_trained(tmp_path, "b") == rows[2:]
    assert read_trained(tmp_path, "c") == []
    assert read_trained(tmp_path / "missing") == []
    assert read_groups(tmp_path) == []


def test_rows_of_lost_steps_are_left_out(tmp_path: Path) -> None:
    """Killed in step 4, resumed after step 2 under version 5, and once more after step 3. Another kill came
    after the lines of a step, before its checkpoint: no step in between goes back."""
    (other := tmp_path / "other").mkdir()
    write(other / TRAINED_FILE, row(1, "a"), row(2, "a"), row(2, "b"), row(2, "c", 3))
    assert seen(read_trained(other)) == [(1, "a", 0), (2, "c", 0)]
    file = tmp_path / TRAINED_FILE
    write(file, *(row(step, name) for step in (1, 2, 3, 4) for name in "ab"))
    write(file, row(3, "b", 5), row(3, "c", 5), row(4, "d", 6))
    assert seen(read_trained(tmp_path)) == [
        *((step, name, 0) for step in (1, 2) for name in "ab"),
        *((3, "b", 0), (3, "c", 0), (4, "d", 0)),
    ]
    assert seen(read_trained(tmp_path, "a")) == [(1, "a", 0), (2, "a", 0)]
    write(file, row(4, "a", 7))
    assert seen(read_trained(tmp_path))[-3:] == [(3, "b", 0), (3, "c", 0), (4, "a", 0)]
    assert read_trained(tmp_path, "d") == []


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / TRAINED_FILE
    write(file, row(1, "a"))
    torn = row(1, "b").model_dump_json().encode()
    with file.open("ab") as lines:
        lines.write(b"\xff\n{}\n[]\n" + torn[:-9])
    assert seen(read_trained(tmp_path)) == [(1, "a", 0)]
    write(file, row(1, "c"))  # of the next process
    assert seen(read_trained(tmp_path)) == [(1, "a", 0), (1, "c", 0)]
    assert seen(read_trained(tmp_path, "c")) == [(1, "c", 0)]


def test_rows_of_a_rollout_are_read_without_parsing_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / TRAINED_FILE, *(row(step, f"t-g{n}-0") for step in (1, 2) for n in range(50)))
    parse = Mock(wraps=training_records._parsed)
    monkeypatch.setattr(training_records, "_parsed", parse)
    assert seen(read_trained(tmp_path, "t-g7-0")) == [(1, "t-g7-0", 0), (2, "t-g7-0", 0)]
    assert parse.call_count == 2


def test_line_of_another_writer_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / TRAINED_FILE
    content = row(1, 'odd "id" \\ ä').model_dump()
    for line in (json.dumps(content), json.dumps(dict(reversed(content.items())))):
        with file.open("a") as lines:
            lines.write(line + "\n")
    write(file, row(1, 'odd "id" \\ ä'))
    assert len(read_trained(tmp_path, 'odd "id" \\ ä')) == 3
    assert read_trained(tmp_path, "odd") == []


def test_group_that_was_closed_twice_counts_once(tmp_path: Path) -> None:
    write(tmp_path / GROUPS_FILE, group(0, "no_spread"), group(1), group(0))
    with (tmp_path / GROUPS_FILE).open("ab") as lines:
        lines.write(b'{"group":2}\n{"group":3,"task_id"')
    assert read_groups(tmp_path) == [group(1), group(0)]


def test_lines_that_do_not_fit_leave_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / GROUPS_FILE
    write(file, group(0))
    before = file.read_bytes()
    wrote = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return wrote(descriptor, data[:-10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write(file, group(1))
    assert file.read_bytes() == before


def evaluation(step: int, version: int) -> Evaluation:
    fixed: Any = {"rollouts": 3, "verdicts": 2, "resolved": 1, "errors": 1, "reward": 0.5}
    fixed["finished_at"] = datetime(2026, 1, 1, tzinfo=UTC)
    return Evaluation(step=step, version=version, oldest=version, newest=version + 1, **fixed)


def test_evaluations_of_lost_weights_are_left_out(tmp_path: Path) -> None:
    assert read_evaluations(tmp_path) == []
    file = tmp_path / EVALUATIONS_FILE
    for lines, kept in (
        ([(0, 1), (10, 11), (20, 21)], [(0, 1), (10, 11), (20, 21)]),
        ([(0, 1), (20, 21), (10, 11)], [(0, 1), (10, 11), (20, 21)]),  # they overlapped
        ([(10, 11), (10, 11)], [(10, 11)]),  # a kill before the journal's entry
        ([(10, 11), (20, 21), (30, 31), (20, 36)], [(10, 11), (20, 36)]),  # resumed from step 15
        ([(20, 21), (30, 31), (30, 46), (20, 36)], [(20, 36), (30, 46)]),  # and they overlapped
    ):
        file.write_bytes(b"")
        write(file, *(evaluation(*line) for line in lines))
        append_lines(file, [b'{"step": 1}', b"{"])
        assert [(one.step, one.version) for one in read_evaluations(tmp_path)] == kept
