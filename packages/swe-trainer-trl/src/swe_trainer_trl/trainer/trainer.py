"""Trainer: TRL's AsyncGRPOTrainer, which also records what it has trained, so that a run can be resumed.

With several trainer processes, rank 0 has the worker, the journal and the records. TRL deals the rows of each
micro-batch to the processes, and averages their gradients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError
from transformers import (
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import SaveStrategy

from swe_core.errors import SweError, sentence
from swe_trainer_trl.compat import AsyncGRPOTrainer
from swe_trainer_trl.config import LossOptions
from swe_trainer_trl.console import step_line
from swe_trainer_trl.journal.checkpoints import checkpoints
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.normalization import Normalize, weighted
from swe_trainer_trl.server.health import ServerLost, not_left_paused, watched
from swe_trainer_trl.server.recovery import ServerRecovery
from swe_trainer_trl.trainer import cuda_attention
from swe_trainer_trl.trainer.deferred import Deferred
from swe_trainer_trl.trainer.end_of_rows import EndingBatches, ending
from swe_trainer_trl.trainer.evaluations import Evaluations
from swe_trainer_trl.trainer.first_policy import FirstPolicy
from swe_trainer_trl.trainer.losses import Loss, Terms, divergence, mean_of_rows
from swe_trainer_trl.trainer.micro_batches import SHARES, ForwardPass, add_shares, forward_passes
from swe_trainer_trl.trainer.row_queue import Item
from swe_trainer_trl.trainer.row_records import RowRecords
from swe_trainer_trl.trainer.worker import TRLRolloutWorker

logger = logging.getLogger(__name__)

_NO_BATCH = ("does not contain any data", "NoneType")
"""Parts of accelerate's errors in a process to which rank 0 deals no batch."""
_EPOCHS_OF_TRL = "_EpochStopCallback"
"""TRL's callback that ends the training. It counts a group when its first row is fetched, a batch before that
row is trained, and starts at 0 after a resume. The journal counts correctly, so the callback is removed."""
_PRINTERS = (PrinterCallback, ProgressCallback)
"""They print all metrics as a dictionary, and a bar that breaks into other lines."""


