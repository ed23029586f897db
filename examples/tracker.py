"""Observer: sends the numbers of each finished rollout to a server of yours, one JSON object a request.

TRACKER_URL=http://127.0.0.1:8080/rollouts swe-core run -p examples/tracker.py --engine-url URL --model NAME

With the client of a tracker, such as trackio, call its `init` once, its `log` in place of `post`, and
its `finish` with `atexit`. The hook hears of each rollout once, and of none from before a resume. A training
needs no such plugin: it reports its own metrics to the trackers of `worker.trl.grpo.report_to`.
"""

from __future__ import annotations

import json
import logging
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from swe_core import Rollout, hookimpl

logger = logging.getLogger(__name__)

# The hook runs in the event loop, so a thread does what may wait. The program ends when all is sent.
_THREAD = ThreadPoolExecutor(max_workers=1)


def post(values: dict[str, object]) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["TRACKER_URL"], json.dumps(values).encode(), headers)
    urllib.request.urlopen(request, timeout=30).close()


def send(rollout: Rollout) -> None:
    numbers = {"reward": rollout.reward, "turns": rollout.turns, "seconds": rollout.seconds}
    try:
        post({"rollout": rollout.id, "outcome": rollout.outcome, **numbers, **rollout.usage.model_dump()})
    except Exception as error:  # of the tracker, whatever it is: the run goes on
        logger.warning("rollout %s was not sent: %s", rollout.id, error)


@hookimpl
def swe_rollout_finished(rollout: Rollout) -> None:
    _THREAD.submit(send, rollout)
