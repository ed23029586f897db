"""What counts in a step: each rollout once, however it is cut into rows, packed, ordered or split."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.rollout.training_records import read_trained
from swe_testing.serving.start import missing
from swe_trainer_trl.journal.groups import advantages
from swe_trainer_trl.normalization import Normalize, Part, weighted

if TYPE_CHECKING:  # they import torch and TRL, which takes seconds
    import torch

    from swe_trainer_trl.trainer.row_queue import Item
    from swe_trainer_trl.trainer.trainer import Trainer

CLOSE = 1e-4
"""Relative difference of gradients."""


@dataclass(frozen=True)
class Attempt:
    """One rollout: its ids, which of them are trained, how they were sampled, and its advantage."""

    ids: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    advantage: float

    @property
    def trained(self) -> np.ndarray:
        """The places of the trained ids."""
        return np.flatnonzero(self.mask)


def attempts() -> list[Attempt]:
    """A group of four: long and short ones, with tool replies in between, sampled by an older policy."""
    draw = np.random.default_rng(3)
    prompt = draw.integers(300, 700, 6)
    made = []
    for length, advantage in zip((60, 9, 31, 4), advantages([1.0, 0.0, 0.0, 0.3]), strict=True):
        ids = np.concatenate([prompt, draw.integers(300, 700, length)])
        mask = np.arange(len(ids)) >= len(prompt)
        mask[len(prompt) + 3 :: 7] = False
        logprobs = np.where(mask, draw.normal(-6.5, 0.4, len(ids)), 0.0)  # ratios on both sides of the clip
        made.append(Attempt(ids, mask, logprobs.astype(np.float32), float(advantage)))
    return made


def cut(attempt: Attempt, chains: int) -> list[np.ndarray]:
    """The trained places of `attempt` in `chains` rows, of which the first have one id each."""
    places = attempt.trained
    bounds = [*range(min(chains, len(places))), len(places)]
    return [places[begin:end] for begin, end in pairwise(bounds)]


def rows_of(number: int, attempt: Attempt, chains: int) -> list[Item]:
    """`attempt` as rows: each has all ids up to its last trained one, and trains its share of them."""
    from swe_trainer_trl.compat import make_sample
    from swe_trainer_trl.trainer.row_queue import Item

    items = []
    for places in cut(attempt, chains):
        mask = np.zeros(places[-1] + 1, np.int64)
        mask[places] = 1
        sample = make_sample(
            prompt=[],
            completion=[],
            input_ids=attempt.ids[: len(mask)],
            completion_mask=mask,
            old_log_probs=attempt.logprobs[: len(mask)] * mask.astype(np.float32),
            advantage=attempt.advantage,
            model_version=1,
            group_id=0,
            metrics={},
            enqueued_at=0.0,
        )
        part = Part(f"r{number}", len(places), len(attempt.trained))
        # The journal's number of a row is unique.
        items.append(
            Item(100 * number + len(items), 0, part, 1, sample, len(items), "start", attempt.advantage)
        )
    return items


class Worker:
    """A worker with a buffer, and nothing in it yet."""

    def __init__(self) -> None:
        from swe_trainer_trl.trainer.row_queue import RowBuffer

        self.version = 1
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.rollout_buffer = RowBuffer(0, lambda: 1, 9, lambda item: None, lambda group: None)

    def check_health(self, stale_after_s: float) -> None:
        raise AssertionError("more rows were asked for than there are")


@pytest.fixture(scope="module")
def trainer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with training(tiny_model, tmp_path_factory.mktemp("trainer")) as made:
        yield made


@contextmanager
def training(model: Path, home: Path, *, bf16: bool = False, **options: Any) -> Iterator[Trainer]:
    """A trainer that has no server."""
    from datasets import Dataset

    from swe_trainer_trl import compat
    from swe_trainer_trl.journal.journal import Journal
    from swe_trainer_trl.trainer import cpu_attention
    from swe_trainer_trl.trainer.trainer import Trainer

    cpu_attention.install()
    arguments = compat.AsyncGRPOConfig(
        output_dir=str(home),
        max_steps=1,
        bf16=bf16,
        use_cpu=True,
        report_to="none",
        epsilon=0.2,
        epsilon_high=0.28,
        token_budget=0,
        vllm_server_base_url="http://127.0.0.1:9",
    )
    journal = Journal(home / "train.sqlite")
    yield Trainer(
        worker=Worker(),
        journal=journal,
        metrics=home / "metrics.jsonl",
        groups=None,
        model=str(model),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "?"}]),
        weight_transfer=object(),
        **options,
    )
    journal.close()


def gradient(
    trainer: Trainer,
    items: Sequence[Item],
    normalize: Normalize = "rollout",
    *,
    rows_each: int = 1,
    budget: int = 0,
) -> torch.Tensor:
    """The gradient of one step over `items`, by TRL's own batcher, collator and loss.

    Args:
        rows_each: Rows of a micro-batch, where `budget` is 0; it must divide their number.
        budget: As TRL's `token_budget`: packs rows up to so many ids into a micro-batch.
    """
    import torch

    worker = Worker()
    worker.rollout_buffer.shared = normalize == "rollout"
    ids = np.arange(max(2, budget)) + 300
    closing = Attempt(ids, ids > 300, np.zeros(len(ids), np.float32), 0.0)
    # A micro-batch ends where a row does not fit into it: the last one needs a row after it.
    worker.rollout_buffer.put_group([*items, *rows_of(9, closing, 1)], 0)
    trainer._worker, trainer._normalize = worker, normalize
    trainer.rollout_worker, trainer.rollout_queue = worker, worker.rollout_buffer
    trainer.args.token_budget, trainer.args.per_device_train_batch_size = budget, rows_each
    stream = iter(batches_of(trainer))
    step, left = [], sum(item.part.tokens for item in items)
    while left > 0:
        step.append(next(stream))
        left -= round(float(step[-1]["global_n_tokens"][0]))
    assert left == 0
    batches, _ = trainer.get_batch_samples(iter(step), len(step), "cpu")
    trainer.current_gradient_accumulation_steps = len(batches)
    trainer.model.zero_grad()
    trainer.state.global_step += 1
    trainer.loss_of_step = sum(float(trainer.training_step(trainer.model, batch)) for batch in batches)
    trainer._records.write(trainer.state.global_step, trainer._records.take_seen())
    return torch.cat([one.grad.flatten() for one in trainer.model.parameters() if one.grad is not None])


def batches_of(trainer: Trainer) -> Iterator[dict[str, Any]]:
    """TRL's micro-batches, one by one: accelerate's loader would wait for the next before it gives one."""
    trainer.state.max_steps = trainer.state.global_step + 99
    loader = trainer.get_train_dataloader()
    for rows in loader.dataset:
        yield loader.collate_fn([rows])


def expected(trainer: Trainer, made: Sequence[Attempt], normalize: Normalize) -> torch.Tensor:
    """The same by the formula, from a plain forward of each whole rollout."""
    import torch

    model = trainer.model
    model.zero_grad()
    total = sum(len(one.trained) for one in made)
    for one in made:
        ids = torch.from_numpy(one.ids)[None]
        hidden = model.model(
            input_ids=ids, attention_mask=None, **plain_attention(len(one.ids))
        ).last_hidden_state
        logits = model.lm_head(hidden)[0, :-1]
        logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0][one.mask[1:]]
        ratio = (logprobs - torch.from_numpy(one.logprobs[one.mask])).exp()
        loss = -torch.min(ratio * one.advantage, ratio.clamp(0.8, 1.28) * one.advantage)
        whole = loss.mean() / len(made) if normalize == "rollout" else loss.sum() / total
        whole.backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def check_records(
    trainer: Trainer,
    made: Sequence[Attempt],
    plain: Sequence[np.ndarray],
    items: Sequence[Item],
    normalize: Normalize,
) -> None:
    """What the last step left in `trained.jsonl`: values of a plain forward, and the loss by its formula."""
    step = trainer.state.global_step
    rows = [row for row in read_trained(Path(trainer.args.output_dir)) if row.step == step]
    places = {
        (item.part.rollout_id, item.chain): np.flatnonzero(item.sample.completion_mask) for item in items
    }
    assert sorted((row.rollout_id, row.row) for row in rows) == sorted(places)
    total, loss = sum(len(one.trained) for one in made), 0.0
    assert sum(row.tokens for row in rows) == total
    for row in rows:
        number, trained = int(row.rollout_id[1:]), places[row.rollout_id, row.row]
        one = made[number]
        assert row.logprobs is not None
        assert len(row.logprobs) == row.tokens == len(trained)
        assert np.array(row.logprobs) == pytest.approx(plain[number][trained], abs=1e-4)
        assert row.advantage == one.advantage
        share = total / (len(made) * len(one.trained)) if normalize == "rollout" else 1
        assert row.weight == pytest.approx(share)
        ratio = np.exp(np.array(row.logprobs) - one.logprobs[trained])
        cut = np.clip(ratio, 0.8, 1.28)
        assert row.clipped == int(np.sum(ratio < 0.8 if row.advantage < 0 else ratio > 1.28))
        loss += row.weight * float(-np.minimum(ratio * row.advantage, cut * row.advantage).sum()) / total
    assert any(row.clipped for row in rows)
    assert trainer.loss_of_step == pytest.approx(loss, abs=1e-4)


def plain_logprobs(trainer: Trainer, attempt: Attempt) -> np.ndarray:
    """The log-probability of each id of a rollout, by a forward pass of it alone; 0 for the first."""
    import torch

    ids = torch.from_numpy(attempt.ids)[None]
    with torch.no_grad():
        hidden = trainer.model.model(
            input_ids=ids, attention_mask=None, **plain_attention(len(attempt.ids))
        ).last_hidden_state
        given = trainer.model.lm_head(hidden)[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return np.concatenate([[0.0], given.numpy()])


def plain_attention(length: int) -> dict[str, Any]:
    """What TRL's tree attention takes for one row that shares nothing."""
    import torch

    ends = torch.tensor([0, length], dtype=torch.int32)
    return {
        "position_ids": torch.arange(length)[None],
        "tree_kv_index": torch.arange(length),
        "tree_cu_seqlens_q": ends,
        "tree_cu_seqlens_k": ends,
        "tree_max_seqlen_q": length,
        "tree_max_seqlen_k": length,
    }


