"""RowRecords: what a forward pass gave each row, as TRL packs them, and failures that harm no training."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from swe_core.rollout.training_records import TRAINED_FILE, read_trained
from swe_testing.serving.start import missing

if TYPE_CHECKING:  # they import torch and TRL, which takes seconds
    from swe_trainer_trl.trainer.losses import Loss
    from swe_trainer_trl.trainer.row_queue import Item
    from swe_trainer_trl.trainer.row_records import RowRecords

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

Batch = dict[str, Any]


def row(number: int, trained: int, advantage: float = 1.0) -> Item:
    """A row of a prompt of two ids, and so many trained ids with an id in between that is not."""
    from swe_trainer_trl.compat import make_sample
    from swe_trainer_trl.normalization import Part
    from swe_trainer_trl.trainer.row_queue import Item

    mask = np.array([0, 0, 1, 0, *[1] * (trained - 1)])
    logprobs = (-np.arange(len(mask), dtype=np.float32) / 64 - number) * mask.astype(np.float32)
    sample = make_sample(
        prompt=[], completion=[], input_ids=np.arange(len(mask)) + 100 * number, completion_mask=mask,
        old_log_probs=logprobs, advantage=advantage, model_version=1, group_id=0, metrics={},
    )  # fmt: skip
    part = Part(f"r{number}", trained, trained)
    return Item(number, 0, part, 1, sample, number % 3, "rewritten", advantage)


def sampled(item: Item) -> list[float]:
    """The sampler's log-probability of each trained id."""
    found: list[float] = item.sample.old_log_probs[item.sample.completion_mask != 0].tolist()
    return found


def as_samples(items: list[Item]) -> list[Batch]:
    names = ("input_ids", "completion_mask", "old_log_probs", "advantage")
    return [{name: getattr(item.sample, name) for name in names} for item in items]


def tree(ranks: list[list[Item]]) -> Batch:
    """As TRL packs since 1.16, by its own code. How it did before, test_trl_versions.py shows."""
    from swe_trainer_trl import compat

    if compat.packing_module is None:
        pytest.skip("the TRL that is installed packs no trees")
    collator = compat.trainer_module.DataCollatorForRollout(0, len(ranks))
    rows = []
    for rank in ranks:
        rows.append(compat.trainer_module.TreeRow())
        for number, sample in enumerate(as_samples(rank)):
            rows[-1].add({**sample, "group_id": number, "metrics": {}})
    return dict(collator([rows]))


class Model:
    """The output of a forward pass: of each trained id the sampler's log-probability, and `moved`."""

    def __init__(self, moved: float = 0.125) -> None:
        import torch

        self.moved = moved
        self.module: Any = torch.nn.Identity()

    def __call__(self, batch: Batch) -> None:
        import torch

        chosen = batch["token_index"] >= 0
        output = torch.full((1, int(batch["token_index"].max()) + 1), torch.nan)
        output[0, batch["token_index"][chosen]] = batch["old_log_probs"][chosen] + self.moved
        self.module({"log_probs": output})


def recorder(run: Path, items: list[Item]) -> RowRecords:
    from swe_trainer_trl.trainer.row_records import RowRecords

    def row_of(input_ids: object) -> int:
        return next(item.row_id for item in items if item.sample.input_ids is input_ids)

    made = RowRecords(run, row_of)
    made.weights = {item.part.rollout_id: 2.0 for item in items}
    return made


def trls(**options: Any) -> Loss:
    """TRL's loss, or a variant."""
    from swe_trainer_trl.config import LossOptions
    from swe_trainer_trl.trainer.losses import Loss

    return Loss(LossOptions(**options), 0.2, 0.25)


class Loader:
    """A data loader as accelerate makes it: around torch's."""

    def __init__(self, batch: Batch) -> None:
        self.base_dataloader = self
        self.batch = batch
        self.collate_fn: Callable[[Any], Batch] = lambda examples: dict(self.batch)


def trained(
    records: RowRecords,
    ranks: list[list[Item]],
    batch: Batch,
    rank: int = 0,
    loss: Loss | None = None,
    step: int = 1,
    **moved: float,
) -> None:
    """A micro-batch, from the data loader to the end of its step, which is written."""
    loader, model = Loader(batch), Model(**moved)
    records.mark(loader)
    inputs = {
        key: value[rank : rank + 1] for key, value in loader.collate_fn([[*map(as_samples, ranks)]]).items()
    }
    with records.watching(model.module, inputs, (loss or trls()).clipped):
        model(inputs)
    assert not model.module._forward_hooks
    records.trained([item for one in ranks for item in one], version=4)
    records.write(step, records.take_seen())
    records.write(step, records.take_seen())


