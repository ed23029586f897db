"""Ends the trainer's data: after the last micro-batch that a step needs, or after the last row.

TRL's data never ends. Its planner of micro-batches drops the rows that do not fill one, and accelerate
fetches a micro-batch ahead, so that the last step of a training would wait for rows that no step trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from swe_trainer_trl import compat
from swe_trainer_trl.trainer.row_queue import RowsEnded


class EndingBatches(IterableDataset):  # type: ignore[misc]  # torch is not typed here
    """The micro-batches of TRL's planner, of which the last one has the rows that are left.

    Attributes:
        empty: Whether the rows ended before the first micro-batch.

    Args:
        planner: TRL's `FixedCountBatcher` or `TokenBudgetBatcher`; before TRL 1.13 the source of rows, which
            torch's loader cuts into micro-batches.
        most: Returns the number of micro-batches that are needed.
        left_over: Called with the last rows if they are fewer than the processes, so that none trains them.
    """

    def __init__(
        self, planner: Any, most: Callable[[], int], left_over: Callable[[Sequence[Any]], None]
    ) -> None:
        self.empty = False
        self._planner = planner
        self._most = most
        self._left_over = left_over

    def __iter__(self) -> Iterator[Any]:
        most, count = self._most(), 0
        for batch in self._batches():
            count += 1
            yield batch
            if count >= most:
                return
        self.empty = not count

    def _batches(self) -> Iterator[Any]:
        planner = self._planner
        if not hasattr(planner, "dataset"):
            yield from _until_ended(planner)
            return
        source, left = planner.dataset, dict[int, Any]()

        def noted() -> Iterator[Any]:
            for row in _until_ended(source):
                left[id(row)] = row
                yield row

        planner.dataset = noted()
        try:
            for batch in planner:
                for of_process in batch:
                    for row in getattr(of_process, "samples", of_process):  # a list before TRL 1.16
                        del left[id(row)]
                yield batch
        finally:
            planner.dataset = source
        rows = list(left.values())
        if len(rows) >= planner.num_processes:  # each process needs a row
            yield _as_planned(planner, rows) or next(
                iter(compat.trainer_module.FixedCountBatcher(rows, planner.num_processes, len(rows)))
            )
        elif rows:
            self._left_over(rows)


def _as_planned(planner: Any, rows: Sequence[Any]) -> Any:
    """Return the micro-batch that a planner with a token budget has begun; None if a process has no row.

    The fixed planner does not keep the budget.
    """
    if not (hasattr(planner, "_place") and hasattr(compat.trainer_module, "TreeRow")):  # since TRL 1.16
        return None
    parts = [compat.trainer_module.TreeRow() for _ in range(planner.num_processes)]
    for row in rows:
        placed = planner._place(parts, row)
        if placed is None:
            return None
        placed.add(row)
    return parts if all(part.samples for part in parts) else None


def ending(
    loader: Any, accelerator: Any, most: Callable[[], int], left_over: Callable[[Sequence[Any]], None]
) -> tuple[Any, EndingBatches]:
    """Return TRL's data loader with `EndingBatches`, and these. Call it in the main process.

    Args:
        most, left_over: See `EndingBatches`.
    """
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps torch's
    batches = EndingBatches(inner.dataset, most, left_over)
    ended = DataLoader(batches, batch_size=inner.batch_size, collate_fn=inner.collate_fn, num_workers=0)
    return accelerator.prepare(ended), batches


def _until_ended(rows: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except RowsEnded:
        return
