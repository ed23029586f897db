"""vocab.json.gz: written once per run by an engine that owns its tokens, and never the end of a run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from swe_core.api.engine import TokenTable
from swe_core.rollout.recording import RecordingEngine
from swe_core.rollout.training_records import VOCABULARY_FILE, read_vocabulary
from swe_core.run.vocabulary import keep_vocabulary
from swe_core.system.redaction import Redactor

TABLE = TokenTable("org/model", [b"a", b"\xff", None, "ä".encode(), b"<|end|>"], {4: "<|end|>"})


def engine(table: Any) -> Any:
    """An engine with a vocabulary, or with an error in its place."""
    return Mock(**{"vocabulary.side_effect": [table]})


def test_vocabulary_is_written_once(tmp_path: Path) -> None:
    tokens = engine(TABLE)
    anyio.run(keep_vocabulary, tokens, tmp_path)
    anyio.run(keep_vocabulary, tokens, tmp_path)
    assert tokens.vocabulary.call_count == 1
    assert [path.name for path in tmp_path.iterdir()] == [VOCABULARY_FILE]
    found = read_vocabulary(tmp_path)
    assert found is not None
    assert (found.tokenizer, found.special) == ("org/model", {4: "<|end|>"})
    assert [one and one.encode("latin-1") for one in found.tokens] == list(TABLE.tokens)


def test_vocabulary_is_that_of_the_engine_or_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    anyio.run(keep_vocabulary, engine(None), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert caplog.records == []
    recorded = RecordingEngine(engine(TABLE), tmp_path / "recording.jsonl", Redactor())
    anyio.run(keep_vocabulary, recorded, tmp_path)
    assert read_vocabulary(tmp_path) is not None


@pytest.mark.parametrize(
    ("table", "folder"),
    [(RuntimeError("no tokenizer"), ""), (TokenTable("t", ["text"], {}), ""), (TABLE, "missing")],  # type: ignore[list-item]  # wrong on purpose
)
def test_failure_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: Any, folder: str
) -> None:
    with caplog.at_level(logging.WARNING):
        anyio.run(keep_vocabulary, engine(table), tmp_path / folder)
    assert list(tmp_path.iterdir()) == []
    (record,) = caplog.records
    assert record.getMessage().startswith("vocab.json.gz is not written (")
