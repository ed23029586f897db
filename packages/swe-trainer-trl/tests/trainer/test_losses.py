"""Variants of the loss, by their formulas on plain forward passes of whole rollouts: however these are cut
into rows, packed and spread over micro-batches."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.rollout.training_records import read_trained
from swe_testing.serving.start import missing
from swe_trainer_trl.config import LossOptions
from swe_trainer_trl.normalization import Normalize

from . import test_normalization as steps

if TYPE_CHECKING:  # they import torch and TRL, which takes seconds
    import torch

    from swe_trainer_trl.trainer.losses import Loss
    from swe_trainer_trl.trainer.trainer import Trainer

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
trainer = steps.trainer

CUTS = [
    pytest.param((1, 1, 1, 1), 1, 0, id="one row each", marks=pytest.mark.slow),
    pytest.param((1, 5, 1, 1), 4, 0, id="a loser in five chains, four rows a micro-batch"),
    pytest.param((4, 3, 2, 1), 1, 80, id="packed up to 80 ids", marks=pytest.mark.slow),
]
EPSILON, EPSILON_HIGH, LARGEST = 0.2, 0.28, 1.05


@dataclass(frozen=True)
class Row:
    """The trained ids of a row: the sampler's log-probabilities, and the advantage of its rollout."""

    sampled: torch.Tensor
    advantage: float


Formula = Callable[["torch.Tensor", Row], "torch.Tensor"]
"""The loss of each id of a row by its log-probabilities."""


def ppo(ratio: torch.Tensor, advantage: float, low: float, high: float, delta: float = 1e9) -> torch.Tensor:
    import torch

    return -torch.min(ratio.clamp(max=delta) * advantage, ratio.clamp(low, high) * advantage)


