"""The checks of a vLLM server before a run; each failed one is one sentence."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from swe_core.builtin.vllm import VLLMConfig
from swe_core.builtin.vllm.client import Client
from swe_core.builtin.vllm.request import is_neutral, sampling
from swe_core.errors import EngineError, EngineProtocolError, EngineRefused, RequestRefused
from swe_core.tokens.call_formats import CALL_FORMATS
from swe_core.tokens.renderer import THINKING, Renderer

_TOP = 5
_RAW = 0.75
"""Part of its spread that the top of a distribution keeps at temperature 2: half if log-probabilities are
those after temperature, all if they are raw."""
_FEW = 9
"""Number of tokens that shows whether several come at once."""
_FLAT = 0.05
"""Spread below which the two cannot be distinguished."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Served:
    """A server's answers about its model.

    Args:
        root: A directory of the server's machine, or a name on the Hub.
        context: Tokens of its context.
    """

    root: str | None
    context: int


async def ask_served(client: Client, model: str) -> Served:
    """Return the server's answers about `model`.

    Raises:
        Transient | EngineError: The server lacks the model, or does not give its context.
    """
    cards = {card.id: card for card in await client.cards()}
    if model not in cards:
        names = ", ".join(map(repr, cards)) or "none"
        raise EngineRefused(
            f"{client.where} does not serve the model {model!r}: pass --model with one that it serves "
            f"({names})",
            404,
        )
    context = cards[model].max_model_len
    if context is None:
        raise EngineProtocolError(
            f"{client.where} does not say how long its context is (max_model_len in /v1/models): check that "
            "the URL is that of a vLLM server"
        )
    return Served(cards[model].root, context)


async def check_server(client: Client, model: str, renderer: Renderer, config: VLLMConfig) -> None:
    """Sample one token twice and a few once, and check the replies.

    Raises:
        Transient | EngineError: The server cannot be used with these settings.
    """
    prompt = renderer.render([{"role": "user", "content": "hi"}], None)
    await _check_logprobs(client, model, renderer, config, prompt)
    if config.stream_interval > 1:
        await _check_interval(client, model, prompt, config.stream_interval)


def format_notes(renderer: Renderer) -> list[str]:
    """Return what a model's chat format does not give, and where its prompts are not those of the model's own
    template, a sentence each."""
    notes = []
    if renderer.how == "full":
        notes.append(
            f"the renderer {renderer.name!r} renders each prompt afresh, so that turns may fork from "
            "their chains: look at the causes in the ledger, and set engine.vllm.renderer or "
            "engine.vllm.chat_template to a format that extends prompts"
        )
    others = [name for name in renderer.differs if name != THINKING]
    if others:
        notes.append(
            f"the renderer {renderer.name!r} prints {', '.join(others)} otherwise than the model's chat "
            "template does"
        )
    if THINKING in renderer.differs:
        notes.append(
            f"the renderer {renderer.name!r} leaves the thinking of earlier replies in the prompt as it "
            "was sampled, where the model's chat template drops it once a user message follows: that is "
            "on purpose, so that prompts extend"
        )
    return notes


def calls_problem(renderer: Renderer) -> str | None:
    """Return why the model's tool calls cannot be read; None where they can."""
    if renderer.finds_calls:
        return None
    return (
        f"the tool calls of this model cannot be read, because the renderer {renderer.name!r} prints them in "
        f"no known notation: set engine.vllm.tool_parser to the model's own ({', '.join(CALL_FORMATS)}), or "
        "let the server parse them, with --engine openai"
    )


async def _check_interval(client: Client, model: str, prompt: list[int], interval: int) -> None:
    """Say so where each token comes by itself, as from a vLLM that knows no interval in requests."""
    pieces = await client.pieces(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": _FEW,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "stream": True,
            "stream_interval": interval,
        }
    )
    if len(pieces) == _FEW:
        log.warning(
            "%s sends each token by itself, which costs time on both sides: start it with "
            "--stream-interval %d",
            client.where,
            interval,
        )


async def _check_logprobs(
    client: Client, model: str, renderer: Renderer, config: VLLMConfig, prompt: list[int]
) -> None:
    plain = await _top(client, model, renderer, prompt, 1.0)
    if _spread(plain) < _FLAT:
        return
    hot = await _top(client, model, renderer, prompt, 2.0)
    if _spread(hot) < _RAW * _spread(plain):
        return
    raw = f"{client.where} gives log-probabilities from before temperature, top_p, top_k and min_p"
    if is_neutral(config):
        log.warning("%s; that makes no difference with these settings", raw)
        return
    raise EngineError(
        f"{raw}, so they are not those that tokens are drawn by: start it with --logprobs-mode "
        "processed_logprobs, or leave temperature, top_p, top_k and min_p alone"
    )


async def _top(
    client: Client, model: str, renderer: Renderer, prompt: list[int], temperature: float
) -> list[float]:
    """Return the highest log-probabilities of the token after `prompt`, highest first; empty where the server
    gives those of the sampled token only."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 1,
        "logprobs": _TOP,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # as text, two ids may be the same
        **sampling(VLLMConfig(temperature=temperature)),
    }
    try:
        chunk, choice = await client.sample_one(body)
    except RequestRefused as refusal:
        if "out of vocabulary" not in str(refusal):
            raise
        raise EngineRefused(
            f"{client.where} does not know ids of the tokenizer ({refusal}): set engine.vllm.tokenizer to "
            "that of the served model",
            refusal.status,
        ) from None
    if choice.get("prompt_token_ids") is None:
        raise EngineProtocolError(
            f"{client.where} does not repeat the prompt's ids: it must be vLLM 0.10.2 or newer"
        )
    if not chunk.ids or any(map(math.isnan, chunk.logprobs)):
        raise EngineProtocolError(
            f"{client.where} gives no log-probabilities: check that it is vLLM, started without options "
            "that switch them off"
        )
    _compare(client, renderer, chunk.ids, choice)
    return _highest(choice)


def _compare(client: Client, renderer: Renderer, ids: list[int], choice: dict[str, Any]) -> None:
    """Whether the server reads `ids` as the tokenizer does. It reads ends of replies and parts of characters
    as nothing, and some tokenizers drop a leading blank."""
    theirs, ours = str(choice.get("text") or "").strip(), renderer.text(ids).strip()
    if theirs and "\ufffd" not in theirs + ours and theirs != ours:
        raise EngineRefused(
            f"{client.where} reads the token id {ids[0]} as {theirs!r}, the tokenizer as {ours!r}: set "
            "engine.vllm.tokenizer to that of the served model"
        )


def _highest(choice: dict[str, Any]) -> list[float]:
    tops = choice["logprobs"].get("top_logprobs")
    first = tops[0] if isinstance(tops, list) and tops else None
    values = first.values() if isinstance(first, dict) else ()
    return sorted((value for value in values if isinstance(value, float)), reverse=True)[:_TOP]


def _spread(values: list[float]) -> float:
    return values[0] - values[-1] if values else 0.0
