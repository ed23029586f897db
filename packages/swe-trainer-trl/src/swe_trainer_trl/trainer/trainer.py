"""Trainer: TRL's AsyncGRPOTrainer, which also records what it has trained, so that a run can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from safetensors import SafetensorError
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from swe_core.errors import SweError, sentence
from swe_trainer_trl.compat import AsyncGRPOTrainer
from swe_trainer_trl.journal.checkpoints import checkpoints
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.normalization import Normalize, weighted
from swe_trainer_trl.server.health import not_left_paused, watched
from swe_trainer_trl.server.recovery import ServerRecovery
from swe_trainer_trl.trainer.row_records import RowRecords
from swe_trainer_trl.trainer.worker import TRLRolloutWorker

_EPOCHS_OF_TRL = "_EpochStopCallback"
"""TRL's callback that ends the training. It counts a group when its first row is fetched, a batch before that
row is trained, and starts at 0 after a resume. The journal counts correctly, so the callback is removed."""


class Trainer(AsyncGRPOTrainer):  # type: ignore[misc]  # TRL is not typed
    """TRL's trainer with `TRLRolloutWorker`, in one process.

    Every optimizer step marks its rows in the journal. The trainer trains whole rows in the order in which it
    gets them, so the number of ids in the loss of a step identifies the rows. `normalize` decides the weight
    of each id, not the composition of TRL's micro-batches. `trained.jsonl` gets the values of each row.

    Args:
        worker: Supplies the rows.
        journal: The journal of the run.
        metrics: The file to which logs are appended. Its directory is that of the run.
        groups: Number of groups, trained or skipped, after which training ends; None if `max_steps` ends it.
        normalize: What has equal weight in a step: each rollout, or each trained id.
        guard: Recovers the server when it dies; None without recovery.
        **others: Arguments of TRL's trainer.
    """

    def __init__(
        self,
        *,
        worker: TRLRolloutWorker,
        journal: Journal,
        metrics: Path,
        groups: int | None,
        normalize: Normalize = "rollout",
        guard: ServerRecovery | None = None,
        **others: Any,
    ) -> None:
        super().__init__(rollout_worker=worker, **others)
        self._worker = worker
        self._normalize: Normalize = normalize
        worker.rollout_buffer.shared = normalize == "rollout"
        self._guard = guard
        self._deaths = 0
        self._sent_at: int | None = None
        worker.idle = self._send_again
        self._journal = journal
        self._rows: list[int] = []
        self._records = RowRecords(metrics.parent, self._row_of)
        for callback in list(self.callback_handler.callbacks):
            if type(callback).__name__ == _EPOCHS_OF_TRL:
                self.remove_callback(callback)
        self.add_callback(_JournalCallback(journal, self._take_rows, metrics, groups, self._records))
        self.model_version = worker.version  # a resumed run continues the count: versions are unique

    def get_train_dataloader(self) -> Any:
        """See TRL. Its micro-batches name their rows."""
        loader = super().get_train_dataloader()
        self._records.mark(loader)
        return loader

    def get_batch_samples(self, *arguments: Any) -> Any:
        """See transformers. The batches are those of one step, so the weights of its ids are known here."""
        batches, items = super().get_batch_samples(*arguments)
        ids = [float(batch["global_n_tokens"][0]) for batch in batches]
        step = weighted(self._normalize, self._worker.rollout_buffer.handed(round(sum(ids))), ids)
        for batch, scale in zip(batches, step.scales, strict=True):
            batch["advantages"] *= scale
        self._records.weights = step.id_weights
        metrics, weights = self._metrics["train"], step.weights.values()
        metrics["batch/rollouts_per_step"].append(float(len(weights)))
        metrics["batch/rollout_weight_min"].append(min(weights))
        metrics["batch/rollout_weight_max"].append(max(weights))
        return batches, items

    def compute_loss(self, model: Any, inputs: dict[str, Any], *others: Any, **more: Any) -> Any:
        """See TRL. Also record the log-probabilities that it computes."""
        low, high = 1 - self.epsilon_low, 1 + self.epsilon_high
        with self._records.watching(model, inputs, low, high):
            return super().compute_loss(model, inputs, *others, **more)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        """See TRL. Also record which rows were trained."""
        tokens = round(float(inputs["global_n_tokens"][0]))
        loss = super().training_step(model, inputs, num_items_in_batch)
        items = self._worker.rollout_buffer.trained(tokens)
        self._rows += [item.row_id for item in items]
        self._records.trained(items, self.model_version)
        return loss

    def _sync_weight(self) -> None:
        """See TRL. If the server dies during the sync, its successor gets the weights. After any other error,
        the server is not left paused.

        The journal gets the new version before the server does: vLLM accepts an adapter's name only once, so
        after a kill in between the next sync must use another name.
        """
        step = self.state.global_step
        again = self._sent_at in (None, step)  # the first weights are those of a checkpoint
        self._journal.raise_version(self.model_version + 1, step, again=again)
        if self._guard is None:
            self._send_weights()
        else:
            while not self._sent(self._guard, new=not again):
                pass
        self._sent_at = step

    def _sent(self, guard: ServerRecovery, *, new: bool) -> bool:
        """Send the weights. Returns whether the server lived on meanwhile."""
        deaths = guard.wait()
        try:
            if deaths != self._deaths and self.weight_transfer is not None:
                self.weight_transfer.init_weight_transfer()  # its state was lost with the server
            self._deaths = deaths
            self._send_weights()
        except Exception as error:  # TRL raises whatever its HTTP client does
            if not guard.explains(error):
                raise
            return False
        guard.has_weights(deaths, new=new)
        return True

    def _send_weights(self) -> None:
        url = self.args.vllm_server_base_url
        with not_left_paused(url), watched(url):
            super()._sync_weight()

    def _send_again(self) -> None:
        """Send the weights to a server that was restarted."""
        if self._guard is not None and self._guard.needs_weights:
            self._sync_weight()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """See transformers. A full disk becomes one sentence."""
        with saving(Path(self.args.output_dir)):
            super()._save_checkpoint(model, trial)

    def end_progress(self) -> None:
        """End the line of the progress bar, which a failed training leaves open."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback) and callback.training_bar is not None:
                callback.training_bar.close()

    def _row_of(self, input_ids: object) -> int:
        return self._worker.rollout_buffer.row_of(input_ids)

    def _take_rows(self) -> list[int]:
        rows, self._rows = self._rows, []
        return rows