class Trainer(AsyncGRPOTrainer):  # type: ignore[misc]  # TRL is not typed
    """TRL's trainer with `TRLRolloutWorker`.

    Every optimizer step marks its rows in the journal. The trainer trains whole rows in the order in which it
    gets them, so the number of ids in the loss of a step identifies the rows. `normalize` decides the weight
    of each id, not the composition of TRL's micro-batches. `loss` may replace TRL's loss by a variant.
    `trained.jsonl` gets the values of each row.

    Args:
        worker: Supplies the rows; None in a process other than rank 0, and then `journal` is None too.
        journal: The journal of the run.
        metrics: The file to which logs are appended. Its directory is that of the run.
        groups: Number of groups, trained or skipped, after which training ends; None if `max_steps` ends it.
        normalize: What has equal weight in a step: each rollout, or each trained id.
        loss: The loss. Other values than the defaults need TRL 1.16 or newer.
        guard: Recovers the servers when they die; None without recovery.
        compare: Raises an error if the servers of these URLs give different answers with the weights of this
            version. Called before rollouts ask a server that has new weights for the first time.
        evaluations: Evaluates the policy on held-out tasks; None without.
        **others: Arguments of TRL's trainer.
    """

    def __init__(
        self,
        *,
        worker: TRLRolloutWorker | None,
        journal: Journal | None,
        metrics: Path,
        groups: int | None,
        normalize: Normalize = "rollout",
        loss: LossOptions | None = None,
        guard: ServerRecovery | None = None,
        compare: Callable[[Sequence[str], int], None] | None = None,
        evaluations: Evaluations | None = None,
        **others: Any,
    ) -> None:
        cuda_attention.install()
        super().__init__(rollout_worker=worker, **others)
        self._dtypes = {name: weight.dtype for name, weight in self.model.named_parameters()}
        if self._by_epochs and self.args.token_budget != 0:
            # TRL limits the steps to those of full micro-batches, and a packed one may have a single row.
            self.args.max_steps *= self.args.per_device_train_batch_size
        self._worker = worker
        self._together = self.accelerator.num_processes > 1
        self._normalize: Normalize = normalize
        self._guard = guard
        self._compare = compare
        self._evaluations = evaluations
        self._changes = 0
        self._compared: int | None = None
        self._sent_at: int | None = None
        self._ending: EndingBatches | None = None
        self._fetched = 0
        self._journal = journal
        self._rows: list[int] = []
        self._rewarded: set[str] = set()
        self._records = RowRecords(metrics.parent, self._row_of)
        loss = loss or LossOptions()
        self._loss = Loss(loss, self.epsilon_low, self.epsilon_high)
        self._first = FirstPolicy(self.model, self.accelerator) if loss.beta else None
        for callback in list(self.callback_handler.callbacks):
            if type(callback).__name__ == _EPOCHS_OF_TRL or isinstance(callback, _PRINTERS):
                self.remove_callback(callback)
        if worker is not None and journal is not None:
            worker.rollout_buffer.shared = normalize == "rollout"
            worker.idle = self._send_again
            self.add_callback(_JournalCallback(journal, self._take_rows, metrics, groups))
            self.model_version = worker.version  # a resumed run continues the count: versions are unique
        self.add_callback(_RecordsCallback(self._records, self._together))
        self.add_callback(_EvaluationCallback(self._finish_evaluations))
        if self._together:
            self.add_callback(_StopCallback())
            for name in ("weight_transfer", "vllm_client"):  # TRL uses the one or the other
                if getattr(self, name) is not None:
                    setattr(self, name, Deferred(getattr(self, name), lambda: self._urls))

    def get_train_dataloader(self) -> Any:
        """See TRL. Its micro-batches name their rows, and for the KL term their weights, and they end."""
        loader = super().get_train_dataloader()
        if self._worker is not None:
            loader, self._ending = ending(loader, self.accelerator, self._needed, self._leave_over)
            self._records.mark(loader)
            if self._first is not None:
                add_shares(loader, self._worker.rollout_buffer.share_of)
        return loader

    def _leave_over(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record rows that are too few for a last step of all processes."""
        if self._journal is not None:
            self._journal.drop([self._row_of(row["input_ids"]) for row in rows], "left_over")

    @property
    def _by_epochs(self) -> bool:
        """Return whether a number of groups ends the training; the same in all processes."""
        return getattr(self, "_epoch_stop_groups", None) is not None

    def _needed(self) -> int:
        """Return the number of micro-batches to the end of the training."""
        steps = self.state.max_steps - self.state.global_step
        return int(steps * self.args.gradient_accumulation_steps)

    def train(self, *arguments: Any, **others: Any) -> Any:
        """See transformers."""
        accumulated = self.args.gradient_accumulation_steps
        try:
            return super().train(*arguments, **others)
        finally:
            self.args.gradient_accumulation_steps = accumulated

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *others: Any) -> Any:
        """See transformers. The batches are those of one step, so the weights of its ids are known here.

        The last step may have fewer batches. transformers makes a step at each multiple of
        `gradient_accumulation_steps`, so the number of all batches becomes that.
        """
        try:
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, *others)
        except (ValueError, TypeError) as error:  # accelerate has no use for data without a batch
            empty = any(text in str(error) for text in _NO_BATCH)
            if not (empty if self._ending is None else self._ending.empty):
                raise
            batches, items = [], None
        if not batches:
            self.control.should_training_stop = True
            return batches, items
        self._fetched += len(batches)
        if len(batches) < num_batches:
            self.args.gradient_accumulation_steps = self._fetched
        scales = None if self._worker is None else self._weigh(self._worker, batches)
        if self._together:
            (scales,) = broadcast_object_list([scales])
        for batch, scale in zip(batches, scales or (), strict=True):
            batch["advantages"] *= scale
            if SHARES in batch:
                batch[SHARES] *= scale
        return batches, items

    def _weigh(self, worker: TRLRolloutWorker, batches: Sequence[Any]) -> tuple[float, ...]:
        """Return the factor of the advantages of each micro-batch of a step."""
        ids = [float(batch["global_n_tokens"][0]) for batch in batches]
        step = weighted(self._normalize, worker.rollout_buffer.handed(round(sum(ids))), ids)
        self._records.weights = step.id_weights
        metrics, weights = self._metrics["train"], step.weights.values()
        metrics["batch/rollouts_per_step"].append(float(len(weights)))
        metrics["batch/rollout_weight_min"].append(min(weights))
        metrics["batch/rollout_weight_max"].append(max(weights))
        return step.scales

    def compute_loss(self, model: Any, inputs: dict[str, Any], *others: Any, **more: Any) -> Any:
        """See TRL. Also record the log-probabilities that it computes, and replace its loss by a variant."""
        with self._records.watching(model, inputs, self._loss.clipped):
            if self._loss.options.is_trls:
                return super().compute_loss(model, inputs, *others, **more)
            with forward_passes(model) as passes:
                super().compute_loss(model, inputs, *others, **more)
        return self._variant(model, inputs, *passes)

    def _variant(self, model: Any, inputs: Mapping[str, Any], passed: ForwardPass) -> torch.Tensor:
        """Return the loss of the settings, of the forward pass that TRL's loss has made."""
        chosen = inputs["token_index"] >= 0
        places, rows = inputs["token_index"][chosen], inputs["segment_id"][chosen]
        logprobs = passed.log_probs[places]
        terms = self._loss.terms(
            logprobs, inputs["old_log_probs"][chosen], inputs["advantages"][chosen], rows
        )
        loss, kl = terms.loss, None
        if self._first is not None:
            kl = divergence(logprobs, self._first.log_probs(model, passed.inputs).flatten()[places])
            options = self._loss.options
            factor = terms.ratio if options.use_bias_correction_kl else 1.0
            loss = loss + options.beta * inputs[SHARES][0][rows] * factor * kl
        self._log_terms(terms, rows, kl)
        # As TRL divides its own: gradients are averaged over processes and added up over micro-batches.
        tokens = (inputs["global_n_tokens"][0] / self.accelerator.num_processes).clamp(min=1.0)
        return loss.sum() / tokens / self.current_gradient_accumulation_steps

    def _log_terms(self, terms: Terms, rows: torch.Tensor, kl: torch.Tensor | None) -> None:
        """Log a micro-batch. The clipping that TRL logged is that of its own loss, and is replaced."""
        metrics = self._metrics["train"]
        means = {
            "clip_ratio/low_mean": terms.low,
            "clip_ratio/high_mean": terms.high,
            "clip_ratio/region_mean": terms.low | terms.high,
            "weight/mean": terms.weights,
            "weight/truncated_frac": terms.truncated,
            "kl_ref": None if kl is None else kl.detach(),
        }
        sums = {name: values.float().sum() for name, values in means.items() if values is not None}
        count = torch.full_like(terms.loss, 1.0).sum()
        *found, whole = self.accelerator.reduce(torch.stack([*sums.values(), count]), reduction="sum")
        logged = {name: (value / whole).item() for name, value in zip(sums, found, strict=True)}
        low, high = self.accelerator.gather(
            torch.stack([mean_of_rows(terms.low, rows).min(), mean_of_rows(terms.high, rows).max()])[None]
        ).unbind(1)
        logged |= {"clip_ratio/low_min": low.min().item(), "clip_ratio/high_max": high.max().item()}
        for name, value in logged.items():
            if name.startswith("clip_ratio/"):
                metrics[name].pop()
            metrics[name].append(value)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        """See TRL. Also record which rows were trained."""
        tokens = round(float(inputs["global_n_tokens"][0]))
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._worker is not None:
            items = self._worker.rollout_buffer.trained(tokens)
            self._rows += [item.row_id for item in items]
            self._measure(items)
            self._records.trained(items, self.model_version)
        return loss

    def _measure(self, items: Sequence[Item]) -> None:
        """Log rewards and staleness of the rows of a step. TRL logs those of the rows that it fetches."""
        metrics = self._metrics["train"]
        for item in items:
            metrics["batch/staleness_mean"].append(float(self.model_version - item.sample.model_version))
            reward = item.sample.metrics.get("sample/reward")
            if reward is not None and item.part.rollout_id not in self._rewarded:
                self._rewarded.add(item.part.rollout_id)
                metrics["batch/reward_mean"].append(reward)

    def _sync_weight(self) -> None:
        """See TRL. If a server dies during the sync, the others get the weights again; if it was the last,
        its successor gets them. After any other error, no server is left paused.

        The journal gets the new version before the server does: vLLM accepts an adapter's name only once, so
        after a kill in between the next sync must use another name.
        """
        if self._journal is None:
            while broadcast_object_list([None])[0]:  # rank 0 sends the weights, perhaps not at the first try
                super()._sync_weight()
            return
        step = self.state.global_step
        new = self._sent_at not in (None, step)  # the first weights are those of a checkpoint
        sent, again = False, not new
        with not_left_paused(*(self._urls if self._guard is None else self._guard.all_urls)):
            while not sent:
                self._journal.raise_version(self.model_version + 1, step, again=again)
                sent, again = self._sent(new=new), True  # a server may die after the version is announced
        if self._together:
            broadcast_object_list([False])
        self._sent_at = step
        if self._evaluations is not None:
            self._evaluations.weights_sent(step)

    def _sent(self, *, new: bool) -> bool:
        """Send the weights. Returns whether all servers that got them lived on meanwhile."""
        guard = self._guard
        if guard is None:
            self._send_weights()
            return True
        changes = guard.wait()
        try:
            if changes != self._changes and self.weight_transfer is not None:
                with watched(*self._urls):
                    self.weight_transfer.init_weight_transfer()  # its state was lost with a server
            self._changes = changes
            self._send_weights()
            if self._compare is not None and self._compared != changes:
                self._compare(guard.urls, self.model_version)
            self._compared = changes
        except Exception as error:  # TRL raises whatever its HTTP client does
            if not guard.explains(error):
                raise
            return False
        guard.has_weights(changes, new=new)
        return True

    @property
    def _urls(self) -> Sequence[str]:
        return [self.args.vllm_server_base_url] if self._guard is None else self._guard.urls

    def _streaming_iter(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See TRL. Weights have the types that TRL announced to the servers, although FSDP2 trains in float32
        (accelerate's `fsdp2_prepare_model`)."""
        for name, weight in super()._streaming_iter():
            yield name, weight.to(self._dtypes.get(name, weight.dtype))

    def _send_weights(self) -> None:
        if self._together:
            broadcast_object_list([True])
        with nullcontext() if isinstance(self.vllm_client, Deferred) else watched(*self._urls):  # in that
            super()._sync_weight()

    def _send_again(self) -> None:
        """Send the weights to a server that was restarted, while this process waits for rows.

        Raises:
            ServerLost: No server has the weights, and other processes, which wait too, have a part of them.
        """
        if self._guard is None or not self._guard.needs_weights:
            return
        if not (self.is_fsdp_enabled and self._together):
            with self._alone():
                self._sync_weight()
        elif self._guard.none_has_weights:  # else the others serve, and this one waits for the next sync
            raise ServerLost(
                "the server was restarted while the trainer waited for rows, and the weights that it lacks "
                "are sharded over processes that wait as well; resume with --resume"
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let rank 0, which has all weights, act without the other processes."""
        together, wait = self._together, self.accelerator.wait_for_everyone
        self._together, self.accelerator.wait_for_everyone = False, _nothing
        try:
            yield
        finally:
            self._together, self.accelerator.wait_for_everyone = together, wait

    def complete_evaluations(self, step: int) -> None:
        """Finish the evaluations of a training that has made its last step, `step`, in an earlier process."""
        if self._worker is None or self._evaluations is None or self._evaluations.are_complete(step):
            return
        self.state.global_step = step
        try:
            if self.weight_transfer is not None:
                self.weight_transfer.init_weight_transfer()
            self._sync_weight()
            self._worker.start()
            self._finish_evaluations()
        finally:
            self._worker.stop()
            if self.weight_transfer is not None:
                self.weight_transfer.destroy()

    def _finish_evaluations(self) -> None:
        """Send the last weights, evaluate them, and log the evaluations that have finished."""
        step = self.state.global_step
        unsent = self._evaluations is not None and self._sent_at != step  # no multiple of weight_sync_steps
        if self._together:
            (unsent,) = broadcast_object_list([unsent])
        if unsent:
            self._sync_weight()
        if self._evaluations is None:
            return
        self._evaluations.finish(step, self.args.heartbeat_stale_after_s)
        self.model.train()  # TRL logs the metrics of rollouts as those of a training
        logs = self.control.should_log
        self.log({})
        while self._evaluations.unreported:
            self.log({})
        self.control.should_log = logs  # the other processes still have it

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """See TRL. Each evaluation has a log of its own."""
        if self._evaluations is not None:
            self._evaluations.report()
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """See transformers. A full disk becomes one sentence."""
        with saving(Path(self.args.output_dir)):
            super()._save_checkpoint(model, trial)

    def _row_of(self, input_ids: object) -> int:
        if self._worker is None:
            raise LookupError("rank 0 has the rows")
        return self._worker.rollout_buffer.row_of(input_ids)

    def _take_rows(self) -> list[int]:
        rows, self._rows = self._rows, []
        self._rewarded.clear()
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


def _nothing() -> None:
    """Do nothing, in place of a meeting of the processes."""


class _RecordsCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that records what the processes computed for the rows of a step."""

    def __init__(self, records: RowRecords, together: bool) -> None:
        self._records = records
        self._together = together

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the rows of the step, in rank 0."""
        seen = [self._records.take_seen()]
        if self._together:
            seen = gather_object(seen)
        if state.is_world_process_zero:
            self._records.write(state.global_step, {row: one for part in seen for row, one in part.items()})


class _StopCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that lets all processes end, and save, where rank 0 does. It comes after all others."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the decisions of rank 0."""
        decided = [control.should_training_stop, control.should_save]
        control.should_training_stop, control.should_save = broadcast_object_list(decided)


class _JournalCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that records which rows were trained at which step, and the logged metrics."""

    def __init__(
        self,
        journal: Journal,
        rows: Callable[[], list[int]],
        metrics: Path,
        groups: int | None,
    ) -> None:
        self._journal = journal
        self._rows = rows
        self._metrics = metrics
        self._groups = groups

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mark the rows of the step as trained. A checkpoint of the step is saved after this call."""
        self._journal.mark_trained(self._rows(), state.global_step)
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
        """Append the logged metrics to the file, and log the line of a step."""
        values = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        if "loss" in values:
            steps = None if self._groups is not None else state.max_steps
            version = self._journal.version
            logger.info("%s", step_line(state.global_step, values, steps=steps, version=version))
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


class _EvaluationCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that finishes the evaluations after the last step is saved, while trackers still listen."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Finish them if the training is over."""
        if control.should_training_stop:
            self._finish()
