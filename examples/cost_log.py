"""Observer: logs what the run has cost so far, after each rollout.

The prices, in dollars per million tokens, are in the environment:

PRICE_IN=0.5 PRICE_OUT=2 swe-core run -p examples/cost_log.py --engine-url URL --model NAME
"""

from __future__ import annotations

import logging
import os

from swe_core import Rollout, hookimpl

logger = logging.getLogger(__name__)


class CostLog:
    def __init__(self) -> None:
        self.rollouts = 0
        self.dollars = 0.0

    def add(self, rollout: Rollout) -> None:
        price_in, price_out = (float(os.environ.get(name, "0")) for name in ("PRICE_IN", "PRICE_OUT"))
        usage = rollout.usage
        self.rollouts += 1
        self.dollars += (usage.prompt_tokens * price_in + usage.completion_tokens * price_out) / 1e6
        logger.warning("cost so far: %.4f dollars, rollouts: %d", self.dollars, self.rollouts)


_LOG = CostLog()


@hookimpl
def swe_rollout_finished(rollout: Rollout) -> None:
    _LOG.add(rollout)
