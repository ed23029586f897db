"""The body of a request to `/v1/completions`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from swe_core.api.engine import ChatRequest
from swe_core.builtin.vllm import VLLMConfig
from swe_core.errors import RequestRefused
from swe_core.tokens.renderer import Tools


def sampling(config: VLLMConfig) -> dict[str, Any]:
    """Return the sampling options. All are set: the server takes others from generation_config.json."""
    return {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k or -1,
        "min_p": config.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


def is_neutral(config: VLLMConfig) -> bool:
    """Return whether tokens are drawn from the model's own distribution."""
    return config.temperature == config.top_p == 1.0 and config.top_k is None and config.min_p == 0.0


class RequestWriter:
    """Writes request bodies. The prompt's ids are copied in as text, never read or written one by one."""

    def __init__(self, config: VLLMConfig, stop_ids: Collection[int]) -> None:
        self._seed = config.seed
        fixed = {
            **sampling(config),
            "stop_token_ids": sorted(stop_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "stream": True,
            "stream_interval": config.stream_interval,
        }
        self._fixed = orjson.dumps(fixed)[:-1]

    def body(
        self,
        prompt: bytes,
        *,
        model: str,
        max_tokens: int,
        stops: Sequence[str],
        constraint: Mapping[str, Any] | None,
        call: str,
    ) -> bytes:
        """Return the body of one request.

        Args:
            prompt: Its ids as JSON text without the brackets.
            model: The name to sample from.
            constraint: Keys of the body that force the reply; None leaves it free.
            call: What a fixed seed is made different by: each request needs its own draws.
        """
        varied: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
        if self._seed is not None:  # vLLM samples requests that have one row by row
            varied["seed"] = _seed(self._seed, call)
        if stops:
            varied["stop"] = stops
        if constraint is not None:
            varied |= constraint
        return b'%b,%b,"prompt":[%b]}' % (self._fixed, orjson.dumps(varied)[1:-1], prompt)


def _seed(seed: int, call: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{call}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def offered_tools(request: ChatRequest) -> Tools:
    """Return the tools that the model sees.

    Raises:
        RequestRefused: The agent wants a certain call, format or choice of words, which would have to be
            forced upon the policy.
    """
    choice = request.body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RequestRefused(
            f"tool_choice {choice!r} is not supported: this endpoint samples from the policy as it is and "
            "forces no call; send auto or none"
        )
    wanted = request.body.get("response_format")
    if wanted is not None and not (isinstance(wanted, Mapping) and wanted.get("type") == "text"):
        raise RequestRefused(
            f"response_format {wanted!r} is not supported: this endpoint samples from the policy as it is "
            "and forces no format; leave it out"
        )
    if request.body.get("logit_bias"):
        raise RequestRefused(
            "logit_bias is not supported: this endpoint samples from the policy as it is and makes no token "
            "more or less likely; leave it out"
        )
    return (request.tools or None) if choice != "none" else None


def stop_texts(body: Mapping[str, Any]) -> list[str]:
    """Return the texts at which the agent wants replies to end.

    Raises:
        RequestRefused: `stop` is neither a text nor a list of texts, or one is empty.
    """
    stop = body.get("stop")
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise RequestRefused(f"stop is {stop!r}; send a text or a list of texts, none of them empty")
    return texts


def most_calls(body: Mapping[str, Any]) -> int | None:
    """Return the maximum of tool calls in a reply to the agent; None is no limit.

    As vLLM's own server does it. The policy may sample more: its prompt does not say what the agent wants.
    """
    return 1 if body.get("parallel_tool_calls") is False else None
