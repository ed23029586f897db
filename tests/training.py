"""Shared by the tests of training: a training run by its command, and what it leaves behind."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from swe_core.api.chain import Chain
from swe_core.api.records import Rollout
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import TrainedRow, read_groups, read_trained, read_vocabulary
from swe_core.tokens.chains import chains_of
from swe_testing.serving.start import FRUGAL, MODEL
from swe_trainer_trl.journal.groups import advantages

from .conftest import reported
from .warm import Warm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROGRAM = str(Path(sys.executable).with_name("swe-core"))
TOY = str(Path(__file__).with_name("toy_reward.py"))


@dataclass(frozen=True)
class Row:
    """What the journal says of a training row."""

    group: int
    rollout_id: str
    step: int | None
    dropped: str | None


@dataclass(frozen=True)
class Training:
    """A training run that has ended."""

    code: int
    stdout: str
    stderr: str
    out: Path

    def log(self) -> list[dict[str, Any]]:
        """The lines of the trainer's log."""
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What the trainer logged after each step, in order."""
        return [line["values"] for line in self.log() if "loss" in line["values"]]

    @property
    def summary(self) -> dict[str, Any]:
        """Where all sampled tokens went, as a training that came to its end says."""
        said: dict[str, Any] = json.loads((self.out / "training.json").read_text())
        return said

    def report(self) -> dict[str, Any]:
        """What `swe-core report` says."""
        said: dict[str, Any] = json.loads(reported(self.out, "--json"))
        return said

    def rollouts(self) -> list[Rollout]:
        """The finished rollouts, in the order in which they finished."""
        return RunDirectory.open(self.out).rollouts()

    def chains(self) -> list[Chain]:
        """All rows of rollouts with a verdict."""
        run = RunDirectory.open(self.out)
        return [
            chain
            for rollout in run.rollouts()
            if rollout.reward is not None
            for chain in chains_of(run.turns(rollout.id))
        ]

    def versions(self, rollout_id: str) -> set[int]:
        """The policy versions that a rollout's ids were sampled by."""
        turns = RunDirectory.open(self.out).turns(rollout_id)
        return {version for turn in turns if turn.tokens for version, _ in turn.tokens.versions}

    def rows(self) -> dict[int, Row]:
        """The rows of the journal, by their ids."""
        columns = "SELECT id, group_id, rollout_id, step, dropped FROM rows"
        return {key: Row(*rest) for key, *rest in self._journal(columns)}

    def nodes_of(self, group: int) -> set[str | None]:
        """The nodes where the attempts of a group ran."""
        rows = {row.rollout_id for row in self.rows().values() if row.group == group}
        return {rollout.node for rollout in self.rollouts() if rollout.id in rows}

    def groups_behind(self) -> int:
        """How many groups are closed, and have no row that is to be trained."""
        waiting = {row.group for row in self.rows().values() if row.step is None and row.dropped is None}
        return sum(closed and number not in waiting for number, (closed, _) in self.groups().items())

    def groups(self) -> dict[int, tuple[bool, str | None]]:
        """The groups of the journal, by their numbers: whether each is closed, and why it has no rows."""
        return {
            number: (closed is not None, skipped)
            for number, closed, skipped in self._journal("SELECT id, closed, skipped FROM groups")
        }

    def announced(self) -> int:
        """The highest policy version that was announced, as the journal has it."""
        return max(self.updates(), default=0)

    def announced_step(self) -> int:
        """The step of the newest announced weights."""
        ((step,),) = self._journal("SELECT MAX(step) FROM policies")
        return step or 0

    def updates(self) -> dict[int, int]:
        """Policy version → how many updates its weights had, as the journal has it."""
        return dict(self._journal("SELECT version, updates FROM policies"))

    def _journal(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.out / "train.sqlite")) as database:
            return database.execute(query).fetchall()


def train(out: Path, *args: str, warm: Warm | None = None, timeout: float = 900) -> Training:
    """Run `swe-core run`: as its users do, or in a process that has TRL imported."""
    command = ["run", *args, "--out", str(out)]
    if warm is not None:
        with warm.start(command, FRUGAL) as program:
            said = program.communicate(timeout)
        return Training(program.wait(), *said, out)
    done = subprocess.run(
        [PROGRAM, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **FRUGAL},
        timeout=timeout,
    )
    return Training(done.returncode, done.stdout, done.stderr, out)


