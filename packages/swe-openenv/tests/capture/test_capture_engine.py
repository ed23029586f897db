"""The capture server in front of a real vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_testing.serving.start import TokenServer

from .engines import HELLO, ask, ours, session

pytestmark = [pytest.mark.anyio, pytest.mark.engine]


async def test_real_engine_gives_a_trace_to_train_on(token_server: TokenServer, tmp_path: Path) -> None:
    from openenv.core.harness import TrainingTrace

    options = {"llm_url": token_server.url, "model": token_server.model, "max_output_tokens": 16, "sets": ()}
    async with ours(None, tmp_path / "c", **options) as client:
        key = await session(client, purpose="train", sampling={"temperature": 1.0})
        messages = [*HELLO]
        for _ in range(3):
            messages += [await ask(client, key, messages, tools=None), {"role": "user", "content": "go on"}]
        rollout = (await client.get(f"/sessions/{key}/rollout")).json()
        entries = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]
    trace = TrainingTrace.from_entries(entries)
    assert rollout["trainable"], rollout["validation"]
    assert not any("[FATAL]" in finding for finding in rollout["validation"])
    sampled = sum(turn["n_sampled"] for turn in rollout["turns"])
    assert rollout["stats"]["n_trainable_tokens"] == sampled
    assert sum(sum(turn.loss_mask) for turn in trace.turns) == sampled
    assert {len(turn.per_token_logps) > 0 for turn in trace.turns} == {True}
