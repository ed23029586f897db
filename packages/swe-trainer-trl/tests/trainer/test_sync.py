"""A weight sync to several servers, some of which die: who gets which version, and when rollouts may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from swe_core.errors import EngineError
from swe_testing.serving.start import missing
from swe_trainer_trl.journal.journal import Journal

if TYPE_CHECKING:  # imports TRL, which takes seconds
    from swe_trainer_trl.trainer.trainer import Trainer

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

A, B = "http://a", "http://b"


@dataclass
class World:
    """The guard of two servers, and TRL's part of a sync: it does what `script` says, one entry a try."""

    journal: Journal
    script: list[Callable[[World], None]] = field(default_factory=list)
    urls: Sequence[str] = (A, B)
    changes: int = 0
    said: list[Any] = field(default_factory=list)
    explained: bool = True
    trainer: Any = None

    all_urls = (A, B)

    def wait(self) -> int:
        return self.changes

    def explains(self, error: Exception) -> bool:
        return self.explained

    def has_weights(self, changes: int, *, new: bool) -> None:
        self.said.append(("has", changes, new))

    def init_weight_transfer(self) -> None:
        self.said.append("init")

    def compare(self, urls: Sequence[str], version: int) -> None:
        self.said.append(("compare", *urls, version))

    def sync(self) -> None:
        """As TRL does, which announces the version at the end."""
        act = self.script.pop(0) if self.script else _works
        act(self)

    def announce(self) -> None:
        self.trainer.model_version += 1
        self.journal.raise_version(self.trainer.model_version)
        self.said.append(("version", self.trainer.model_version))


def _works(world: World) -> None:
    world.announce()


def _dies(world: World) -> None:
    """B dies, so that the next try is for A alone."""
    world.changes += 1
    world.urls = (A,)
    raise ConnectionError("broken")


def _dies_late(world: World) -> None:
    world.announce()
    _dies(world)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    from swe_trainer_trl.compat import AsyncGRPOTrainer
    from swe_trainer_trl.server import health
    from swe_trainer_trl.trainer.trainer import Trainer

    journal = Journal(tmp_path / "train.sqlite")
    world = World(journal)
    trainer: Any = object.__new__(Trainer)
    trainer.state = SimpleNamespace(global_step=0)
    trainer.model_version = 0
    trainer.weight_transfer = world
    trainer._journal, trainer._guard, trainer._compare = journal, world, world.compare
    trainer._sent_at, trainer._changes, trainer._compared = None, 0, None
    trainer._together, trainer._evaluations, trainer.vllm_client = False, None, None
    world.trainer = trainer
    monkeypatch.setattr(AsyncGRPOTrainer, "_sync_weight", lambda self: world.sync())
    monkeypatch.setattr(health, "unpause", lambda url, timeout: world.said.append(("unpause", url)))
    yield world
    journal.close()


def sync(world: World, step: int) -> list[Any]:
    """Sync the weights after a step; return what happened."""
    trainer: Trainer = world.trainer
    trainer.state.global_step, world.said = step, []
    trainer._sync_weight()
    return world.said


def test_weights_have_the_types_that_were_announced(tiny_model: Path, tmp_path: Path) -> None:
    """TRL announces them when the trainer is made. FSDP2 makes the weights float32 when a training begins."""
    import torch

    from ..two_steps import Worker, trainer_of

    journal = Journal(tmp_path / "train.sqlite")
    kept: dict[str, Any] = {"model_init_kwargs": {"dtype": "bfloat16"}, "max_steps": 1}
    trainer = trainer_of(Worker([], journal), journal, str(tiny_model), tmp_path, None, **kept)
    trainer.model.float()
    sent = dict(trainer._streaming_iter())
    journal.close()
    assert sent.keys() == {name for name, _ in trainer.model.named_parameters()}
    assert {weight.dtype for weight in sent.values()} == {torch.bfloat16}


def test_servers_are_compared_once_and_before_rollouts_ask_them(world: World) -> None:
    assert sync(world, 0) == [("version", 1), ("compare", A, B, 1), ("has", 0, False)]
    assert sync(world, 1) == [("version", 2), ("has", 0, True)]
    world.changes, world.urls = 2, (A, B)  # one died and is back
    assert sync(world, 1) == ["init", ("version", 3), ("compare", A, B, 3), ("has", 2, False)]
    assert world.journal.updates() == {1: 1, 2: 2, 3: 2}


def test_sync_is_repeated_without_the_server_that_died(world: World) -> None:
    sync(world, 0)
    world.script = [_dies]
    # All stay paused until it is complete: they may have weights whose version is not announced.
    assert sync(world, 1) == ["init", ("version", 2), ("compare", A, 2), ("has", 1, True)]
    assert world.journal.updates() == {1: 1, 2: 2}


@pytest.mark.parametrize("step", [0, 1])
def test_weights_that_were_announced_already_are_no_update_when_they_are_sent_again(
    world: World, step: int
) -> None:
    """Else rows that wait would be one update older than they are."""
    if step:
        sync(world, 0)
    world.script = [_dies_late]
    said = sync(world, step)
    versions = [entry[1] for entry in said if entry[0] == "version"]
    assert versions == [1 + step, 2 + step]
    updates = world.journal.updates()
    assert updates[versions[0]] == updates[versions[1]] == 1 + step
    assert said[-1] == ("has", 1, bool(step))


def test_comparison_that_a_death_breaks_off_is_made_again(world: World) -> None:
    tries: list[Sequence[str]] = []

    def compare(urls: Sequence[str], version: int) -> None:
        tries.append(urls)
        if len(tries) == 1:
            _dies(world)

    world.trainer._compare = compare
    sync(world, 0)
    assert tries == [(A, B), (A,)]
    assert world.journal.updates() == {1: 1, 2: 1}


@pytest.mark.parametrize("compared", [True, False])
def test_no_server_stays_paused_after_an_error(world: World, compared: bool) -> None:
    """Servers that answer differently get no rollouts."""

    def fails(*_: object) -> None:
        raise EngineError("they differ")

    world.explained = False
    if compared:
        world.trainer._compare = fails
    else:
        world.script = [fails]
    with pytest.raises(EngineError, match="they differ"):
        sync(world, 0)
    assert world.said == [*([("version", 1)] if compared else []), ("unpause", A), ("unpause", B)]
