"""What the project relies on in vLLM, and in the server that the tests share."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from swe_testing.serving.start import MODEL, TokenServer

pytestmark = pytest.mark.engine
PROMPT = [40, 41, 42, 7, 300]


@pytest.fixture
def url(token_server: TokenServer) -> str:
    return token_server.url


async def complete(url: str, **body: Any) -> dict[str, Any]:
    """One completion; a streamed one is put together, the choice's lists joined."""
    body = {"model": MODEL, "prompt": PROMPT, "return_token_ids": True, "logprobs": 0, **body}
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(f"{url}/v1/completions", json=body)
    if response.status_code != 200:
        return {"status": response.status_code, **response.json()}
    if not body.get("stream"):
        return dict(response.json())
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    choices = [choice for event in events for choice in event["choices"]]
    logprobs = [choice["logprobs"]["token_logprobs"] for choice in choices if choice["logprobs"]]
    whole = {
        "text": "".join(choice["text"] for choice in choices),
        "token_ids": list(itertools.chain(*(choice["token_ids"] for choice in choices))),
        "prompt_token_ids": choices[0]["prompt_token_ids"],
        "finish_reason": choices[-1]["finish_reason"],
        "logprobs": {"token_logprobs": list(itertools.chain(*logprobs))},
    }
    return {"choices": [whole], "usage": events[-1].get("usage")}


def forward(model: Path, ids: list[int], temperature: float) -> Any:
    """Log-probabilities [T - 1] that a plain forward pass gives ids[1:]."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = network(torch.tensor([ids])).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_those_of_the_distribution_that_was_sampled(
    url: str, tiny_model: Path, stream: bool
) -> None:
    body: Mapping[str, Any] = {"temperature": 0.7, "max_tokens": 40, "ignore_eos": True, "seed": 3}
    reply = await complete(url, stream=stream, **body)
    choice = reply["choices"][0]
    assert choice["prompt_token_ids"] == PROMPT
    assert len(choice["token_ids"]) == 40
    assert choice["finish_reason"] == "length"
    expected = forward(tiny_model, PROMPT + choice["token_ids"], 0.7)[len(PROMPT) - 1 :]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.slow
async def test_long_prompt_with_a_seed(url: str) -> None:
    """vLLM on CPU crashes on one with its default settings, which chunk the prompt."""
    reply = await complete(url, prompt=PROMPT * 2000, seed=1, max_tokens=2, ignore_eos=True)
    assert reply["usage"] == {**reply["usage"], "prompt_tokens": 10_000, "completion_tokens": 2}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "another"}, 404, "The model `another` does not exist."),
        ({"prompt": [5] * 32_768}, 400, "maximum context length is"),
        ({"prompt": [1_000_000]}, 400, "Token id 1000000 is out of vocabulary"),
        ({"prompt": []}, 400, ""),
    ],
)
async def test_refused_values(url: str, body: Mapping[str, Any], status: int, says: str) -> None:
    reply = await complete(url, **body)
    assert reply["status"] == reply["error"]["code"] == status
    assert says in reply["error"]["message"]


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.2}, {"min_p": 0.3}])
async def test_limits_of_sampling_are_in_the_logprobs(url: str, limits: Mapping[str, float]) -> None:
    """With `--logprobs-mode processed_logprobs` what cannot be drawn is not likely at all."""
    names = {"logprobs": 20, "return_tokens_as_token_ids": True}
    reply = await complete(url, temperature=0.9, max_tokens=1, stream=False, **names, **limits)
    logprobs = reply["choices"][0]["logprobs"]
    (top,) = logprobs["top_logprobs"]
    assert top[f"token_id:{reply['choices'][0]['token_ids'][0]}"] == logprobs["token_logprobs"][0]
    likely = {name: math.exp(value) for name, value in top.items() if value > -100}
    assert sum(likely.values()) == pytest.approx(1, abs=1e-4)
    assert 1 < len(likely) < 20
