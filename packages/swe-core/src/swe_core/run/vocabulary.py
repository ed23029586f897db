"""keep_vocabulary: the tokens of the engine's tokenizer, once in each run directory."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio.to_thread

from swe_core.api.engine import Engine
from swe_core.errors import sentence
from swe_core.rollout.training_records import VOCABULARY_FILE, write_vocabulary

logger = logging.getLogger(__name__)


async def keep_vocabulary(engine: Engine, run: Path) -> None:
    """Write `vocab.json.gz` into the run directory, unless it is there or the engine owns no tokens.

    A failure is a warning: no rollout needs the file.
    """
    if (run / VOCABULARY_FILE).exists():
        return

    def write() -> None:
        table = engine.vocabulary()
        if table is not None:
            write_vocabulary(run, table)

    try:
        await anyio.to_thread.run_sync(write, abandon_on_cancel=True)
    except Exception as error:  # the disk may be full, and a plugin's engine may raise or return anything
        logger.warning(
            "%s is not written (%s), so readers of this run show token ids without their text",
            VOCABULARY_FILE,
            sentence(error),
        )