def clipped(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    return ppo((logprobs - row.sampled).exp(), row.advantage, 1 - EPSILON, 1 + EPSILON_HIGH)


def two_sided(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    return ppo((logprobs - row.sampled).exp(), row.advantage, 1 - EPSILON, 1 + EPSILON_HIGH, 1.4)


def gspo(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    ratio = (logprobs - row.sampled).mean().exp().expand(len(logprobs))
    return ppo(ratio, row.advantage, 0.98, 1.03)


def cispo(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    ratio = (logprobs.detach() - row.sampled).exp()
    return -ratio.clamp(max=LARGEST) * row.advantage * logprobs


def cispo_by_row(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    ratio = (logprobs.detach() - row.sampled).mean().exp()
    return -ratio.clamp(max=LARGEST) * row.advantage * logprobs


def surrogate(weights: torch.Tensor, logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    """Minus the weighted advantage, with the gradient of the log-probability."""
    return -weights * row.advantage * (1 + logprobs - logprobs.detach())


def tis(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    return surrogate((logprobs.detach() - row.sampled).exp().clamp(0.9, 1.1), logprobs, row)


def icepop(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    ratio = (logprobs.detach() - row.sampled).exp()
    return surrogate(ratio * ((ratio >= 0.5) & (ratio <= 1.5)), logprobs, row)


def tis_by_row(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    return surrogate((logprobs.detach() - row.sampled).sum().exp().clamp(max=1.5), logprobs, row)


def mis(logprobs: torch.Tensor, row: Row) -> torch.Tensor:
    ratio = (logprobs.detach() - row.sampled).sum().exp()
    return surrogate(ratio * ((ratio >= 0.2) & (ratio <= 5)), logprobs, row)


CORRECTION = "vllm_importance_sampling_correction"
MODE = "vllm_importance_sampling_mode"
LEAST, MOST = "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max"
SEQUENCE = {"importance_sampling_level": "sequence"}
VARIANTS: Mapping[str, tuple[dict[str, Any], tuple[float, float], Formula]] = {
    "two-sided": ({"delta": 1.4}, (EPSILON, EPSILON_HIGH), two_sided),
    "gspo": (SEQUENCE, (0.02, 0.03), gspo),
    "cispo": ({"loss_type": "cispo"}, (EPSILON, LARGEST), cispo),
    "cispo by row": ({"loss_type": "cispo", **SEQUENCE}, (EPSILON, LARGEST), cispo_by_row),
    "tis": ({CORRECTION: True, LEAST: 0.9, MOST: 1.1}, (EPSILON, EPSILON_HIGH), tis),
    "icepop": (
        {CORRECTION: True, MODE: "token_mask", LEAST: 0.5, MOST: 1.5},
        (EPSILON, EPSILON_HIGH),
        icepop,
    ),
    "tis by row": (
        {CORRECTION: True, MODE: "sequence_truncate", MOST: 1.5},
        (EPSILON, EPSILON_HIGH),
        tis_by_row,
    ),
    "mis": (
        {CORRECTION: True, MODE: "sequence_mask", LEAST: 0.2, MOST: 5},
        (EPSILON, EPSILON_HIGH),
        mis,
    ),
}


def loss_of(options: Mapping[str, Any], epsilons: tuple[float, float]) -> Loss:
    from swe_trainer_trl.trainer.losses import Loss

    return Loss(LossOptions(**options), *epsilons)


def plain(model: Any, attempt: steps.Attempt) -> torch.Tensor:
    """The log-probability of each id of a rollout after the first, by a forward pass of it alone."""
    import torch

    ids = torch.from_numpy(attempt.ids)[None]
    inputs = (
        {} if model.config._attn_implementation != "tree_fa3" else steps.plain_attention(len(attempt.ids))
    )
    logits = model(input_ids=ids, attention_mask=None, **inputs).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def attempts(model: Any) -> list[steps.Attempt]:
    """Rollouts that were sampled by something near to `model`, two of them with less and two with more
    probability on the whole."""
    import torch

    draw, made = np.random.default_rng(11), []
    for one, shift in zip(steps.attempts(), (0.02, -0.15, -0.05, 0.2), strict=True):
        with torch.no_grad():
            given = np.concatenate([[0.0], plain(model, one).numpy()])
        sampled = given - shift + draw.normal(0, 0.3, len(given))
        made.append(replace(one, logprobs=(sampled * one.mask).astype(np.float32)))
    return made


def expected(
    model: Any,
    made: Sequence[steps.Attempt],
    chains: Sequence[int],
    normalize: Normalize,
    formula: Formula,
    extra: Callable[[torch.Tensor, steps.Attempt, np.ndarray], torch.Tensor] | None = None,
) -> tuple[float, torch.Tensor]:
    """The loss of a step and its gradient.

    Args:
        extra: More loss of each id: its log-probabilities, its rollout, and the places of the ids in that.
    """
    import torch

    model.zero_grad()
    total, loss = sum(len(one.trained) for one in made), 0.0
    for one, count in zip(made, chains, strict=True):
        whole = plain(model, one)
        of_rollout = torch.zeros(())
        for places in steps.cut(one, count):
            logprobs = whole[places - 1]
            of_row = formula(logprobs, Row(torch.from_numpy(one.logprobs[places]), one.advantage))
            if extra is not None:
                of_row = of_row + extra(logprobs, one, places)
            of_rollout = of_rollout + of_row.sum()
        part = of_rollout / (len(made) * len(one.trained) if normalize == "rollout" else total)
        part.backward()
        loss += float(part.detach())
    return loss, torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def check(trainer: Trainer, found: torch.Tensor, reference: tuple[float, torch.Tensor]) -> None:
    loss, wanted = reference
    assert float(wanted.norm()) > 1e-4
    assert float((found - wanted).norm() / wanted.norm()) < steps.CLOSE
    assert trainer.loss_of_step == pytest.approx(loss, rel=1e-3, abs=1e-4)


def rows_in(made: Sequence[steps.Attempt], chains: Sequence[int]) -> list[Any]:
    items = [one for number, count in enumerate(chains) for one in steps.rows_of(number, made[number], count)]
    random.Random(len(items)).shuffle(items)
    return steps.remade(items)


def logged(trainer: Trainer) -> dict[str, list[Any]]:
    """What the micro-batches of the step logged."""
    found = {name: list(values) for name, values in trainer._metrics["train"].items()}
    trainer._metrics["train"].clear()
    return found


@pytest.mark.parametrize("normalize", ["rollout", "token"])
@pytest.mark.parametrize(("chains", "rows_each", "budget"), CUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_is_its_formula(
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    normalize: Normalize,
    chains: Sequence[int],
    rows_each: int,
    budget: int,
) -> None:
    options, epsilons, formula = VARIANTS[variant]
    monkeypatch.setattr(trainer, "_loss", loss_of(options, epsilons))
    made = attempts(trainer.model)
    reference = expected(trainer.model, made, chains, normalize, formula)
    trainer._metrics["train"].clear()
    found = steps.gradient(trainer, rows_in(made, chains), normalize, rows_each=rows_each, budget=budget)
    check(trainer, found, reference)
    check_metrics(trainer, variant)


def check_metrics(trainer: Trainer, variant: str) -> None:
    """Each micro-batch logs once; the counts are those of `trained.jsonl` where it has them."""
    values = logged(trainer)
    for name in ("ratio", "kl", "entropy", *(name for name in values if name.startswith("clip_ratio/"))):
        assert len(values[name]) == len(values["clip_ratio/region_mean"]), name
    step = trainer.state.global_step
    rows = [row for row in read_trained(Path(trainer.args.output_dir)) if row.step == step]
    weights = values.get("weight/mean"), values.get("weight/truncated_frac")
    if variant == "gspo":
        assert weights == (None, None)
        assert {row.clipped for row in rows} > {0}
        assert all(row.clipped in (0, row.tokens) for row in rows)
    else:
        assert {row.clipped for row in rows} == {None}
    if variant in ("gspo", "two-sided"):
        assert 0 < max(values["clip_ratio/region_mean"]) <= 1
    else:
        assert set(values["clip_ratio/region_mean"]) == {0.0}
        assert weights[0] is not None
        assert weights[1] is not None
        assert 0 < max(weights[1]) <= 1
        assert min(weights[0]) > 0 or variant == "mis"


@pytest.mark.parametrize("normalize", ["rollout", "token"])
def test_loss_by_default_is_trls(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, normalize: Normalize
) -> None:
    """TRL computes it. Ours would be the same, with the same metrics."""
    import torch

    made, chains = attempts(trainer.model), (4, 3, 2, 1)
    trainer._metrics["train"].clear()
    with monkeypatch.context() as patch:
        patch.setattr(type(trainer), "_variant", None)
        theirs = steps.gradient(trainer, rows_in(made, chains), normalize, budget=150)
    loss, values = trainer.loss_of_step, logged(trainer)
    monkeypatch.setattr(LossOptions, "is_trls", False)
    ours = steps.gradient(trainer, rows_in(made, chains), normalize, budget=150)
    assert torch.equal(ours, theirs)
    assert trainer.loss_of_step == loss
    again = logged(trainer)
    for name in values:
        if name in ("ratio", "kl", "entropy") or name.startswith("clip_ratio/"):
            assert again[name] == pytest.approx(values[name]), name


# -- the KL term -------------------------------------------------------------------------------------------


def moved(trainer: Trainer, where: Path) -> None:
    """Load a checkpoint of other weights, as a resume does."""
    import torch

    draw = torch.Generator().manual_seed(5)
    before = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    with torch.no_grad():
        for one in trainer.model.parameters():
            if one.requires_grad:
                one += 0.02 * torch.randn(one.shape, generator=draw)
    trainer.save_model(str(where))
    with torch.no_grad():
        for name, one in trainer.model.named_parameters():
            one.copy_(before[name])
    trainer._load_from_checkpoint(str(where))
    assert any(not torch.equal(before[name], one) for name, one in trainer.model.named_parameters())


@pytest.fixture(scope="module", params=["all weights", "an adapter", "an adapter, gradient checkpoints"])
def resumed(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trainer]:
    """A trainer with a KL term, whose weights are those of a checkpoint."""
    home = tmp_path_factory.mktemp("resumed")
    options: dict[str, Any] = {}
    if request.param != "all weights":
        if find_spec("peft") is None:
            pytest.skip("peft is not installed")
        from peft import LoraConfig

        options["peft_config"] = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    with steps.training(tiny_model, home, loss=LossOptions(beta=0.5), **options) as made:
        if request.param.endswith("checkpoints"):
            made.model.gradient_checkpointing_enable()
        moved(made, home / "checkpoint-1")
        yield made


@pytest.mark.parametrize(("chains", "rows_each", "budget"), CUTS)
@pytest.mark.parametrize(
    ("corrected", "weighted", "normalize"),
    [
        pytest.param(True, False, "rollout", id="corrected, rollout"),
        pytest.param(False, False, "token", id="plain, token"),
        pytest.param(True, True, "token", id="corrected, weighted, token"),
        pytest.param(False, True, "rollout", id="plain, weighted, rollout"),
    ],
)
def test_kl_term_is_to_the_first_policy(
    resumed: Trainer,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    corrected: bool,
    weighted: bool,
    normalize: Normalize,
    chains: Sequence[int],
    rows_each: int,
    budget: int,
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    first = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    options: dict[str, Any] = {"beta": 0.5, "use_bias_correction_kl": corrected}
    if weighted:
        options |= {CORRECTION: True, LEAST: 0.9, MOST: 1.1}
    monkeypatch.setattr(resumed, "_loss", loss_of(options, (EPSILON, EPSILON_HIGH)))
    made, kls = attempts(resumed.model), []

    def extra(logprobs: torch.Tensor, one: steps.Attempt, places: np.ndarray) -> torch.Tensor:
        with torch.no_grad():
            gap = plain(first, one)[places - 1] - logprobs.detach()
        gap = gap + logprobs.detach() - logprobs
        kl = gap.exp() - gap - 1
        kls.extend(kl.tolist())
        ratio = (logprobs - torch.from_numpy(one.logprobs[places])).exp()
        if weighted:
            ratio = ratio.detach().clamp(0.9, 1.1) * (1 + logprobs - logprobs.detach())
        return 0.5 * kl * (ratio if corrected else 1)

    formula = tis if weighted else clipped
    reference = expected(resumed.model, made, chains, normalize, formula, extra)
    resumed._metrics["train"].clear()
    found = steps.gradient(resumed, rows_in(made, chains), normalize, rows_each=rows_each, budget=budget)
    check(resumed, found, reference)
    values = logged(resumed)
    assert len(values["kl_ref"]) == len(values["kl"])
    if len(values["kl_ref"]) == 1:
        assert values["kl_ref"][0] == pytest.approx(np.mean(kls), rel=1e-3)
    assert min(values["kl_ref"]) > 1e-4


@pytest.mark.parametrize("bf16", [False, True])
def test_kl_term_is_zero_at_the_start(tiny_model: Path, tmp_path: Path, bf16: bool) -> None:
    """Also where the copy has converted weights, and the policy's are converted by autocast."""
    with steps.training(tiny_model, tmp_path, bf16=bf16, loss=LossOptions(beta=0.5)) as made:
        made.model = made.accelerator.prepare_model(made.model)
        steps.gradient(made, rows_in(steps.attempts(), (1, 1, 1, 1)))
        assert logged(made)["kl_ref"] == [0.0] * 4


def test_training_and_its_resume_measure_from_the_first_policy(tiny_model: Path, tmp_path: Path) -> None:
    """By accelerate's data loader and transformers' loop, from one checkpoint to the next."""
    first = trained(tiny_model, tmp_path, 2)
    assert first[0]["kl_ref"] == pytest.approx(0, abs=1e-6)
    assert first[1]["kl_ref"] > 1e-4
    assert first[0]["weight/mean"] == pytest.approx(1, abs=1e-4)
    assert first[0]["weight/truncated_frac"] == 0
    assert first[0]["ratio"] == pytest.approx(1, abs=1e-4)
    (second,) = trained(tiny_model, tmp_path, 3, checkpoint=tmp_path / "checkpoint-2")
    assert second["kl_ref"] > first[1]["kl_ref"] / 2


def trained(model: Path, home: Path, steps: int, checkpoint: Path | None = None) -> list[dict[str, Any]]:
    """What a training until a step logs of each step, with the correction and a KL term."""
    from datasets import Dataset

    from swe_trainer_trl import compat
    from swe_trainer_trl.journal.journal import Journal
    from swe_trainer_trl.trainer import cpu_attention
    from swe_trainer_trl.trainer.trainer import Trainer

    from ..two_steps import ROWS, Transfer, Worker, rows

    cpu_attention.install()
    journal = Journal(home / f"until-{steps}.sqlite")
    made = Trainer(
        worker=Worker(rows(str(model)), journal),
        journal=journal,
        metrics=home / "metrics.jsonl",
        groups=None,
        loss=LossOptions(beta=0.1, **{CORRECTION: True}),
        model=str(model),
        args=compat.AsyncGRPOConfig(
            output_dir=str(home),
            max_steps=steps,
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=1,
            token_budget=0,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_steps=steps,
            report_to="none",
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            vllm_server_base_url="http://127.0.0.1:9",
        ),
        train_dataset=Dataset.from_list([{"prompt": "?"}]),
        weight_transfer=Transfer(journal),
    )
    made.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    journal.close()
    lines = [json.loads(line) for line in (home / "metrics.jsonl").read_text().splitlines()]
    (home / "metrics.jsonl").unlink()
    return [line["values"] for line in lines if "loss" in line["values"]]


# -- the formulas ------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(-2, 2)), min_size=1, max_size=6),
    st.sampled_from(sorted(VARIANTS)),
    st.floats(1e-3, 1e3),
)
def test_factor_on_the_advantage_is_one_on_the_loss(
    drawn: list[tuple[float, float]], variant: str, factor: float
) -> None:
    """As `normalization` needs: it scales advantages."""
    import torch

    options, epsilons, _ = VARIANTS[variant]
    log_ratio, advantages = torch.tensor(drawn).unbind(1)
    sampled = torch.full_like(log_ratio, -4.0)
    rows = torch.arange(len(drawn)) // 2
    loss = loss_of(options, epsilons)
    once = loss.terms(sampled + log_ratio, sampled, advantages, rows).loss
    scaled = loss.terms(sampled + log_ratio, sampled, advantages * factor, rows).loss
    assert scaled.tolist() == pytest.approx((once * factor).tolist(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_weights_of_ratios_beyond_floats_are_finite(mode: str) -> None:
    """The product over a long row leaves the range of floats."""
    import torch

    logprobs = torch.full((400,), -1.0, requires_grad=True)
    for sampled in (-100.0, 0.0):
        terms = loss_of({CORRECTION: True, MODE: mode}, (EPSILON, EPSILON_HIGH)).terms(
            logprobs, torch.full((400,), sampled), torch.ones(400), torch.zeros(400, dtype=torch.int64)
        )
        (gradient,) = torch.autograd.grad(terms.loss.sum(), logprobs)
        assert gradient.isfinite().all()
        assert terms.loss.isfinite().all()


def test_ids_that_the_loss_clips() -> None:
    import torch

    log_ratio = torch.tensor([0.5, 0.5, -0.5, -0.5, -0.1])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    rows = torch.tensor([0, 1, 2, 3, 0])

    def found(**options: Any) -> list[bool] | None:
        cut = loss_of(options, (EPSILON, EPSILON_HIGH)).clipped(log_ratio, advantages, rows)
        return None if cut is None else cut.tolist()

    assert found() == [True, False, False, True, False]
    assert found(**SEQUENCE) == [False, False, False, True, False]  # the mean of the first row is 0.2
    assert found(delta=1.5) is found(loss_type="cispo") is found(**{CORRECTION: True}) is None