def test_each_row_has_its_own_values(tmp_path: Path) -> None:
    handed = [row(1, 3), row(2, 1, -1.0), row(3, 5, 0.0)]
    records = recorder(tmp_path, handed)
    packed = [[handed[2], handed[0], handed[1]]]
    trained(records, packed, tree(packed), step=7)
    found = {one.rollout_id: one for one in read_trained(tmp_path)}
    assert set(found) == {"r1", "r2", "r3"}
    for item in handed:
        one = found[item.part.rollout_id]
        assert (one.step, one.version, one.row, one.weight) == (7, 4, item.chain, 2.0)
        assert (one.advantage, one.tokens) == (item.advantage, item.part.tokens)
        assert one.logprobs == pytest.approx([value + 0.125 for value in sampled(item)])
        assert one.clipped == 0  # e^0.125 is 1.13


@pytest.mark.parametrize(
    ("options", "moved", "clipped"),
    [
        ({}, 0.5, [3, 0, 0]),
        ({}, -0.5, [0, 2, 0]),
        ({"importance_sampling_level": "sequence"}, 0.5, [3, 0, 0]),  # a row as a whole, or not
        ({"loss_type": "cispo"}, 0.5, [None] * 3),
    ],
)
def test_ids_are_clipped_as_in_the_loss(
    tmp_path: Path, options: dict[str, Any], moved: float, clipped: list[int | None]
) -> None:
    ranks = [[row(1, 3), row(2, 2, -1.0), row(3, 1, 0.0)]]
    records = recorder(tmp_path, ranks[0])
    trained(records, ranks, tree(ranks), loss=trls(**options), moved=moved)
    found = read_trained(tmp_path)
    assert [one.clipped for one in found] == clipped
    for one, item in zip(found, ranks[0], strict=True):
        assert one.logprobs == pytest.approx([value + moved for value in sampled(item)])


def test_rows_of_other_processes_are_not_known(tmp_path: Path) -> None:
    """Their forward pass is elsewhere; no such training has been tried."""
    ranks = [[row(1, 3)], [row(2, 1), row(3, 2)]]
    records = recorder(tmp_path, [item for rank in ranks for item in rank])
    trained(records, ranks, tree(ranks), rank=1)
    found = read_trained(tmp_path)
    assert [one.logprobs is None for one in found] == [True, False, False]
    assert [one.clipped for one in found] == [None, 0, 0]


def test_log_probabilities_are_written_with_the_digits_of_float32(tmp_path: Path) -> None:
    """Or as null, where one is not known."""
    ranks = [[row(1, 2)]]
    ranks[0][0].sample.old_log_probs[2] = np.float32(-0.1)
    records = recorder(tmp_path, ranks[0])
    for moved in (0.0, float("nan")):
        trained(records, ranks, tree(ranks), moved=moved)
    line, other = (tmp_path / TRAINED_FILE).read_text().splitlines()
    assert line.startswith('{"step":1,"version":4,"rollout_id":"r1","row":1,')
    assert "-0.1," in line
    assert json.loads(other)["logprobs"] == [None, None]


def twice(model: Model, batch: Batch) -> None:
    FORWARD(model, batch)
    FORWARD(model, batch)


FORWARD = Model.__call__


@pytest.mark.parametrize(
    ("of", "name", "fault"),
    [
        (Model, "__call__", lambda model, batch: model.module(({},))),  # TRL's model gives something else
        (Model, "__call__", twice),
        (None, "mark", lambda loader: None),  # its data loader has no place for a collator
    ],
)
def test_failure_leaves_values_out_and_is_said_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    of: type | None,
    name: str,
    fault: Callable[..., None],
) -> None:
    ranks = [[row(1, 3), row(2, 2)]]
    records = recorder(tmp_path, ranks[0])
    monkeypatch.setattr(of or records, name, fault)
    with caplog.at_level(logging.WARNING):
        for step in (1, 2):
            trained(records, ranks, tree(ranks), step=step)
    assert [(one.step, one.tokens, one.logprobs, one.clipped) for one in read_trained(tmp_path)] == [
        (step, tokens, None, None) for step in (1, 2) for tokens in (3, 2)
    ]
    (said,) = caplog.records
    assert said.getMessage().startswith("trained.jsonl is incomplete from here on: ")


def test_values_of_another_row_are_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two rows with as many ids, in another order than the micro-batch says."""
    ranks = [[row(1, 3), row(2, 3)]]
    records = recorder(tmp_path, ranks[0])
    trained(records, ranks, tree([[ranks[0][1], ranks[0][0]]]))
    assert [one.logprobs for one in read_trained(tmp_path)] == [None, None]
    assert "TRL packs the rows of a micro-batch in an unknown way" in caplog.text


def test_loss_that_fails_is_not_hidden(tmp_path: Path) -> None:
    records, model = recorder(tmp_path, []), Model()

    def loss() -> None:
        with records.watching(model.module, {}, trls().clipped):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        loss()
    assert not model.module._forward_hooks


def test_file_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ranks = [[row(1, 3)]]
    records = recorder(tmp_path, ranks[0])
    (tmp_path / TRAINED_FILE).mkdir()
    for step in (1, 2):
        trained(records, ranks, tree(ranks), step=step)
    assert len(caplog.records) == 1
    (tmp_path / TRAINED_FILE).rmdir()
    trained(records, ranks, tree(ranks), step=3)
    assert [one.step for one in read_trained(tmp_path)] == [3]
