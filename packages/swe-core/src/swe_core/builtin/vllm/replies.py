"""What a vLLM server answers to `/v1/completions` and `/v1/models`, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from swe_core.builtin.upstream import Refusals
from swe_core.errors import EngineProtocolError

_PROMPT = b'"prompt_token_ids":['
_HIGHEST = 2**31


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the ids of a reply, or all of them.

    Args:
        ids: What was sampled.
        logprobs: Of each id; NaN where the server gave none.
        finish: Why the reply ended, None while it goes on.
    """

    ids: list[int]
    logprobs: list[float]
    finish: str | None


class Card(BaseModel):
    """A served model.

    Args:
        id: Its name.
        root: Where it lies: a directory of the server's machine, or a name on the Hub.
        max_model_len: Tokens of its context, prompt and completion together.
    """

    id: str
    root: str | None = None
    max_model_len: int | None = Field(default=None, ge=1)


class _Cards(BaseModel):
    data: list[Card]


class Replies:
    """Reads one server's replies.

    Args:
        refusals: The server's errors as sentences.
    """

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._where = refusals.where

    def cards(self, raw: bytes) -> list[Card]:
        """The served models.

        Raises:
            EngineProtocolError: It is no list of models.
        """
        try:
            return _Cards.model_validate_json(raw).data
        except ValidationError:
            raise EngineProtocolError(
                f"{self._where} lists no models at /v1/models: check that the URL is that of a vLLM server"
            ) from None

    def chunk(self, raw: bytes, sent: bytes | None) -> Chunk | None:
        """One reply, or one event of a streamed one; None for an event without a choice.

        Args:
            sent: The prompt's ids as JSON text, where the reply should repeat them.

        Raises:
            EngineProtocolError: It is something else, lacks the ids, or answers another prompt.
            Transient | EngineError: It is an error of the server.
        """
        repeated = False
        if sent is not None:
            raw, repeated = _without_prompt(raw, sent)
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise self._wrong("invalid JSON") from None
        if not isinstance(body, dict):
            raise self._wrong("no object")
        if body.get("error"):
            raise self._refusals.in_reply(body)
        choices = body.get("choices")
        if choices == []:
            return None
        choice = choices[0] if isinstance(choices, list) else None
        if not isinstance(choice, dict):
            raise self._wrong("no choices")
        if sent is not None and not repeated:
            self._compare(choice.get("prompt_token_ids"), sent)
        finish = choice.get("finish_reason")
        if not isinstance(finish, str | None):
            raise self._wrong("finish_reason is no text")
        ids = self._ids(choice)
        return Chunk(ids, self._logprobs(choice, len(ids)), finish)

    def _compare(self, prompt: object, sent: bytes) -> None:
        """A stream may leave the prompt out; where it stands, it must be ours."""
        if prompt is not None and prompt != orjson.loads(b"[%b]" % sent):
            raise EngineProtocolError(
                f"{self._where} sampled from other prompt ids than it was sent: check that no proxy or "
                "plugin in front of it changes prompts"
            )

    def _ids(self, choice: Mapping[str, Any]) -> list[int]:
        ids = choice.get("token_ids")
        if ids is None:
            raise EngineProtocolError(
                f"{self._where} returns no token ids: it must be vLLM 0.10.2 or newer, which gives them "
                "where a request sets return_token_ids"
            )
        if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
            raise self._wrong("token_ids is no list of integers")
        if ids and not 0 <= min(ids) <= max(ids) < _HIGHEST:
            raise self._wrong("a token id is out of range")
        return ids

    def _logprobs(self, choice: Mapping[str, Any], count: int) -> list[float]:
        logprobs = choice.get("logprobs")
        given = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else logprobs
        if given is None:
            return [math.nan] * count
        if not isinstance(given, list) or not set(map(type, given)) <= {float, int, type(None)}:
            raise self._wrong("token_logprobs is no list of numbers")
        if len(given) != count:
            raise self._wrong(f"{len(given)} logprobs for {count} token ids")
        return [math.nan if value is None else float(value) for value in given]

    def _wrong(self, why: str) -> EngineProtocolError:
        return EngineProtocolError(
            f"{self._where} answered no completion ({why}): check that the URL is that of a vLLM server"
        )


def _without_prompt(raw: bytes, sent: bytes) -> tuple[bytes, bool]:
    """The reply without the prompt's ids, and whether they stood there as they were sent. Comparing the text
    saves reading every id of a long prompt at every turn."""
    start = raw.find(_PROMPT) + len(_PROMPT)
    end = start + len(sent)
    if start < len(_PROMPT) or not raw.startswith(sent, start) or raw[end : end + 1] != b"]":
        return raw, False
    return raw[:start] + raw[end:], True