def logprobs(model: PreTrainedModel, chain: Chain) -> np.ndarray:
    """What the model gives each sampled id of the chain, a plain forward pass."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor(chain.input_ids[None].astype(np.int64))).logits[0].float()
    given = torch.log_softmax(logits[:-1], -1)
    places = np.flatnonzero(chain.completion_mask)
    return given[places - 1, chain.input_ids[places]].numpy()


def check_records(out: Path, models: Sequence[PreTrainedModel]) -> list[TrainedRow]:
    """What readers find in a run directory: groups, what each step computed for each row, and token strings.

    Args:
        models: The weights that each step started from, of all steps.
    """
    run, done = RunDirectory.open(out), Training(0, "", "", out)
    rewards = {rollout.id: rollout.reward for rollout in run.rollouts()}
    given: dict[str, float | None] = {}
    groups = read_groups(out)
    closed = {number: skipped for number, (closed, skipped) in done.groups().items() if closed}
    assert {group.group: group.skipped for group in groups} == closed
    for group in groups:
        assert [one.reward for one in group.members] == [rewards[one.rollout_id] for one in group.members]
        counted = [member for member in group.members if member.left_out is None]
        if group.skipped is None:
            wanted = advantages([member.reward or 0.0 for member in counted]).tolist()
            assert [member.advantage for member in counted] == wanted
            given |= {member.rollout_id: member.advantage for member in counted}
    rows = read_trained(out)
    marked = [(row.step, row.rollout_id) for row in done.rows().values() if row.step is not None]
    assert sorted((row.step, row.rollout_id) for row in rows) == sorted(marked)
    assert [row.step for row in rows] == sorted(row.step for row in rows)
    assert {row.step for row in rows} == set(range(1, len(models) + 1))
    for row in rows:
        chain = run.chains(row.rollout_id)[row.row]
        assert row.tokens == int(chain.completion_mask.sum()) > 0
        assert row.logprobs is not None
        assert np.array(row.logprobs) == pytest.approx(logprobs(models[row.step - 1], chain), abs=1e-4)
        assert row.advantage == given[row.rollout_id]
    one = rows[-1].rollout_id
    assert read_trained(out, one) == [row for row in rows if row.rollout_id == one]
    logged = {line["step"]: line["values"] for line in done.log() if "loss" in line["values"]}
    for step, values in logged.items():  # of a step that was lost, the later line
        of_step = [row for row in rows if row.step == step]
        tokens = sum(row.tokens for row in of_step)
        assert tokens == values["batch/trained_tokens_per_step"]
        assert sum(row.weight * row.tokens for row in of_step) == pytest.approx(tokens)
        clipped = sum(row.clipped or 0 for row in of_step)
        assert clipped / tokens == pytest.approx(values["clip_ratio/region_mean"], abs=1e-6)
    vocabulary = read_vocabulary(out)
    assert vocabulary is not None
    ids = run.chains(one)[0].input_ids.tolist()
    assert "".join(vocabulary.tokens[id_] or "" for id_ in ids).startswith("<|im_start|>")
    assert vocabulary.special[ids[0]] == "<|im_start|>"
    return rows


def toy_options(
    model: Path, url: str | None, grpo: Mapping[str, Any], tokens: int, letters: int
) -> list[str]:
    """To train the policy `model` that is served at `url` with the agent and grader of `toy_reward.py`: so
    many letters e are wanted in replies of so many ids. All groups are trained, so that a step takes the same
    number of rollouts however good the policy is. Without `url` the command starts its server."""
    served = ["--model", str(model)] if url is None else ["--model", MODEL, "--engine-url", url]
    return [
        *("--plugins", "trl", "-p", TOY, "--agent", "toy", "--grader", "letters"),
        *("--tasks", "demo", "--task", "demo__memofn-1", "--sandbox", "local", "--concurrency", "4"),
        *(*served, "--set", f"worker.trl.model={model}", "--weight-sync", "disk"),
        *("--set", f"engine.vllm.max_tokens={tokens}", "--set", f"grader.letters.enough={letters}"),
        *("--set", "worker.trl.no_spread=keep", "--set", "worker.trl.groups_ahead=2"),
        *("--set", f"worker.trl.grpo={json.dumps({**_GRPO, **grpo})}"),
    ]


_GRPO = {"gradient_accumulation_steps": 1, "token_budget": 0, "report_to": "none", "disable_tqdm": True}