CUTS = [
    pytest.param((1, 1, 1, 1), 1, 0, id="one row each", marks=pytest.mark.slow),
    pytest.param((1, 5, 1, 1), 1, 0, id="a loser in five chains"),
    pytest.param((5, 1, 1, 1), 1, 0, id="a winner in five chains", marks=pytest.mark.slow),
    pytest.param((2, 2, 2, 2), 4, 0, id="four rows a micro-batch", marks=pytest.mark.slow),
    pytest.param((3, 5, 2, 2), 12, 0, id="one micro-batch", marks=pytest.mark.slow),
    pytest.param((4, 3, 2, 1), 1, 80, id="packed up to 80 ids"),
    pytest.param((4, 3, 2, 1), 1, 150, id="packed up to 150 ids", marks=pytest.mark.slow),
]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("normalize", ["rollout", "token"])
@pytest.mark.parametrize(("chains", "rows_each", "budget"), CUTS)
def test_gradient_of_a_step_knows_no_cut(
    trainer: Trainer, normalize: Normalize, chains: Sequence[int], rows_each: int, budget: int
) -> None:
    made = attempts()
    reference = expected(trainer, made, normalize)
    plain = [plain_logprobs(trainer, one) for one in made]
    items = [one for number, count in enumerate(chains) for one in rows_of(number, made[number], count)]
    for seed in range(3):
        random.Random(seed).shuffle(items)
        found = gradient(trainer, remade(items), normalize, rows_each=rows_each, budget=budget)
        assert float((found - reference).norm() / reference.norm()) < CLOSE
        check_records(trainer, made, plain, items, normalize)


