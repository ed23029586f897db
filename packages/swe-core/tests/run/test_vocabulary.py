"""vocab.json.gz: written once per run by an engine that owns its tokens, and never the end of a run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest

from swe_core.api.engine import Engine, TokenTable
from swe_core.rollout.recording import RecordingEngine
from swe_core.rollout.training_records import VOCABULARY_FILE, read_vocabulary
from swe_core.run.vocabulary import keep_vocabulary
from swe_core.system.redaction import Redactor

TABLE = TokenTable("org/model", [b"a", b"\xff", None, "ä".encode(), b"<|end|>"], {4: "<|end|>"})


class Tokens(Engine):
    """An engine with a vocabulary."""

    model = "tokens"

    def __init__(self, table: Any) -> None:
        self.table = table
        self.asked = 0

    def vocabulary(self) -> TokenTable | None:
        self.asked += 1
        if isinstance(self.table, Exception):
            raise self.table
        table: TokenTable | None = self.table
        return table

    async def complete(self, *_: Any) -> Any:
        raise AssertionError("no call is made here")


def test_vocabulary_is_written_once(tmp_path: Path) -> None:
    engine = Tokens(TABLE)
    anyio.run(keep_vocabulary, engine, tmp_path)
    anyio.run(keep_vocabulary, engine, tmp_path)
    assert engine.asked == 1
    assert [path.name for path in tmp_path.iterdir()] == [VOCABULARY_FILE]
    found = read_vocabulary(tmp_path)
    assert found is not None
    assert (found.tokenizer, found.special) == ("org/model", {4: "<|end|>"})
    assert [one and one.encode("latin-1") for one in found.tokens] == list(TABLE.tokens)


def test_vocabulary_is_that_of_the_engine_or_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    anyio.run(keep_vocabulary, Tokens(None), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert caplog.records == []
    recorded = RecordingEngine(Tokens(TABLE), tmp_path / "recording.jsonl", Redactor())
    anyio.run(keep_vocabulary, recorded, tmp_path)
    assert read_vocabulary(tmp_path) is not None


@pytest.mark.parametrize(
    ("table", "folder"),
    [(RuntimeError("no tokenizer"), ""), (TokenTable("t", ["text"], {}), ""), (TABLE, "missing")],  # type: ignore[list-item]
)
def test_failure_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: Any, folder: str
) -> None:
    with caplog.at_level(logging.WARNING):
        anyio.run(keep_vocabulary, Tokens(table), tmp_path / folder)
    assert list(tmp_path.iterdir()) == []
    (record,) = caplog.records
    assert record.getMessage().startswith("vocab.json.gz is not written (")
