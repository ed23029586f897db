"""Training, whole: a reward that can be learned rises. Real rollouts in the local sandbox, TRL's trainer, and
a server of the policy, whose weights change."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from swe_testing.serving.start import TokenServer

from .training import toy_options, train
from .warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]

GROUP = 8
STEPS = 30
RISE = 0.4
"""How much more the last third of the rollouts must earn on average than those of the policy as it was.

Rewards are 0 or 1. The untrained policy earns 0.22 on average, and has some 20 rollouts before it is
replaced; the last third has more than 50, and earned 0.92 to 1.00 in runs of this test. For a policy that
learns nothing the difference has a standard deviation of 0.11, so one run in 10,000 of such a policy comes
so far; the rise of 0.7 that is expected is nearly as far on the other side. (Not the first third against the
last: some runs have learned all there is to learn by then.)
"""


@pytest.mark.parametrize("normalize", ["rollout", pytest.param("token", marks=pytest.mark.long)])
def test_reward_that_can_be_learned_rises(
    normalize: str, tmp_path: Path, tiny_model: Path, lent_server: TokenServer, warm_trainer: Warm
) -> None:
    grpo = {
        "num_train_epochs": STEPS,  # of one task, whose group is a step
        "num_generations": GROUP,
        "per_device_train_batch_size": GROUP,
        "learning_rate": 2e-2,
        "save_strategy": "no",
    }
    options = toy_options(tiny_model, lent_server.url, grpo, tokens=32, letters=10)
    options += ["--set", f"worker.trl.normalize={normalize}"]
    done = train(tmp_path / "run", *options, warm=warm_trainer)
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    scored = [rollout for rollout in done.rollouts() if rollout.reward is not None]
    first = [rollout.reward for rollout in scored if done.versions(rollout.id) == {1}]
    last = [rollout.reward for rollout in scored[-len(scored) // 3 :]]
    assert len(first) >= 2 * GROUP
    assert mean(last) - mean(first) > RISE, (first, last)
    assert done.groups_behind() == done.summary["steps"] == STEPS
    assert list(done.out.glob("checkpoints/checkpoint-*")) == []  # save_strategy
    # One version a step, and one before the first; each finds its way to what it samples.
    assert done.announced() == STEPS + 1
    seen = sorted(set().union(*(done.versions(rollout.id) for rollout in done.rollouts())))
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) >= STEPS - 1
    assert done.report()["ledger"]["balanced"]
    assert done.summary["tokens"]["unaccounted"] == 0