def remade(items: Sequence[Item]) -> list[Item]:
    """The same rows with samples of their own: what is handed out is changed."""
    from dataclasses import replace

    return [replace(item, sample=replace(item.sample)) for item in items]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_trls_own_weights_know_the_cut(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: without our weights a rollout in five chains counts five times."""
    from swe_trainer_trl.compat import AsyncGRPOTrainer
    from swe_trainer_trl.trainer.trainer import Trainer as Ours

    made = attempts()
    reference = expected(trainer, made, "rollout")
    monkeypatch.setattr(Ours, "get_batch_samples", AsyncGRPOTrainer.get_batch_samples)
    monkeypatch.setattr(
        "swe_trainer_trl.trainer.row_queue.RowBuffer.shared",
        property(lambda self: False, lambda self, _: None),
        raising=False,
    )
    items = [one for number, count in enumerate((1, 5, 1, 1)) for one in rows_of(number, made[number], count)]
    found = gradient(trainer, items, "token")
    assert float((found - reference).norm() / reference.norm()) > 0.1


shapes = st.lists(
    st.tuples(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.floats(0, 1)), min_size=2, max_size=8
)


@given(shapes, st.randoms(use_true_random=False), st.integers(1, 8))
def test_weighted_advantages_of_a_group_sum_to_zero(
    drawn: list[tuple[list[int], float]], order: random.Random, size: int
) -> None:
    """Over all ids, as TRL adds them up: each has its row's advantage, its micro-batch's scale, and TRL's
    own division."""
    given_to = advantages([reward for _, reward in drawn])
    rows = [
        (Part(f"r{number}", tokens, sum(chains)), float(given_to[number]) / sum(chains))
        for number, (chains, _) in enumerate(drawn)
        for tokens in chains
    ]
    order.shuffle(rows)
    batches = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
    ids = [sum(part.tokens for part, _ in batch) for batch in batches]
    step = weighted("rollout", [part for part, _ in rows], ids)
    terms = [
        part.tokens * advantage * scale / count / len(batches)
        for batch, count, scale in zip(batches, ids, step.scales, strict=True)
        for part, advantage in batch
    ]
    assert sum(terms) == pytest.approx(0, abs=1e-7)
    assert list(step.weights.values()) == pytest.approx([1] * len(drawn))


@given(shapes, st.randoms(use_true_random=False), st.sampled_from(["rollout", "token"]), st.integers(1, 8))
def test_weight_of_an_id_is_what_its_scale_and_trls_division_make_of_it(
    drawn: list[tuple[list[int], float]], order: random.Random, normalize: Normalize, size: int
) -> None:
    """Relative to the mean over ids, whatever the micro-batches."""
    parts = [
        Part(f"r{number}", tokens, sum(chains))
        for number, (chains, _) in enumerate(drawn)
        for tokens in chains
    ]
    order.shuffle(parts)
    batches = [parts[begin : begin + size] for begin in range(0, len(parts), size)]
    ids = [sum(part.tokens for part in batch) for batch in batches]
    step = weighted(normalize, parts, ids)
    for batch, count, scale in zip(batches, ids, step.scales, strict=True):
        for part in batch:
            shared = scale / part.whole if normalize == "rollout" else scale
            given_to = shared / count / len(batches) * sum(ids)
            assert step.id_weights[part.rollout_id] == pytest.approx(given_to)
    assert sum(step.id_weights[part.rollout_id] * part.tokens for part in parts) == pytest.approx(sum(ids))


def test_rollout_that_two_steps_share_counts_once_in_all() -> None:
    first = weighted("rollout", [Part("a", 30, 40), Part("b", 5, 5)], [35])
    second = weighted("rollout", [Part("a", 10, 40), Part("c", 5, 5)], [10, 5])
    assert first.weights == {"a": pytest.approx(0.75), "b": pytest.approx(1)}
    assert second.weights == {"a": pytest.approx(0.25), "c": pytest.approx(1)}
    assert first.scales == pytest.approx((35 / 2,))
    assert second.scales == pytest.approx((10 * 2 / 2, 5 * 2 / 2))


def test_normalization_by_token_counts_ids() -> None:
    step = weighted("token", [Part("a", 30, 30), Part("b", 10, 10)], [30, 10])
    assert step.weights == {"a": pytest.approx(1.5), "b": pytest.approx(0.5)}
    assert step.scales == pytest.approx((30 * 2 / 40, 10 * 2 / 40))


@pytest.mark.parametrize(("tokens", "whole"), [(0, 4), (5, 4)])
def test_row_has_ids_and_no_more_than_its_rollout(tokens: int, whole: int) -> None:
    with pytest.raises(ValueError, match=f"trains {tokens} of its {whole} ids"):
        Part("a", tokens, whole)
