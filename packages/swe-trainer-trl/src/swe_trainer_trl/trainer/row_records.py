"""RowRecords: what the trainer computed for each row, in `trained.jsonl` (docs/internals/run-directory.md).

TRL's loss has the log-probability of each trained id, so they are read from the output of its own forward
pass: no second pass, and nothing that the gradient depends on. TRL packs rows in another order than it gets
them. Therefore each micro-batch carries the ids of its rows through TRL's data loader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from swe_core.errors import sentence
from swe_core.rollout.training_records import TRAINED_FILE, TrainedRow, append_lines
from swe_trainer_trl.trainer.row_queue import Item

logger = logging.getLogger(__name__)

_ROWS = "swe_rows"
"""Key of a micro-batch: int64 [processes, rows, 2], the journal's id and the trained ids of each row in the
order of TRL's packing, filled up with -1."""


Clipped = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]
"""See `swe_trainer_trl.trainer.losses.Loss.clipped`."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a forward pass gave for the M trained ids of a row.

    Args:
        old: The sampler's log-probabilities that TRL used, float32 [M].
        logprobs: The trainer's, float32 [M].
        clipped: Ids whose ratio the loss clipped; None if the loss does not say.
    """

    old: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    clipped: int | None


class RowRecords:
    """Collects what the steps compute, and appends it to `trained.jsonl`.

    No failure in here ends or changes the training. The first one is logged, and the lines then have null
    for what is not known.

    Attributes:
        weights: Rollout id → `TrainedRow.weight`, of the step that is trained now.

    Args:
        run: The run directory.
        row_of: Returns the journal's id of the row with an array of ids.
    """

    def __init__(self, run: Path, row_of: Callable[[object], int]) -> None:
        self.weights: Mapping[str, float] = {}
        self._file = run / TRAINED_FILE
        self._row_of = row_of
        self._seen: dict[int, Seen] = {}
        self._pending: list[tuple[Item, float, int]] = []
        self._failed = False

    def mark(self, loader: Any) -> None:
        """Let TRL's data loader name the rows of each micro-batch."""
        with self._apart():
            inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps torch's
            collate = inner.collate_fn

            def named(examples: list[Any]) -> Any:
                batch = collate(examples)
                with self._apart():
                    batch[_ROWS] = self._rows_of(examples[0])
                return batch

            inner.collate_fn = named

    @contextmanager
    def watching(self, model: torch.nn.Module, inputs: Mapping[str, Any], clipped: Clipped) -> Iterator[None]:
        """Read the log-probabilities of a micro-batch while TRL computes its loss.

        Args:
            model: What TRL calls.
            inputs: The micro-batch.
            clipped: Says which ids the loss clips.
        """
        found: list[torch.Tensor] = []

        def after(module: torch.nn.Module, given: Any, output: Any) -> None:
            with self._apart():
                found.append(output["log_probs"].detach())

        hook = model.register_forward_hook(after)
        try:
            yield
        finally:
            hook.remove()
        with self._apart(), torch.no_grad():
            if len(found) != 1:
                raise ValueError(f"TRL's loss takes {len(found)} forward passes, expected one")
            self._seen |= _seen_in(inputs, found[0].flatten(), clipped)

    def trained(self, items: Sequence[Item], version: int) -> None:
        """Keep the rows that a micro-batch has trained.

        Args:
            version: Newest policy version.
        """
        with self._apart():
            self._pending += [(item, self.weights[item.part.rollout_id], version) for item in items]

    def take_seen(self) -> dict[int, Seen]:
        """Return, and forget, what the forward passes of a step gave for the rows of this process."""
        seen, self._seen = self._seen, {}
        return seen

    def write(self, step: int, seen: Mapping[int, Seen]) -> None:
        """Append the rows of a finished step.

        Args:
            seen: What the forward passes of all processes gave, by the journal's id of the row.
        """
        pending, self._pending = self._pending, []
        with self._apart():
            lines = []
            for item, weight, version in pending:
                found: Seen | None = None
                with self._apart():
                    found = _checked(seen.get(item.row_id), item)
                row = TrainedRow(
                    step=step,
                    version=version,
                    rollout_id=item.part.rollout_id,
                    row=item.chain,
                    cause=item.cause,
                    advantage=item.advantage,
                    weight=weight,
                    tokens=item.part.tokens,
                    logprobs=None,
                    clipped=None if found is None else found.clipped,
                )
                # The array is written with float32's digits, a third of those of Python's floats.
                logprobs = None if found is None else found.logprobs
                line = {**row.model_dump(), "logprobs": logprobs}
                lines.append(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY))
            append_lines(self._file, lines)

    def _rows_of(self, ranks: Sequence[Any]) -> torch.Tensor:
        """Return the value of `_ROWS` for the samples of each process."""
        samples = [getattr(rank, "samples", rank) for rank in ranks]  # a list before TRL 1.16
        rows = torch.full((len(samples), max(map(len, samples)), 2), -1)
        for rank, of_rank in enumerate(samples):
            for place, sample in enumerate(of_rank):
                tokens = int(np.count_nonzero(sample["completion_mask"]))
                rows[rank, place] = torch.tensor([self._row_of(sample["input_ids"]), tokens])
        return rows

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Keep failures of the block from the training."""
        try:
            yield
        except Exception as error:  # TRL may change any of it, and the disk may be full
            if not self._failed:
                logger.warning("%s is incomplete from here on: %s", TRAINED_FILE, sentence(error))
            self._failed = True


def _checked(seen: Seen | None, item: Item) -> Seen:
    """Return what was seen of a row.

    Raises:
        LookupError | ValueError: Nothing was seen, or it belongs to another row.
    """
    if seen is None:
        raise LookupError("TRL's loss gave no log-probabilities for a row")
    if not np.array_equal(seen.old, item.sample.old_log_probs[np.asarray(item.sample.completion_mask) != 0]):
        raise ValueError("TRL packs the rows of a micro-batch in an unknown way")
    return seen


def _seen_in(inputs: Mapping[str, Any], logprobs: torch.Tensor, clipped: Clipped) -> dict[int, Seen]:
    """Return what a forward pass gave for each row of this process's part of a micro-batch, by its id.

    Args:
        logprobs: The output, one value a position.
    """
    if "token_index" in inputs:  # since TRL 1.16: the position that predicts each trained id
        chosen = inputs["token_index"] >= 0
        logprobs = logprobs[inputs["token_index"][chosen]]
        old, advantages = inputs["old_log_probs"][chosen], inputs["advantages"][chosen]
    else:  # all ids of the rows, one after the other
        real = inputs["attention_mask"].bool()
        trained = inputs["completion_mask"][real][1:] > 0
        logprobs = logprobs[trained]
        old, advantages = (inputs[name][real][1:][trained] for name in ("old_log_probs", "advantages"))
    rows = [(row, tokens) for row, tokens in inputs[_ROWS][0].tolist() if row >= 0]
    sizes = [tokens for _, tokens in rows]
    of_id = torch.repeat_interleave(torch.tensor(sizes)).to(logprobs.device)
    cut = clipped(logprobs - old, advantages, of_id)
    counts = [None] * len(rows) if cut is None else [int(one.sum()) for one in cut.cpu().split(sizes)]
    parts = (one.cpu().split(sizes) for one in (old.float(), logprobs.float()))
    return {
        row: Seen(before.numpy(), after.numpy(), count)
        for (row, _), before, after, count in zip(rows, *parts, counts, strict=True)
    }
