"""A scripted vLLM in a thread, for agents that talk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from swe_testing.vllm import ScriptedVLLM

REPLIES = ("One.", "Two.", "Three.", "Four.", "Five.", "Six.")


@pytest.fixture
def talking(tiny_model: Path) -> Iterator[list[str]]:
    """The settings of a run whose agent talks in two conversations, in turns, to a scripted vLLM."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    vllm = ScriptedVLLM(REPLIES, encode=encode, stop_id=tokenizer.eos_token_id, root=str(tiny_model))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(vllm):
        yield [*("run.agent=talker", "run.engine=vllm", "run.model=scripted"), f"run.engine_url={vllm.url}"]