@contextmanager
def saving(directory: Path) -> Iterator[None]:
    """Translate errors of the block, which writes the model, into one sentence.

    Raises:
        SweError: The model cannot be written.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # torch raises RuntimeError on a full disk
        raise SweError(
            f"the model cannot be written to {str(directory)!r} ({sentence(error)}): make room, then resume "
            "with --resume"
        ) from error


class _JournalCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that records which rows were trained at which step, and the logged metrics."""

    def __init__(
        self,
        journal: Journal,
        rows: Callable[[], list[int]],
        metrics: Path,
        groups: int | None,
        records: RowRecords,
    ) -> None:
        self._journal = journal
        self._rows = rows
        self._metrics = metrics
        self._groups = groups
        self._records = records

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mark the rows of the step as trained. A checkpoint of the step is saved after this call."""
        self._journal.mark_trained(self._rows(), state.global_step)
        self._records.write(state.global_step)
        if self._groups is not None and self._journal.groups_done() >= self._groups:
            control.should_training_stop = True
            control.should_save = args.save_strategy != SaveStrategy.NO

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove the ids of rows that were trained by the step of the oldest kept checkpoint."""
        self._journal.forget(min(checkpoints(Path(args.output_dir)), default=(0, None))[0])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append the logged metrics to the file."""
        values = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        entry = {"step": state.global_step, "time": datetime.now(UTC), "values": values}
        try:
            with self._metrics.open("ab") as file:
                # TRL 1.11 to 1.14 log some metrics as numpy.float64, which is a float
                file.write(orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
        except OSError as error:
            raise SweError(
                f"cannot write {str(self._metrics)!r}: {error.strerror or error}; make room, then resume "
                "with --resume"
            ) from error
