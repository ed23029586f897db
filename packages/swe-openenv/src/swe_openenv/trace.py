"""Recorded calls as OpenEnv's trace entries, which TRL trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swe_core.api.chain import Chain
from swe_core.api.records import Turn, requests_of
from swe_core.tokens.chains import Step, step_of


def trace_entries(turns: Sequence[Turn], chains: Sequence[Chain]) -> list[dict[str, Any]]:
    """Return an entry for each call that is trained, chain by chain.

    TRL merges a call only with its last open row: chain by chain, each chain becomes one row. A call without
    a sampled id, and one of which no id is trained, is left out; the ledger says why.

    Args:
        turns: All calls of a rollout, in order.
        chains: Its training rows.

    Raises:
        LedgerError: The records do not fit together.
    """
    steps = {turn.index: step_of(turn.index, turn.tokens) for turn in turns if turn.tokens is not None}
    requests = dict(zip((turn.index for turn in turns), requests_of(turns), strict=True))
    by_index = {turn.index: turn for turn in turns}
    entries = []
    for chain in chains:
        for index in chain.turns:
            step = steps[index]
            mask = step.trainable
            if not mask.any():
                continue
            prompt = np.concatenate([*_before(step, steps), step.prompt])
            entries.append(_entry(by_index[index], step, mask, prompt, requests[index]))
    return entries


def _before(step: Step, steps: Mapping[int, Step]) -> Iterator[NDArray[np.int32]]:
    """Yield the ids that the prompt of `step` begins with, in pieces."""
    earlier = []
    while step.base is not None:
        step = steps[step.base]
        earlier.append(step)
    for past in reversed(earlier):
        yield past.prompt
        yield past.completion


def _entry(
    turn: Turn, step: Step, mask: NDArray[np.bool_], prompt: NDArray[np.int32], request: Mapping[str, Any]
) -> dict[str, Any]:
    reply = {"message": turn.reply or {}, "finish_reason": turn.finish_reason}
    return {
        "request": {"messages": request["messages"], "tools": request.get("tools")},
        "response": {"choices": [reply]},
        "prompt_token_ids": prompt.tolist(),
        "completion_token_ids": step.completion.tolist(),
        "per_token_logps": np.where(mask, step.logprobs, np.float32(0)).astype(float).tolist(),
        "loss_mask": [0] * len(prompt) + mask.astype(int).tolist(),
        "metadata": {
            "node_id": f"turn-{turn.index}",
            "index": turn.index,
            "dialect": turn.dialect,
            "versions": turn.tokens.versions if turn.tokens else [],
        },
    }
