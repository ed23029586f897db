"""Trainer: TRL's AsyncGRPOTrainer, which also keeps what it has trained, so that a run can be resumed."""

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
from swe_trainer_trl.trainer.worker import TRLRolloutWorker

_EPOCHS_OF_TRL = "_EpochStopCallback"
"""It counts a group when its first row is fetched, a batch before that is trained, and from 0 again after a
resume; the journal knows better."""


class Trainer(AsyncGRPOTrainer):  # type: ignore[misc]  # TRL is not typed
    """TRL's trainer with our worker, for one process.

    Every optimizer step marks its rows in the journal. The trainer trains the rows that it is given in their
    order and whole, so the number of ids in the loss of a step says which they were. How much each of them
    counts is as `normalize` says, not as TRL's micro-batches fall.

    Args:
        metrics: The file that logs are appended to.
        groups: How many groups make the training, trained or skipped; None where `max_steps` does.
        normalize: What counts alike in a step: each rollout, or each trained id.
        guard: Watches the server, so that its death ends nothing; None where nobody does.
        others: What TRL's trainer takes.
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
        for callback in list(self.callback_handler.callbacks):
            if type(callback).__name__ == _EPOCHS_OF_TRL:
                self.remove_callback(callback)
        self.add_callback(_Keeper(journal, self._take_rows, metrics, groups))
        self.model_version = worker.version  # versions count on over a resume: no two policies share one

    def get_batch_samples(self, *arguments: Any) -> Any:
        """See transformers. These are the micro-batches of one step, so that now it is known how much each of
        their ids counts."""
        batches, items = super().get_batch_samples(*arguments)
        ids = [float(batch["global_n_tokens"][0]) for batch in batches]
        step = weighted(self._normalize, self._worker.rollout_buffer.handed(round(sum(ids))), ids)
        for batch, scale in zip(batches, step.scales, strict=True):
            batch["advantages"] *= scale
        metrics, weights = self._metrics["train"], step.weights.values()
        metrics["batch/rollouts_per_step"].append(float(len(weights)))
        metrics["batch/rollout_weight_min"].append(min(weights))
        metrics["batch/rollout_weight_max"].append(max(weights))
        return batches, items

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        """See TRL; afterwards it is known which rows were in it."""
        tokens = round(float(inputs["global_n_tokens"][0]))
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._rows += self._worker.rollout_buffer.trained(tokens)
        return loss

    def _sync_weight(self) -> None:
        """See TRL; where the server dies meanwhile, the next one gets the weights, and one that lives is not
        left paused.

        The new version is kept before the server knows of it: vLLM takes an adapter's name once, so after a
        kill in between another name must follow.
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
                self.weight_transfer.init_weight_transfer()  # what it had made went with the server
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
        """Give the weights to a server that has none, because it was started again."""
        if self._guard is not None and self._guard.needs_weights:
            self._sync_weight()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """See transformers; a full disk is told as such."""
        with saving(Path(self.args.output_dir)):
            super()._save_checkpoint(model, trial)

    def end_progress(self) -> None:
        """End the line of the progress bar, which a training that fails leaves open."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback) and callback.training_bar is not None:
                callback.training_bar.close()

    def _take_rows(self) -> list[int]:
        rows, self._rows = self._rows, []
        return rows


@contextmanager
def saving(directory: Path) -> Iterator[None]:
    """One sentence for what keeps the model from being written.

    Raises:
        SweError: It cannot be.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # torch makes the last one of a full disk
        raise SweError(
            f"the model cannot be written to {str(directory)!r} ({sentence(error)}): make room, then --resume"
        ) from error


class _Keeper(TrainerCallback):  # type: ignore[misc]  # nor is transformers here
    """Keeps what must outlive the trainer: which rows were trained at which step, and what was logged."""

    def __init__(
        self, journal: Journal, rows: Callable[[], list[int]], metrics: Path, groups: int | None
    ) -> None:
        self._journal = journal
        self._rows = rows
        self._metrics = metrics
        self._groups = groups

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The step counts, and its checkpoint, if there is one, comes after this."""
        self._journal.mark_trained(self._rows(), state.global_step)
        if self._groups is not None and self._journal.groups_done() >= self._groups:
            control.should_training_stop = True
            control.should_save = args.save_strategy != SaveStrategy.NO

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """What was trained before the oldest checkpoint that is kept is not needed any more."""
        self._journal.forget(min(checkpoints(Path(args.output_dir)), default=(0, None))[0])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append what is logged."""
        values = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        entry = {"step": state.global_step, "time": datetime.now(UTC), "values": values}
        try:
            with self._metrics.open("ab") as file:
                # numpy.float64 is a float, and what TRL 1.11 to 1.14 log of some metrics
                file.write(orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
        except OSError as error:
            raise SweError(
                f"cannot write {str(self._metrics)!r}: {error.strerror or error}; make room, then --resume it"
            ) from error
